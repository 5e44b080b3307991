#include "data/gpt_dataset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/describe.h"
#include "data/md5.h"

enum { MAX_SEQUENCE = 1 << 28 };

static const char *source_name(const GptSource *s) { return s->prefix ? s->prefix : "mock data"; }
static const char *class_name(const GptDataset *d) {
    return d->source->prefix ? "GPTDataset" : "MockGPTDataset";
}

/* [[0, 0.969], [0.969, 0.999], null]: upstream the first boundary is the integer 0, not a float. */
static void describe_ranges(const SplitRange *ranges, int depth, Str *out) {
    str_puts(out, "[");
    for (int i = 0; i < SPLIT_COUNT; i++) {
        str_puts(out, i ? "," : "");
        describe_newline(out, depth + 1);
        if (!ranges[i].used) {
            str_puts(out, "null");
            continue;
        }
        str_puts(out, "[");
        describe_newline(out, depth + 2);
        if (i)
            describe_double(out, ranges[i].low);
        else
            str_puts(out, "0");
        str_puts(out, ",");
        describe_newline(out, depth + 2);
        describe_double(out, ranges[i].high);
        describe_newline(out, depth + 1);
        str_puts(out, "]");
    }
    describe_newline(out, depth);
    str_puts(out, "]");
}

static void describe_key(Str *out, const char *key, int depth) {
    describe_newline(out, depth);
    str_printf(out, "\"%s\": ", key);
}

static void describe_text(Str *out, const char *text) {
    if (text)
        describe_string(out, text);
    else
        str_puts(out, "null");
}

Err gpt_dataset_describe(const GptDataset *d, int depth, Str *out) {
    const GptConfig *c = d->config;
    str_puts(out, "{");
    describe_key(out, "class", depth + 1);
    str_printf(out, "\"%s\",", class_name(d));
    describe_key(out, "dataset_path", depth + 1);
    describe_text(out, d->source->prefix);
    str_puts(out, ",");
    describe_key(out, "num_samples", depth + 1);
    if (d->num_samples < 0)
        str_puts(out, "null,");
    else
        str_printf(out, "%" PRId64 ",", d->num_samples);
    describe_key(out, "index_split", depth + 1);
    str_printf(out, "\"%s\",", SPLIT_NAMES[d->split]);
    describe_key(out, "random_seed", depth + 1);
    str_printf(out, "%" PRIu32 ",", c->seed);
    describe_key(out, "sequence_length", depth + 1);
    str_printf(out, "%" PRId64 ",", c->sequence_length);
    describe_key(out, "split", depth + 1);
    describe_text(out, c->split);
    str_puts(out, ",");
    describe_key(out, "split_matrix", depth + 1);
    if (c->ranges)
        describe_ranges(c->ranges, depth + 1, out);
    else
        str_puts(out, "null");
    str_puts(out, ",");
    describe_key(out, "tokenizer", depth + 1);
    if (c->tokenizer_json)
        ERR_RETURN(describe_object(out, c->tokenizer_json, depth + 1));
    else
        str_puts(out, "null");
    describe_newline(out, depth);
    str_puts(out, "}");
    return ERR_OK;
}

char *gpt_cache_path(const char *dir, const char *md5, const char *class_name, DataSplit split,
                     const char *what) {
    return mem_printf("%s/%s-%s-%s-%s", dir, md5, class_name, SPLIT_NAMES[split], what);
}

bool gpt_cache_describes(const char *path, const Str *description) {
    Str stored = {0};
    bool same = !file_read(path, &stored).code && stored.len == description->len &&
                !memcmp(stored.s, description->s, stored.len);
    str_free(&stored);
    return same;
}

enum { DESCRIPTION, DOCUMENT, SAMPLE, SHUFFLE, CACHE_FILES };
static const char *const CACHE_NAMES[CACHE_FILES] = {"description.txt", "document_index.npy",
                                                     "sample_index.npy", "shuffle_index.npy"};

/* False, with no memory held, if any file is missing, truncated or foreign, or has another description. */
static bool load_cache(GptDataset *d, char *const paths[CACHE_FILES], const Str *description) {
    GptIndex x = {0};
    if (gpt_cache_describes(paths[DESCRIPTION], description) &&
        !npy_open(paths[DOCUMENT], &x.document).code && !npy_open(paths[SAMPLE], &x.sample).code &&
        !npy_open(paths[SHUFFLE], &x.shuffle).code && gpt_index_valid(&d->plan, &x)) {
        d->index = x;
        return true;
    }
    gpt_index_free(&x);
    return false;
}

static Err save_cache(const GptDataset *d, const char *dir, char *const paths[CACHE_FILES],
                      const Str *description) {
    Err e = file_mkdirs(dir);
    if (!e.code) e = file_write_atomic(paths[DESCRIPTION], description->s, description->len);
    if (!e.code) e = npy_save(paths[DOCUMENT], &d->index.document);
    if (!e.code) e = npy_save(paths[SAMPLE], &d->index.sample);
    if (!e.code) e = npy_save(paths[SHUFFLE], &d->index.shuffle);
    if (!e.code) return ERR_OK;
    return err_user("the index cache cannot be written: %s; specify a writable folder with --data-cache-path",
                    e.msg);
}

static Err load_or_build(GptDataset *d, const char *dir) {
    Str description = {0};
    Err e = gpt_dataset_describe(d, 0, &description);
    if (!e.code) {
        char md5[33], *paths[CACHE_FILES];
        md5_hex(description.s, description.len, md5);
        for (int i = 0; i < CACHE_FILES; i++)
            paths[i] = gpt_cache_path(dir, md5, class_name(d), d->split, CACHE_NAMES[i]);
        if (!load_cache(d, paths, &description)) {
            d->index = gpt_index_build(&d->plan, d->config->seed);
            e = save_cache(d, dir, paths, &description);
        }
        for (int i = 0; i < CACHE_FILES; i++) free(paths[i]);
    }
    str_free(&description);
    return e;
}

Err gpt_dataset_open(const GptSource *source, const GptConfig *c, DataSplit split, int64_t begin, int64_t end,
                     int64_t num_samples, GptDataset *out) {
    if (c->sequence_length < 1 || c->sequence_length > MAX_SEQUENCE)
        return err_user("the sequence length is %" PRId64 "; it must be 1..%d", c->sequence_length,
                        MAX_SEQUENCE);
    *out = (GptDataset){.source = source, .config = c, .split = split, .num_samples = num_samples};
    bool drop_last = split != SPLIT_VALID || !c->keep_last_partial_validation;
    Err e = gpt_plan(source, begin, end, num_samples, c->sequence_length, drop_last, &out->plan);
    if (e.code) return err_user("the %s split of '%s': %s", SPLIT_NAMES[split], source_name(source), e.msg);
    char *dir = c->cache_dir     ? mem_strdup(c->cache_dir)
                : source->prefix ? mem_printf("%s/cache/GPTDataset_indices", source->prefix)
                                 : NULL;
    if (dir)
        e = load_or_build(out, dir);
    else
        out->index = gpt_index_build(&out->plan, c->seed);
    free(dir);
    if (e.code) gpt_dataset_close(out);
    return e;
}

void gpt_dataset_close(GptDataset *d) {
    gpt_index_free(&d->index);
    *d = (GptDataset){0};
}

int64_t gpt_dataset_length(const GptDataset *d) { return d->plan.samples; }

static void sample_row(const GptDataset *d, int64_t row, int64_t *position, int64_t *offset) {
    const NpyArray *a = &d->index.sample;
    if (a->type == NPY_I64)
        *position = ((const int64_t *)a->data)[2 * row], *offset = ((const int64_t *)a->data)[2 * row + 1];
    else
        *position = ((const int32_t *)a->data)[2 * row], *offset = ((const int32_t *)a->data)[2 * row + 1];
}

/* The s + 1 tokens of sample k, padded with `pad`. */
static void read_text(const GptDataset *d, int64_t k, int64_t pad, int64_t *text) {
    int64_t row = npy_at(&d->index.shuffle, k), want = d->config->sequence_length + 1, have = 0;
    int64_t position, offset, last, last_offset;
    sample_row(d, row, &position, &offset);
    sample_row(d, row + 1, &last, &last_offset);
    for (; position <= last; position++, offset = 0) {
        int64_t sequence = npy_at(&d->index.document, position);
        int64_t end = position < last ? gpt_source_length(d->source, sequence) : last_offset + 1;
        if (offset < 0)
            offset = 0; /* the single-precision sample count can exceed the last, empty sequence */
        int64_t count = end > offset ? end - offset : 0;
        CHECK(have + count <= want, "sample %" PRId64 " has %" PRId64 " tokens", k, have + count);
        gpt_source_tokens(d->source, sequence, offset, count, text + have);
        have += count;
    }
    while (have < want) text[have++] = pad;
}

static void fill_positions(const GptConfig *c, const Sample *out) {
    int64_t s = c->sequence_length, start = 0;
    for (int64_t i = 0; i < s; i++) {
        bool eod = c->eod >= 0 && out->tokens[i] == c->eod;
        out->position_ids[i] = c->reset_position_ids ? i - start : i;
        if (out->document_start) out->document_start[i] = c->reset_attention_mask ? start : 0;
        out->loss_mask[i] = c->eod_mask_loss && eod ? 0.0f : 1.0f;
        if (eod) start = i + 1;
    }
}

Err gpt_dataset_get(const GptDataset *d, int64_t k, Sample *out) {
    const GptConfig *c = d->config;
    int64_t s = c->sequence_length, *text = mem_alloc((size_t)(s + 1) * sizeof *text);
    CHECK(k >= 0 && k < gpt_dataset_length(d), "sample %" PRId64 " of %" PRId64, k, gpt_dataset_length(d));
    read_text(d, k, c->pad, text);
    memcpy(out->tokens, text, (size_t)s * sizeof *text);
    memcpy(out->labels, text + 1, (size_t)s * sizeof *text);
    fill_positions(c, out);
    for (int64_t i = 0; i < s; i++) {
        if (out->labels[i] == c->pad) out->loss_mask[i] = 0, out->labels[i] = 0;
        if (out->tokens[i] == c->pad) out->tokens[i] = 0;
    }
    Err e = ERR_OK;
    for (int64_t i = 0; i <= s && !e.code; i++)
        if (text[i] != c->pad && (text[i] < 0 || (c->vocab_size > 0 && text[i] >= c->vocab_size)))
            e = err_user("'%s' holds the token id %" PRId64 " and the vocabulary has %" PRId64
                         " ids: it was made with another tokenizer",
                         source_name(d->source), text[i], c->vocab_size);
    free(text);
    return e;
}
