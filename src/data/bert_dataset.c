/* BERTMaskedWordPieceDataset (Megatron-LM core/datasets/bert_dataset.py). Every sample equals the corresponding sample
 * in Megatron-LM:
 *
 *   tokens           [CLS] A [SEP] B [SEP] with masked tokens (data/masking.h), padded with 0
 *   labels           the original token at masked positions, otherwise 0 (Megatron-LM: -1, also with weight 0)
 *   loss_mask        1 at masked positions, otherwise 0
 *   token_types      0 up to the first [SEP], then 1; 0 in the padding
 *   sentence_labels  1 if A and B are swapped (half of the samples)
 *   lengths          number of tokens before the padding
 *
 * The sentences are divided at a random boundary: A gets the sentences before it, and B those after it. While A and B
 * together are too long, tokens are removed one by one from a random end of the longer segment. Without the binary
 * head, A gets all sentences. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/masked_dataset.h"

typedef struct Segment {
    const int64_t *tokens;
    int64_t count;
} Segment;

/* Sets A and B in the order in which they appear in the sample, and sets *swapped. */
static void split_text(MaskedText *t, bool pairs, Segment *a, Segment *b, bool *swapped) {
    int64_t pivot = t->sentences;
    *swapped = false;
    if (pairs) {
        pivot = t->sentences < 3 ? 1 : 1 + (int64_t)mt19937_bounded(&t->rng, (uint64_t)t->sentences - 2);
        *swapped = mt19937_double(&t->rng) < 0.5;
    }
    const int64_t middle = t->ends[pivot - 1];
    const Segment first = {t->tokens, middle},
                  second = {t->tokens + middle, t->ends[t->sentences - 1] - middle};
    *a = *swapped ? second : first;
    *b = *swapped ? first : second;
}

static void truncate_pair(Segment *a, Segment *b, int64_t target, Mt19937 *rng) {
    while (a->count + b->count > target) {
        Segment *longer = a->count > b->count ? a : b;
        if (mt19937_double(rng) < 0.5) longer->tokens++;
        longer->count--;
    }
}

/* Writes the sample's tokens to `text`, and returns the number of tokens. */
static int64_t join(const MaskTokens *special, const Segment *a, const Segment *b, int64_t *text) {
    int64_t n = 0;
    text[n++] = special->cls;
    for (int64_t i = 0; i < a->count; i++) text[n++] = a->tokens[i];
    text[n++] = special->sep;
    if (!b->count) return n;
    for (int64_t i = 0; i < b->count; i++) text[n++] = b->tokens[i];
    text[n++] = special->sep;
    return n;
}

static void fill(const DataConfig *c, const Masking *m, const int64_t *text, const int64_t *original,
                 int64_t n, int64_t types_from, Sample *out) {
    for (int64_t i = 0; i < c->sequence_length; i++) {
        const bool real = i < n, masked = real && m->is_masked[i];
        out->tokens[i] = real && text[i] != c->pad ? text[i] : 0;
        out->labels[i] = masked && original[i] != c->pad ? original[i] : 0;
        out->loss_mask[i] = masked ? 1.0f : 0.0f;
        if (out->token_types) out->token_types[i] = real && i >= types_from;
    }
    if (out->lengths) out->lengths[0] = n;
}

static Err get(const DatasetPart *p, int64_t k, Sample *out) {
    const MaskedConfig *c = masked_config(p);
    MaskedText t;
    ERR_RETURN(masked_text(p, k, &t));
    Segment a, b;
    bool swapped;
    split_text(&t, c->binary_head, &a, &b, &swapped);
    truncate_pair(&a, &b, t.target, &t.rng);
    const size_t bytes = (size_t)p->config->sequence_length * sizeof(int64_t);
    int64_t *text = mem_alloc(bytes), *original = mem_alloc(bytes);
    const int64_t n = join(&c->tokens, &a, &b, text);
    memcpy(original, text, (size_t)n * sizeof *text);
    Masking m = masking_new(n);
    masking_choose(&m, &((const MaskedDataset *)p)->masking, &c->tokens, text, n, t.target, &t.rng);
    fill(p->config, &m, text, original, n, a.count + 2, out);
    if (out->sentence_labels) out->sentence_labels[0] = swapped;
    masking_free(&m);
    free(text), free(original);
    masked_text_free(&t);
    return ERR_OK;
}

static Err open_part(DatasetPart *p) {
    const MaskedConfig *c = masked_config(p);
    ERR_RETURN(masked_need(p, c->tokens.cls, "[CLS]"));
    ERR_RETURN(masked_need(p, c->tokens.sep, "[SEP]"));
    ERR_RETURN(masked_need(p, c->tokens.mask, "[MASK]"));
    const MaskingConfig masking = {.probability = c->mask_prob, .max_ngram = 3, .random_words = true};
    return masked_open(p, masking, 3, c->binary_head ? 2 : 1);
}

static void describe(const DatasetPart *p, json_t *members) {
    masked_describe(p, members);
    json_object_set_new(members, "classification_head", json_boolean(masked_config(p)->binary_head));
}

const DatasetKind bert_dataset = {
    .class_name = "BERTMaskedWordPieceDataset",
    .size = sizeof(MaskedDataset),
    .config_size = sizeof(MaskedConfig),
    .fields = FIELD_SET(tokens) | FIELD_SET(labels) | FIELD_SET(loss_mask) | FIELD_SET(token_types) |
              FIELD_SET(position_ids) | FIELD_SET(lengths) | FIELD_SET(sentence_labels),
    .mock = {.longest = 128, .sentences = 8},
    .by_document = true,
    .array_names = (const char *const[]){"sample_index.npy", NULL},
    .open = open_part,
    .close = masked_close,
    .get = get,
    .describe = describe,
};
