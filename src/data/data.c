#include "data/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/blended_dataset.h"

/* Datasets point to the sources and the configuration. Data therefore never moves these, and frees them last. */
struct Data {
    Blend paths[SPLIT_COUNT]; /* if --data-path is given, only paths[0] is set */
    const DatasetKind *kind;
    TokenSource *sources[SPLIT_COUNT];
    SplitRange ranges[SPLIT_COUNT];
    DataConfig config;
    char *split, *cache_dir, *tokenizer_json;
    void *kind_config;
    BlendedDataset *datasets[SPLIT_COUNT], **files; /* files: one dataset per validation file */
    int num_files;
    char fingerprint[33];
};

static const SplitRange WHOLE = {true, 0.0, 1.0};

static char *data_copy(const char *s) { return s ? mem_strdup(s) : NULL; }

static Err check_config(const DataConfig *c) {
    bool per_split = false;
    for (int i = 0; i < SPLIT_COUNT; i++) per_split |= c->num_split_paths[i] > 0;
    int kinds = c->mock + (c->num_paths > 0) + per_split;
    if (!kinds) return err_user("there is no data: set --data-path, the per-split data paths or --mock-data");
    if (kinds > 1)
        return err_user(
            "--data-path, the per-split data paths and --mock-data are mutually exclusive; use one of them");
    if (per_split && c->split)
        return err_user("--split applies only to --data-path; remove --split if each split has separate data "
                        "paths");
    if (!(c->surplus >= 0 && c->surplus <= 1000))
        return err_user("--mid-level-dataset-surplus is %g; it must be from 0 to 1000", c->surplus);
    for (int i = 0; i < SPLIT_COUNT; i++)
        if (c->samples[i] > INT64_MAX >> 24)
            return err_user("the number of %s samples is %" PRId64 ", but it must be at most %" PRId64,
                            SPLIT_NAMES[i], c->samples[i], INT64_MAX >> 24);
    return ERR_OK;
}

static void set_config(Data *d, const DataConfig *c, const char *split) {
    d->config = *c;
    d->config.kind_config = d->kind_config;
    d->config.split = d->split = data_copy(split);
    d->config.ranges = split ? d->ranges : NULL;
    d->config.cache_dir = d->cache_dir = data_copy(c->cache_dir);
    d->config.tokenizer_json = d->tokenizer_json = data_copy(c->tokenizer_json);
    if (c->pad == c->eod && !c->allow_ambiguous_pad) d->config.pad = -1;
}

static Err open_sources(const Data *d, const Blend *paths, TokenSource **out) {
    const DataConfig *c = &d->config;
    *out = mem_zero((size_t)paths->n, sizeof **out);
    for (int i = 0; i < paths->n; i++)
        ERR_RETURN(source_open(paths->prefixes[i], d->kind->mock, c->vocab_size, c->eod, &(*out)[i]));
    return ERR_OK;
}

static Err open_split(Data *d, const DataConfig *c, DataSplit split, const Blend *paths,
                      const TokenSource *sources, const SplitRange *range) {
    if (!range->used || !c->samples[split]) return ERR_OK;
    BlendedDataset *dataset = mem_zero(1, sizeof *dataset);
    /* As in Megatron-LM, a single weight is ignored if the splits have separate paths. */
    const double *weights = paths->n == 1 && !c->num_paths ? NULL : paths->weights;
    Err e = blended_open(d->kind, sources, paths->n, weights, &d->config, split, range, c->samples[split],
                         c->surplus, dataset);
    if (e.code)
        free(dataset);
    else
        d->datasets[split] = dataset;
    return e;
}

static Err open_shared(Data *d, const DataConfig *c) {
    const char *split = c->mock ? "1,1,1" : c->split ? c->split : "969, 30, 1";
    ERR_RETURN(split_parse(split, d->ranges));
    set_config(d, c, split);
    if (c->mock)
        d->paths[0] = (Blend){.n = 1, .prefixes = mem_zero(1, sizeof(char *))};
    else
        ERR_RETURN(blend_parse(c->paths, c->num_paths, &d->paths[0]));
    ERR_RETURN(open_sources(d, &d->paths[0], &d->sources[0]));
    for (int i = 0; i < SPLIT_COUNT; i++)
        ERR_RETURN(open_split(d, c, (DataSplit)i, &d->paths[0], d->sources[0], &d->ranges[i]));
    return ERR_OK;
}

static Err open_per_split(Data *d, const DataConfig *c) {
    set_config(d, c, NULL);
    for (int i = 0; i < SPLIT_COUNT; i++) {
        if (!c->num_split_paths[i]) continue;
        ERR_RETURN(blend_parse(c->split_paths[i], c->num_split_paths[i], &d->paths[i]));
        ERR_RETURN(open_sources(d, &d->paths[i], &d->sources[i]));
        ERR_RETURN(open_split(d, c, (DataSplit)i, &d->paths[i], d->sources[i], &WHOLE));
    }
    return ERR_OK;
}

/* ---- records ---- */

static Err open_records(Data *d, DataSplit split, const char *const *files, int n, BlendedDataset **out) {
    const DatasetPart request = {
        .kind = d->kind, .config = &d->config, .split = split, .files = files, .num_files = n};
    BlendedDataset *dataset = *out = mem_zero(1, sizeof *dataset);
    dataset->parts = mem_zero(1, sizeof *dataset->parts);
    ERR_RETURN(part_open(&request, &dataset->parts[0]));
    dataset->n = 1;
    return ERR_OK;
}

/* Opens one dataset for all training files, and one for each validation file. */
static Err open_files(Data *d, const DataConfig *c) {
    const int n = c->num_split_paths[SPLIT_VALID], train = c->num_split_paths[SPLIT_TRAIN];
    const char *const *valid = c->split_paths[SPLIT_VALID];
    set_config(d, c, NULL);
    if (train) ERR_RETURN(open_records(d, SPLIT_TRAIN, c->split_paths[SPLIT_TRAIN], train, &d->datasets[0]));
    d->files = mem_zero((size_t)n + 1, sizeof *d->files);
    Err e = ERR_OK;
    for (; d->num_files < n && !e.code; d->num_files++)
        e = open_records(d, SPLIT_VALID, &valid[d->num_files], 1, &d->files[d->num_files]);
    return e;
}

static void hash_records(const Dataset *d, HashStream *h) {
    if (d && kind_reads_records(d->parts[0]->kind)) d->parts[0]->kind->hash(d->parts[0], h);
}

static void take_fingerprint(Data *d) {
    HashStream *h = hash128_begin();
    hash_records(d->datasets[SPLIT_TRAIN], h);
    for (int i = 0; i < d->num_files; i++) hash_records(d->files[i], h);
    for (int i = 0; i < SPLIT_COUNT; i++)
        for (int k = 0; d->sources[i] && k < d->paths[i].n; k++) {
            const IndexedDataset *x = &d->sources[i][k].indexed;
            const uint64_t sizes[] = {x->idx.size, x->bin.size};
            hash128_add(h, sizes, sizeof sizes);
            hash128_add(h, x->idx.bytes, x->idx.size);
        }
    hash_hex(hash128_end(h), d->fingerprint);
}

static Err open_all(Data *d, const DataConfig *c) {
    if (kind_reads_records(d->kind)) return open_files(d, c);
    ERR_RETURN(check_config(c));
    return c->mock || c->num_paths ? open_shared(d, c) : open_per_split(d, c);
}

Err data_open(const DataConfig *c, Data **out) {
    *out = NULL;
    Data *d = mem_zero(1, sizeof *d);
    d->kind = dataset_kind(c->kind);
    const size_t size = d->kind->config_size;
    if (size) d->kind_config = memcpy(mem_alloc(size), c->kind_config, size);
    const Err e = open_all(d, c);
    if (e.code) {
        data_close(d);
        return e;
    }
    take_fingerprint(d);
    *out = d;
    return ERR_OK;
}

static void close_dataset(BlendedDataset *d) {
    if (d) blended_close(d);
    free(d);
}

void data_close(Data *d) {
    if (!d) return;
    for (int i = 0; i < d->num_files; i++) close_dataset(d->files[i]);
    for (int i = 0; i < SPLIT_COUNT; i++) {
        close_dataset(d->datasets[i]);
        for (int k = 0; d->sources[i] && k < d->paths[i].n; k++) source_close(&d->sources[i][k]);
        free(d->sources[i]);
        blend_free(&d->paths[i]);
    }
    free(d->split), free(d->cache_dir), free(d->tokenizer_json), free(d->kind_config);
    free(d->files), free(d);
}

const Dataset *data_split(const Data *d, DataSplit split) { return d->datasets[split]; }
int data_files(const Data *d) { return d->num_files; }
const Dataset *data_file(const Data *d, int file) { return d->files[file]; }
const char *data_fingerprint(const Data *d) { return d->fingerprint; }
int64_t data_length(const Dataset *d) { return blended_length(d); }
DataFacts data_facts(const Dataset *d) {
    DataFacts f = {.samples = data_length(d), .file = d->parts[0]->files ? d->parts[0]->files[0] : NULL};
    int64_t one_epoch = 0;
    for (int i = 0; i < d->n; i++) {
        const DatasetPart *p = d->parts[i];
        f.tokens += p->tokens, f.epoch += p->epoch;
        one_epoch += p->samples;
        if (d->n == 1 && p->num_samples >= 0) f.samples = p->num_samples;
        if (p->epochs > f.epochs) f.epochs = p->epochs;
    }
    if (f.epochs == 0) f.epochs = (double)f.samples / (double)one_epoch;
    return f;
}

static void check_shape(const DatasetPart *p, const Batch *b) {
    CHECK(!(b->shape.fields & ~(p->shape.fields | AHEAD_FIELDS)), "a batch has a field that a %s lacks",
          p->kind->class_name);
    CHECK(!memcmp(b->shape.extent, p->shape.extent, sizeof p->shape.extent),
          "a batch of %" PRId64 " and %" PRId64 " positions", b->shape.positions, b->shape.encoder);
}

Err data_batch(const Dataset *d, const int64_t *indices, int64_t n, Batch *out) {
    check_shape(d->parts[0], out);
    out->b = n;
    batch_reset(out);
    for (int64_t i = 0; i < n; i++) {
        Sample row = batch_sample(out, i);
        out->indices[i] = indices[i];
        ERR_RETURN(blended_get(d, indices[i], &row));
    }
    batch_look_ahead(out);
    return ERR_OK;
}
