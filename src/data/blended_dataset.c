#include "data/blended_dataset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "data/md5.h"

static bool is_blend(const BlendedDataset *d) { return d->dataset.data != NULL; }

/* The properties of a blend that are known before its indices are built. */
typedef struct Mix {
    double *weights; /* [n], normalized, or NULL if the blend contains every sample once */
    int64_t *sizes;  /* [n], lengths of the datasets */
    int64_t size;
} Mix;

static Err describe(const BlendedDataset *d, const Mix *m, json_t **out) {
    json_t *datasets = json_array(), *weights = json_array(), *one;
    *out = json_pack("{s:s, s:o, s:s, s:o, s:o}", "class", "BlendedDataset", "datasets", datasets, "split",
                     SPLIT_NAMES[d->parts[0]->split], "weights", weights, "size",
                     m->weights ? json_integer(m->size) : json_null());
    for (int i = 0; i < d->n; i++) {
        json_array_append_new(weights, m->weights ? json_real(m->weights[i]) : json_integer(m->sizes[i]));
        ERR_RETURN(part_describe(d->parts[i], &one));
        json_array_append_new(datasets, one);
    }
    return ERR_OK;
}

static Err build(BlendedDataset *d, const Mix *m, double surplus) {
    d->dataset = npy_new(NPY_I16, m->size, 0);
    d->sample = npy_new(NPY_I64, m->size, 0);
    int16_t *dataset = d->dataset.data;
    int64_t *sample = d->sample.data;
    if (m->weights)
        blend_indices(m->weights, d->n, m->size, dataset, sample);
    else
        blend_indices_exhaustive(m->sizes, d->n, dataset, sample);
    for (int64_t i = 0; i < m->size; i++)
        if (sample[i] >= m->sizes[dataset[i]])
            return err_user(
                "the %s blend needs more than the %" PRId64
                " samples of '%s'; increase --mid-level-dataset-surplus, which is %g, by a factor of 2 to 10",
                SPLIT_NAMES[d->parts[0]->split], m->sizes[dataset[i]], d->parts[dataset[i]]->source->prefix,
                surplus);
    return ERR_OK;
}

/* Returns true if arrays from disk can belong to this blend: they must have the correct size, and list each
 * dataset's samples in order. */
static bool valid(const BlendedDataset *d, const Mix *m) {
    if (d->dataset.type != NPY_I16 || d->sample.type != NPY_I64 || d->dataset.columns || d->sample.columns ||
        d->dataset.rows != m->size || d->sample.rows != m->size)
        return false;
    int64_t *drawn = mem_zero((size_t)d->n, sizeof *drawn);
    bool ok = true;
    for (int64_t i = 0; ok && i < m->size; i++) {
        int64_t k = npy_at(&d->dataset, i);
        ok = k >= 0 && k < d->n && npy_at(&d->sample, i) == drawn[k]++ && drawn[k] <= m->sizes[k];
    }
    free(drawn);
    return ok;
}

enum { DESCRIPTION, DATASET, SAMPLE, CACHE_FILES };
static const char *const CACHE_NAMES[CACHE_FILES] = {"description.txt", "dataset_index.npy",
                                                     "dataset_sample_index.npy"};

static bool blended_dataset_load(BlendedDataset *d, const Mix *m, char *const paths[CACHE_FILES],
                                 const Str *description) {
    if (cache_describes(paths[DESCRIPTION], description) && !npy_open(paths[DATASET], &d->dataset).code &&
        !npy_open(paths[SAMPLE], &d->sample).code && valid(d, m))
        return true;
    npy_free(&d->dataset);
    npy_free(&d->sample);
    return false;
}

static Err save(const BlendedDataset *d, const char *dir, char *const paths[CACHE_FILES],
                const Str *description) {
    ERR_RETURN(file_mkdirs(dir));
    ERR_RETURN(file_write_atomic(paths[DESCRIPTION], description->s, description->len));
    ERR_RETURN(npy_save(paths[DATASET], &d->dataset));
    return npy_save(paths[SAMPLE], &d->sample);
}

static Err load_or_build(BlendedDataset *d, const Mix *m, double surplus) {
    const char *dir = d->parts[0]->config->cache_dir;
    if (!dir) return build(d, m, surplus);
    Str text = {0};
    json_t *description;
    Err e = describe(d, m, &description);
    char md5[33], *paths[CACHE_FILES],
        *name = mem_printf("BlendedDataset-%s", SPLIT_NAMES[d->parts[0]->split]);
    description_print(description, &text, md5);
    for (int i = 0; i < CACHE_FILES; i++) paths[i] = cache_path(dir, md5, name, CACHE_NAMES[i]);
    free(name);
    if (!e.code && !blended_dataset_load(d, m, paths, &text)) {
        e = build(d, m, surplus);
        if (!e.code && !d->parts[0]->config->read_only) e = save(d, dir, paths, &text);
    }
    for (int i = 0; i < CACHE_FILES; i++) free(paths[i]);
    str_free(&text);
    return e;
}

/* Computes the blend's size and weights. Its datasets must be open. */
static Err mix(const BlendedDataset *d, const double *weights, int64_t total, Mix *m) {
    m->sizes = mem_zero((size_t)d->n, sizeof *m->sizes);
    int64_t sum = 0;
    for (int i = 0; i < d->n; i++) {
        m->sizes[i] = d->parts[i]->samples;
        m->size += weights ? blend_target(total, weights[i]) : 0;
        sum += m->sizes[i];
        if (!weights && !m->sizes[i])
            return err_user("'%s' has too few tokens for one %s sample; remove the dataset from the blend",
                            d->parts[i]->source->prefix, SPLIT_NAMES[d->parts[0]->split]);
    }
    if (!weights) m->size = total >= 0 && total < sum ? total : sum;
    if (total < 0) return ERR_OK;
    m->weights = mem_zero((size_t)d->n, sizeof *m->weights);
    for (int i = 0; i < d->n; i++) m->weights[i] = weights ? weights[i] : (double)m->sizes[i];
    blend_normalize(m->weights, d->n); /* normalized a second time, as in Megatron-LM */
    return ERR_OK;
}

static Err open_parts(const DatasetKind *kind, const TokenSource *sources, const double *weights,
                      const DataConfig *config, DataSplit split, const SplitRange *range, int64_t total,
                      double surplus, bool blend, BlendedDataset *out) {
    for (int i = 0; i < out->n; i++) {
        DatasetPart request = {.kind = kind, .source = &sources[i], .config = config, .split = split};
        request.num_samples = weights ? blend_request(total, weights[i], surplus) : blend ? -1 : total;
        split_elements(range, kind->by_document ? sources[i].documents : sources[i].sequences, &request.begin,
                       &request.end);
        ERR_RETURN(part_open(&request, &out->parts[i]));
    }
    return ERR_OK;
}

Err blended_open(const DatasetKind *kind, const TokenSource *sources, int n, const double *weights,
                 const DataConfig *config, DataSplit split, const SplitRange *range, int64_t total,
                 double surplus, BlendedDataset *out) {
    *out = (BlendedDataset){0};
    if (weights && total < 0)
        return err_user("the %s datasets have weights but no number of samples to draw; remove the weights "
                        "or set a number",
                        SPLIT_NAMES[split]);
    bool blend = n > 1 || weights;
    *out = (BlendedDataset){.n = n, .parts = mem_zero((size_t)n, sizeof *out->parts)};
    Mix m = {0};
    Err e = open_parts(kind, sources, weights, config, split, range, total, surplus, blend, out);
    if (!e.code && blend) e = mix(out, weights, total, &m);
    if (!e.code && blend) e = load_or_build(out, &m, surplus);
    free(m.weights), free(m.sizes);
    if (e.code) blended_close(out);
    return e;
}

void blended_close(BlendedDataset *d) {
    for (int i = 0; i < d->n; i++) part_close(d->parts[i]);
    free(d->parts);
    npy_free(&d->dataset);
    npy_free(&d->sample);
    *d = (BlendedDataset){0};
}

int64_t blended_length(const BlendedDataset *d) {
    return is_blend(d) ? d->dataset.rows : d->parts[0]->samples;
}

Err blended_get(const BlendedDataset *d, int64_t index, Sample *out) {
    if (!is_blend(d)) return part_get(d->parts[0], index, out);
    return part_get(d->parts[npy_at(&d->dataset, index)], npy_at(&d->sample, index), out);
}
