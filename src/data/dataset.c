#include "data/dataset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "data/md5.h"

#define DATASET(name) extern const DatasetKind name##_dataset;
#include "data/datasets.def"
#undef DATASET

enum { MAX_SEQUENCE = 1 << 28, MAX_ARRAYS = 3 };

const DatasetKind *dataset_kind(DatasetId id) {
    static const DatasetKind *const KINDS[DATASETS] = {
#define DATASET(name) &name##_dataset,
#include "data/datasets.def"
#undef DATASET
    };
    return KINDS[id];
}

Err part_open(const DatasetPart *request, DatasetPart **out) {
    const DataConfig *c = request->config;
    if (c->sequence_length < 1 || c->sequence_length > MAX_SEQUENCE)
        return err_user("the sequence length is %" PRId64 "; it must be from 1 to %d", c->sequence_length,
                        MAX_SEQUENCE);
    DatasetPart *p = mem_zero(1, request->kind->size);
    *p = *request;
    p->shape = (SampleShape){.positions = c->sequence_length, .fields = p->kind->fields};
    Err e = p->kind->open(p);
    if (e.code)
        part_close(p);
    else
        *out = p;
    return e;
}

void part_close(DatasetPart *p) {
    if (p) p->kind->close(p);
    free(p);
}

Err part_get(const DatasetPart *p, int64_t k, Sample *out) {
    CHECK(k >= 0 && k < p->samples, "sample %" PRId64 " of %" PRId64, k, p->samples);
    return p->kind->get(p, k, out);
}

Err part_error(const DatasetPart *p, Err e) {
    return err_user("the %s split of '%s': %s", SPLIT_NAMES[p->split], source_name(p->source), e.msg);
}

Err part_check_id(const DatasetPart *p, int64_t id, int64_t vocab_size) {
    if (id >= 0 && (vocab_size <= 0 || id < vocab_size)) return ERR_OK;
    return err_user("'%s' contains the token id %" PRId64 ", but the vocabulary has only %" PRId64
                    " tokens: the dataset was made with another tokenizer",
                    source_name(p->source), id, vocab_size);
}

/* Returns the dataset's class name. For mock data, the name begins with Mock, as in Megatron-LM's
 * MockGPTDataset. */
static char *class_name(const DatasetPart *p) {
    return mem_printf("%s%s", p->source->prefix ? "" : "Mock", p->kind->class_name);
}

/* Returns a value such as [[0, 0.969], [0.969, 0.999], null]. As in Megatron-LM, the first boundary is the
 * integer 0, not a float. */
static json_t *describe_ranges(const SplitRange *ranges) {
    if (!ranges) return json_null();
    json_t *all = json_array();
    for (int i = 0; i < SPLIT_COUNT; i++) {
        json_t *low = i ? json_real(ranges[i].low) : json_integer(0);
        json_array_append_new(all, ranges[i].used ? json_pack("[O, f]", low, ranges[i].high) : json_null());
        json_decref(low);
    }
    return all;
}

static json_t *describe_text(const char *text) { return text ? json_string_nocheck(text) : json_null(); }

Err part_describe(const DatasetPart *p, json_t **out) {
    const DataConfig *c = p->config;
    const char *json = c->tokenizer_json;
    json_t *tokenizer = json ? json_loads(json, JSON_REJECT_DUPLICATES, NULL) : json_null();
    if (json && !json_is_object(tokenizer)) {
        json_decref(tokenizer);
        return err_user("the tokenizer's identifiers '%.200s' are not a JSON object", json);
    }
    char *name = class_name(p);
    *out = json_pack("{s:s, s:o, s:o, s:s, s:I, s:I, s:o, s:o, s:o}", "class", name, "dataset_path",
                     describe_text(p->source->prefix), "num_samples",
                     p->num_samples < 0 ? json_null() : json_integer(p->num_samples), "index_split",
                     SPLIT_NAMES[p->split], "random_seed", (json_int_t)c->seed, "sequence_length",
                     (json_int_t)c->sequence_length, "split", describe_text(c->split), "split_matrix",
                     describe_ranges(c->ranges), "tokenizer", tokenizer);
    free(name);
    if (p->kind->describe) p->kind->describe(p, *out);
    return ERR_OK;
}

void description_print(json_t *description, Str *text, char md5[33]) {
    json_print(text, description, 4, 0);
    json_decref(description);
    md5_hex(text->s, text->len, md5);
}

char *cache_path(const char *dir, const char *md5, const char *name, const char *what) {
    return mem_printf("%s/%s-%s-%s", dir, md5, name, what);
}

bool cache_describes(const char *path, const Str *description) {
    Str stored = {0};
    bool same = !file_read(path, &stored).code && stored.len == description->len &&
                !memcmp(stored.s, description->s, stored.len);
    str_free(&stored);
    return same;
}

/* The files that cache a part's index. */
typedef struct Cache {
    char *dir, *description_path, *paths[MAX_ARRAYS];
    Str description;
    int arrays;
} Cache;

static Err cache_open(const DatasetPart *p, Cache *c) {
    char md5[33], *name = class_name(p);
    if (p->config->cache_dir)
        c->dir = mem_strdup(p->config->cache_dir);
    else
        c->dir = mem_printf("%s/cache/%s_indices", p->source->prefix, p->kind->class_name);
    if (p->kind->split_in_names) {
        char *class = name;
        name = mem_printf("%s-%s", class, SPLIT_NAMES[p->split]);
        free(class);
    }
    json_t *description = json_null();
    const Err e = part_describe(p, &description);
    description_print(description, &c->description, md5);
    c->description_path = cache_path(c->dir, md5, name, "description.txt");
    for (; p->kind->array_names[c->arrays]; c->arrays++)
        c->paths[c->arrays] = cache_path(c->dir, md5, name, p->kind->array_names[c->arrays]);
    free(name);
    return e;
}

static void cache_close(Cache *c) {
    for (int i = 0; i < c->arrays; i++) free(c->paths[i]);
    free(c->dir), free(c->description_path);
    str_free(&c->description);
}

/* Returns false and frees the arrays if a file is missing, truncated or invalid, or if the description
 * differs. */
static bool cache_load(const DatasetPart *p, const Cache *c, NpyArray *const *arrays,
                       bool (*valid)(const DatasetPart *)) {
    bool ok = cache_describes(c->description_path, &c->description);
    for (int i = 0; i < c->arrays && ok; i++) ok = !npy_open(c->paths[i], arrays[i]).code;
    ok = ok && valid(p);
    for (int i = 0; i < c->arrays && !ok; i++) npy_free(arrays[i]);
    return ok;
}

static Err cache_save(const Cache *c, NpyArray *const *arrays, bool read_only) {
    Err e = read_only ? file_check_folder(c->dir) : file_mkdirs(c->dir);
    if (!e.code && !read_only)
        e = file_write_atomic(c->description_path, c->description.s, c->description.len);
    for (int i = 0; i < c->arrays && !e.code && !read_only; i++) e = npy_save(c->paths[i], arrays[i]);
    if (!e.code) return ERR_OK;
    return err_user("the index cache cannot be written: %s; specify a writable folder with --data-cache-path",
                    e.msg);
}

Err part_index(DatasetPart *p, NpyArray *const *arrays, bool (*valid)(const DatasetPart *),
               Err (*build)(DatasetPart *)) {
    if (!p->config->cache_dir && !p->source->prefix) return build(p);
    Cache c = {0};
    Err e = cache_open(p, &c);
    if (!e.code && !cache_load(p, &c, arrays, valid)) {
        e = build(p);
        if (!e.code) e = cache_save(&c, arrays, p->config->read_only);
    }
    cache_close(&c);
    return e;
}
