#include "data/gpt_dataset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

static const GptDataset *gpt(const DatasetPart *p) { return (const GptDataset *)p; }

static bool valid(const DatasetPart *p) { return gpt_index_valid(&gpt(p)->plan, &gpt(p)->index); }

static Err build(DatasetPart *p) {
    ((GptDataset *)p)->index = gpt_index_build(&gpt(p)->plan, p->config->seed);
    return ERR_OK;
}

Err gpt_open(DatasetPart *p) {
    GptDataset *d = (GptDataset *)p;
    const int64_t s = p->config->sequence_length;
    bool drop_last = p->split != SPLIT_VALID || !p->config->keep_last_partial_validation;
    Err e = gpt_plan(p->source, p->begin, p->end, p->num_samples, s, drop_last, &d->plan);
    if (e.code) return part_error(p, e);
    p->samples = d->plan.samples, p->tokens = d->plan.tokens;
    if (p->num_samples >= 0) p->epochs = (double)p->num_samples * (double)s / (double)p->tokens;
    NpyArray *const arrays[] = {&d->index.document, &d->index.sample, &d->index.shuffle};
    return part_index(p, arrays, valid, build);
}

void gpt_close(DatasetPart *p) { gpt_index_free(&((GptDataset *)p)->index); }

static void sample_row(const GptDataset *d, int64_t row, int64_t *position, int64_t *offset) {
    const NpyArray *a = &d->index.sample;
    if (a->type == NPY_I64)
        *position = ((const int64_t *)a->data)[2 * row], *offset = ((const int64_t *)a->data)[2 * row + 1];
    else
        *position = ((const int32_t *)a->data)[2 * row], *offset = ((const int32_t *)a->data)[2 * row + 1];
}

/* Reads at most s + 1 tokens of sample k, and returns the number of tokens read. */
static int64_t read_text(const GptDataset *d, int64_t k, int64_t *text) {
    int64_t row = npy_at(&d->index.shuffle, k), want = d->part.config->sequence_length + 1, have = 0;
    int64_t position, offset, last, last_offset;
    sample_row(d, row, &position, &offset);
    sample_row(d, row + 1, &last, &last_offset);
    for (; position <= last; position++, offset = 0) {
        int64_t sequence = npy_at(&d->index.document, position);
        int64_t end = position < last ? source_length(d->part.source, sequence) : last_offset + 1;
        if (offset < 0) offset = 0; /* rounding has added a sample whose last sequence is empty */
        int64_t count = end > offset ? end - offset : 0;
        CHECK(have + count <= want, "sample %" PRId64 " has %" PRId64 " tokens", k, have + count);
        source_tokens(d->part.source, sequence, offset, count, text + have);
        have += count;
    }
    return have;
}

Err gpt_text(const DatasetPart *p, int64_t k, int64_t **text, int64_t *n) {
    const DataConfig *c = p->config;
    const int64_t whole = c->sequence_length + 1;
    int64_t *out = mem_alloc((size_t)whole * sizeof *out);
    Err e = ERR_OK;
    *n = read_text(gpt(p), k, out);
    for (int64_t i = *n; i < whole; i++) out[i] = c->pad;
    for (int64_t i = 0; i < *n && !e.code; i++)
        if (out[i] != c->pad) e = part_check_id(p, out[i], c->vocab_size);
    if (e.code)
        free(out);
    else
        *text = out;
    return e;
}

static void fill_positions(const DataConfig *c, const Sample *out) {
    int64_t s = c->sequence_length, start = 0;
    for (int64_t i = 0; i < s; i++) {
        bool eod = c->eod >= 0 && out->tokens[i] == c->eod;
        out->position_ids[i] = c->reset_position_ids ? i - start : i;
        if (out->document_start) out->document_start[i] = c->reset_attention_mask ? start : 0;
        out->loss_mask[i] = c->eod_mask_loss && eod ? 0.0f : 1.0f;
        if (eod) start = i + 1;
    }
}

void gpt_fill(const DataConfig *c, const int64_t *text, Sample *out) {
    const int64_t s = c->sequence_length;
    memcpy(out->tokens, text, (size_t)s * sizeof *text);
    memcpy(out->labels, text + 1, (size_t)s * sizeof *text);
    fill_positions(c, out);
    for (int64_t i = 0; i < s; i++) {
        if (out->labels[i] == c->pad) out->loss_mask[i] = 0, out->labels[i] = 0;
        if (out->tokens[i] == c->pad) out->tokens[i] = 0;
    }
}

static Err get(const DatasetPart *p, int64_t k, Sample *out) {
    int64_t *text, n;
    ERR_RETURN(gpt_text(p, k, &text, &n));
    gpt_fill(p->config, text, out);
    free(text);
    return ERR_OK;
}

const DatasetKind gpt_dataset = {
    .class_name = "GPTDataset",
    .size = sizeof(GptDataset),
    .fields = GPT_FIELDS,
    .mock = {.longest = 4096, .sentences = 1},
    .split_in_names = true,
    .array_names = (const char *const[]){"document_index.npy", "sample_index.npy", "shuffle_index.npy", NULL},
    .open = gpt_open,
    .close = gpt_close,
    .get = get,
};
