/* The encoder-decoder T5. As in Megatron-LM core/models/T5/t5_model.py, the encoder is a stack like BERT's, and
 * the decoder is a stack like GPT's with cross-attention in each layer. Both stacks share one embedding table.
 * Hugging Face's T5 (Raffel et al., 2020) has relative positions, RMSNorm and no biases. */
#include "models/model.h"
#include "models/specs.h"

enum { ENCODER, DECODER }; /* stacks */

static const FeedField ENCODER_FIELDS[] = {{FIELD_tokens, FIELD_encoder_tokens, 0},
                                           {FIELD_position_ids, FIELD_encoder_position_ids, 0},
                                           {FIELD_lengths, FIELD_encoder_lengths, 0}};

static const char *decoder_letters(const Config *c, int64_t layer) {
    (void)c, (void)layer;
    return "*x-";
}

void plan_t5(const Config *c, Arena *arena, ModelPlan *plan) {
    const int64_t below = c->num_layers;
    const EmbeddingSpec *words = spec_words(c, arena);
    EmbeddingSpec *decoder_words = spec_words(c, arena);
    /* a separate dropout site, so that the decoder's dropout masks differ from the encoder's */
    decoder_words->dropout_site = "decoder.embedding.dropout";
    const StackShape encoder = {.name = "encoder",
                                .input = {&words_input, words},
                                .positions = c->seq_length,
                                .layers = below,
                                .relative = "encoder_relative_pos_emb.relative_attention_bias.weight"},
                     decoder = {.name = "decoder",
                                .input = {&words_input, decoder_words},
                                .positions = c->decoder_seq_length,
                                .layers = config_layers(c) - below,
                                .below = below,
                                .letters = decoder_letters,
                                .relative = "decoder_relative_pos_emb.relative_attention_bias.weight",
                                .causal = true,
                                .encoder_positions = c->seq_length};
    *plan = (ModelPlan){
        .sample = {.positions = c->decoder_seq_length,
                   .encoder = c->seq_length,
                   .fields = FIELD_SET(tokens) | FIELD_SET(labels) | FIELD_SET(position_ids) |
                             FIELD_SET(loss_mask) | FIELD_SET(encoder_tokens) |
                             FIELD_SET(encoder_position_ids) | FIELD_SET(encoder_lengths)},
        .stack = {[ENCODER] = spec_stack(c, &encoder, arena), [DECODER] = spec_stack(c, &decoder, arena)},
        .n_stacks = 2,
        .head = {spec_lm_head(c, words, arena)},
        .n_heads = 1,
    };
    plan->head[0].stack = DECODER;
    plan->stack[ENCODER].fields = ENCODER_FIELDS;
    plan->stack[ENCODER].n_fields = sizeof ENCODER_FIELDS / sizeof *ENCODER_FIELDS;
}
