/* The encoder-decoder T5. Megatron-LM core/models/T5/t5_model.py: the encoder is BERT's stack, the decoder GPT's with
 * cross-attention to the encoder's output in each layer; both begin with the same embedding. Hugging Face's T5
 * (Raffel et al., 2020) has relative positions, RMSNorm and no biases. */
#include "models/model.h"
#include "models/specs.h"
#include "nn/lm_head.h"

enum { ENCODER, DECODER };                        /* stacks */
enum { ENCODER_STREAM, DECODER_STREAM, ENCODED }; /* flows */

/* ---- forward ---- Types as for GPT, over the sequences of both stacks. */

static Feed *encoder_feed(Tape *t, const Feed *feed) {
    Feed *f = tape_alloc(t, sizeof *f);
    *f = (Feed){.tokens = feed->encoder_tokens,
                .position_ids = feed->encoder_position_ids,
                .lengths = feed->encoder_lengths,
                .releases = feed->releases};
    return f;
}

static Feed *decoder_feed(Tape *t, const Feed *feed, Tensor *encoded) {
    Feed *f = tape_alloc(t, sizeof *f);
    *f = *feed;
    f->encoded = encoded;
    return f;
}

/* The stream below the stage's first layer of the stack. */
static Stream stream_below(Tape *t, const Model *m, const StackPart *part, const Feed *feed, Tensor *in) {
    return (Stream){.x = part->begins ? embedding_forward(t, &m->embedding, feed)
                                      : in}; /* [s, b, h]   V or I */
}

static Flow t5_stage(Tape *t, const Model *m, const StagePart *part, const Feed *feed, Flow in) {
    const StackPart encoder = model_stack_part(&m->plan, ENCODER, part),
                    decoder = model_stack_part(&m->plan, DECODER, part);
    Tensor *encoded = in.at[ENCODED];
    const bool encodes = encoder.begins && feed->encoder_tokens; /* generation does it once */
    if (encodes || in.at[ENCODER_STREAM]) {
        const Feed *own = encoder_feed(t, feed);
        const Stream s = stream_below(t, m, &encoder, own, in.at[ENCODER_STREAM]);
        if (!encoder.ends)
            return (Flow){.at[ENCODER_STREAM] =
                              stack_output(t, &m->stack[ENCODER], encoder.first, encoder.layers, own, s)};
        encoded = stack_end(t, &m->stack[ENCODER], encoder.first, encoder.layers, own, s); /* V or I */
    }
    if (!decoder.begins && !in.at[DECODER_STREAM]) return (Flow){.at[ENCODED] = encoded};
    const Feed *own = decoder_feed(t, feed, encoded);
    const Stream s = stream_below(t, m, &decoder, own, in.at[DECODER_STREAM]);
    if (!decoder.ends)
        return (Flow){.at[DECODER_STREAM] =
                          stack_output(t, &m->stack[DECODER], decoder.first, decoder.layers, own, s),
                      .at[ENCODED] = encoded};
    Tensor *h = stack_end(t, &m->stack[DECODER], decoder.first, decoder.layers, own, s); /* V or I */
    return (Flow){{lm_head_forward(t, m->head, feed, h)}}; /* loss [b, s] I, or logits V */
}

/* ---- plan ---- */

static const char *decoder_letters(const Derived *d, int64_t layer) {
    (void)d, (void)layer;
    return "*x-";
}

static void t5_plan(const Config *c, const Derived *d, Arena *arena, ModelPlan *plan) {
    const int64_t below = c->num_layers, all = config_layers(c);
    const StackShape encoder = {.name = "encoder",
                                .layers = below,
                                .relative = "encoder_relative_pos_emb.relative_attention_bias.weight"},
                     decoder = {.name = "decoder",
                                .layers = all - below,
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
        .embedding = spec_embedding(c, d),
        .stack =
            {[ENCODER] = spec_stack(c, d, &encoder, arena), [DECODER] = spec_stack(c, d, &decoder, arena)},
        .n_stacks = 2,
        .head = spec_lm_head(c, d, arena),
        .flow = {[ENCODER_STREAM] = {"encoder", ENCODER, c->seq_length, 0, below - 1},
                 [DECODER_STREAM] = {"decoder", DECODER, c->decoder_seq_length, below + 1, all},
                 [ENCODED] = {"encoded", ENCODER, c->seq_length, below, all - 1}},
        .n_flows = 3,
        .loss = {{"lm loss", EXTENT_POSITIONS, FIELD_loss_mask, 0}},
        .n_losses = 1,
    };
}

const Family t5_family = {"t5", t5_plan, t5_stage};
