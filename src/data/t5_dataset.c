/* T5MaskedWordPieceDataset (Megatron-LM core/datasets/t5_dataset.py). Every sample equals the corresponding sample in
 * Megatron-LM. Spans of words are masked (data/masking.h). Sentinel i is the i-th extra token in the vocabulary.
 *
 *   encoder_tokens   the text with each span replaced by its sentinel, padded with 0
 *   tokens           [BOS], then each sentinel and the text of its span, padded with 0
 *   labels           the tokens without [BOS], then [EOS], padded with 0 (Megatron-LM: -1; both have weight 0)
 *   loss_mask        1 at positions with a label, otherwise 0
 *   lengths, encoder_lengths  numbers of tokens before the padding */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/masked_dataset.h"

typedef struct Row {
    int64_t *tokens;
    int64_t count;
} Row;

static void put(Row *r, int64_t token) { r->tokens[r->count++] = token; }

static Err check_room(const DatasetPart *p, const Masking *m) {
    const MaskedConfig *c = masked_config(p);
    const int64_t decoder = 1 + m->masked + m->num_spans;
    if (m->num_spans > c->tokens.num_sentinels)
        return err_user("a sample has %" PRId64 " masked spans, but the tokenizer has only %" PRId64
                        " sentinels; raise --vocab-extra-ids, or lower --mask-prob",
                        m->num_spans, c->tokens.num_sentinels);
    if (decoder > c->decoder_sequence_length)
        return err_user("a sample's masked spans need %" PRId64 " tokens, but the decoder has %" PRId64
                        " positions; raise --decoder-seq-length, or lower --mask-prob",
                        decoder, c->decoder_sequence_length);
    return ERR_OK;
}

/* Divides a text into encoder tokens and decoder tokens. The decoder's tokens are [BOS], each sentinel with
 * its span, and [EOS]. As in Megatron-LM, drops tokens that are inside a span but belong to no word. */
static void divide(const MaskTokens *special, const Masking *m, const int64_t *text, int64_t n, Row *encoder,
                   Row *decoder) {
    int64_t next = 0;
    put(decoder, special->bos);
    for (int64_t i = 0; i < m->num_spans; i++) {
        const MaskSpan span = m->spans[i];
        while (next < m->tokens[span.begin]) put(encoder, text[next++]);
        put(encoder, special->sentinels[i]);
        put(decoder, special->sentinels[i]);
        for (int64_t k = 0; k < span.count; k++) put(decoder, text[m->tokens[span.begin + k]]);
        next = m->tokens[span.begin + span.count - 1] + 1;
    }
    while (next < n) put(encoder, text[next++]);
    put(decoder, special->eos);
}

static int64_t padded(const DataConfig *c, const Row *r, int64_t i) {
    return i < r->count && r->tokens[i] != c->pad ? r->tokens[i] : 0;
}

static void fill(const DatasetPart *p, const Row *encoder, const Row *decoder, Sample *out) {
    const DataConfig *c = p->config;
    const Row inputs = {decoder->tokens, decoder->count - 1},
              labels = {decoder->tokens + 1, decoder->count - 1};
    for (int64_t i = 0; i < masked_config(p)->decoder_sequence_length; i++) {
        out->tokens[i] = padded(c, &inputs, i);
        out->labels[i] = padded(c, &labels, i);
        out->loss_mask[i] = i < labels.count ? 1.0f : 0.0f;
    }
    for (int64_t i = 0; i < c->sequence_length; i++) out->encoder_tokens[i] = padded(c, encoder, i);
    if (out->lengths) out->lengths[0] = inputs.count;
    if (out->encoder_lengths) out->encoder_lengths[0] = encoder->count;
}

static Err get(const DatasetPart *p, int64_t k, Sample *out) {
    const MaskedConfig *c = masked_config(p);
    MaskedText t;
    ERR_RETURN(masked_text(p, k, &t));
    const int64_t total = t.ends[t.sentences - 1], n = total < t.target ? total : t.target;
    Masking m = masking_new(n);
    masking_choose(&m, &((const MaskedDataset *)p)->masking, &c->tokens, t.tokens, n, t.target, &t.rng);
    Err e = check_room(p, &m);
    if (!e.code) {
        Row encoder = {mem_zero((size_t)n, sizeof(int64_t)), 0},
            decoder = {mem_zero((size_t)(2 + m.masked + m.num_spans), sizeof(int64_t)), 0};
        divide(&c->tokens, &m, t.tokens, n, &encoder, &decoder);
        fill(p, &encoder, &decoder, out);
        free(encoder.tokens), free(decoder.tokens);
    }
    masking_free(&m);
    masked_text_free(&t);
    return e;
}

static Err open_part(DatasetPart *p) {
    const MaskedConfig *c = masked_config(p);
    ERR_RETURN(masked_need(p, c->tokens.bos, "<s>, [CLS] or <pad>"));
    ERR_RETURN(masked_need(p, c->tokens.eos, "[EOS] or [SEP]"));
    if (!c->tokens.num_sentinels)
        return err_user("a %s needs sentinel tokens; set --vocab-extra-ids", p->kind->class_name);
    const MaskingConfig masking = {.probability = c->mask_prob, .max_ngram = 10, .geometric = true};
    p->shape.positions = c->decoder_sequence_length, p->shape.encoder = p->config->sequence_length;
    return masked_open(p, masking, 2, 1);
}

static void describe(const DatasetPart *p, json_t *members) {
    masked_describe(p, members);
    json_object_set_new(members, "sequence_length_decoder",
                        json_integer(masked_config(p)->decoder_sequence_length));
}

const DatasetKind t5_dataset = {
    .class_name = "T5MaskedWordPieceDataset",
    .size = sizeof(MaskedDataset),
    .config_size = sizeof(MaskedConfig),
    .fields = FIELD_SET(tokens) | FIELD_SET(labels) | FIELD_SET(loss_mask) | FIELD_SET(position_ids) |
              FIELD_SET(lengths) | FIELD_SET(encoder_tokens) | FIELD_SET(encoder_position_ids) |
              FIELD_SET(encoder_lengths),
    .mock = {.longest = 128, .sentences = 8},
    .by_document = true,
    .array_names = (const char *const[]){"sample_index.npy", NULL},
    .open = open_part,
    .close = masked_close,
    .get = get,
    .describe = describe,
};
