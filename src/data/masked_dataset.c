#include "data/masked_dataset.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

static const MaskedDataset *masked(const DatasetPart *p) { return (const MaskedDataset *)p; }

static bool valid(const DatasetPart *p) { return masked_index_valid(&masked(p)->plan, &masked(p)->index); }

static Err build(DatasetPart *p) {
    ((MaskedDataset *)p)->index = masked_index_build(&masked(p)->plan);
    return ERR_OK;
}

Err masked_need(const DatasetPart *p, int64_t token, const char *name) {
    if (token >= 0) return ERR_OK;
    return err_user("a %s needs the token %s, but the tokenizer does not have it; use a tokenizer with this "
                    "token, such as a WordPiece tokenizer",
                    p->kind->class_name, name);
}

/* Rejects a sequence length for which no token would be masked. masking_choose masks at most the fraction `probability`
 * of a text's tokens. It therefore masks nothing if the text has fewer than 1 / probability tokens. */
static Err check_share(const DatasetPart *p, double probability, int64_t reserved) {
    const int64_t length = p->config->sequence_length, text = length - reserved;
    if (probability * (double)text >= 1) return ERR_OK;
    return err_user("a %s would mask no token: a sequence of %" PRId64 " tokens has at most %" PRId64
                    " tokens of text, and %g times that number is less than 1; set --seq-length to at least "
                    "%.0f, or raise --mask-prob",
                    p->kind->class_name, length, text, probability, ceil(1 / probability) + (double)reserved);
}

Err masked_open(DatasetPart *p, MaskingConfig masking, int64_t reserved, int32_t min_sentences) {
    MaskedDataset *d = (MaskedDataset *)p;
    const DataConfig *c = p->config;
    if (c->sequence_length < reserved + 2)
        return err_user("the sequence length is %" PRId64 "; a %s needs at least %" PRId64,
                        c->sequence_length, p->kind->class_name, reserved + 2);
    ERR_RETURN(check_share(p, masking.probability, reserved));
    d->masking = masking;
    d->plan = (MaskedPlan){.source = p->source,
                           .begin = p->begin,
                           .end = p->end,
                           .num_samples = p->num_samples,
                           .max_length = (int32_t)(c->sequence_length - reserved),
                           .min_sentences = min_sentences,
                           .short_probability = masked_config(p)->short_seq_prob,
                           .seed = c->seed};
    Err e = masked_plan(&d->plan);
    if (e.code) return part_error(p, e);
    p->samples = d->plan.samples, p->tokens = d->plan.tokens;
    if (p->num_samples >= 0) p->epochs = (double)p->num_samples / (double)d->plan.samples_per_epoch;
    NpyArray *const arrays[] = {&d->index};
    return part_index(p, arrays, valid, build);
}

void masked_close(DatasetPart *p) { npy_free(&((MaskedDataset *)p)->index); }

void masked_describe(const DatasetPart *p, json_t *members) {
    const MaskingConfig *m = &masked(p)->masking;
    json_object_update_new(members, json_pack("{s:f, s:f, s:i, s:b, s:b, s:b, s:b}", "masking_probability",
                                              m->probability, "short_sequence_probability",
                                              masked_config(p)->short_seq_prob, "masking_max_ngram",
                                              m->max_ngram, "masking_do_full_word", true,
                                              "masking_do_permutation", false, "masking_use_longer_ngrams",
                                              false, "masking_use_geometric_distribution", m->geometric));
}

Err masked_text(const DatasetPart *p, int64_t k, MaskedText *out) {
    const uint32_t *row = (const uint32_t *)masked(p)->index.data + 3 * k;
    const int64_t first = row[0], n = (int64_t)row[1] - first;
    *out = (MaskedText){.sentences = n, .target = row[2], .ends = mem_zero((size_t)n, sizeof *out->ends)};
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) out->ends[i] = total += source_length(p->source, first + i);
    out->tokens = mem_zero((size_t)total, sizeof *out->tokens);
    for (int64_t i = 0, at = 0; i < n; at = out->ends[i++])
        source_tokens(p->source, first + i, 0, out->ends[i] - at, out->tokens + at);
    mt19937_seed(&out->rng, (uint32_t)(p->config->seed + (uint64_t)k));
    Err e = ERR_OK;
    for (int64_t i = 0; i < total && !e.code; i++)
        e = part_check_id(p, out->tokens[i], masked_config(p)->tokens.vocab_size);
    if (e.code) masked_text_free(out);
    return e;
}

void masked_text_free(MaskedText *t) {
    free(t->tokens), free(t->ends);
    *t = (MaskedText){0};
}
