/* The decoder-only transformer: GPT-2, Llama, Mixtral and similar models are settings of one plan.
 * Megatron-LM core/models/gpt/gpt_model.py: embedding -> layers of [norm, attention, residual, norm, mlp,
 * residual] -> final norm -> output layer without bias. */
#include "models/model.h"
#include "models/specs.h"
#include "nn/lm_head.h"

/* ---- forward ---- Types over tp: with sequence parallelism the stream is V along the sequence, else I;
 * logits are V along the vocabulary. Over cp all tensors are V along the sequence, over dp along samples. */

static Flow gpt_stage(Tape *t, const Model *m, const StagePart *part, const Feed *feed, Flow in) {
    const Stack *decoder = &m->stack[0];
    Stream s = {.x = in.at[0]};
    if (part->embedding) s.x = embedding_forward(t, &m->embedding, feed); /* [s, b, h]   V or I */
    if (!part->head)
        return (Flow){{stack_output(t, decoder, part->first_layer, part->layers, feed, s)}}; /* V or I */
    Tensor *h = stack_end(t, decoder, part->first_layer, part->layers, feed, s); /* [s, b, h]   V or I */
    return (Flow){{lm_head_forward(t, m->head, feed, h)}}; /* loss [b, s] I, or logits V */
}

/* ---- plan ---- */

static void gpt_plan(const Config *c, const Derived *d, Arena *arena, ModelPlan *plan) {
    *plan = (ModelPlan){
        .sample = {.positions = c->seq_length,
                   .fields = GPT_FIELDS & ~(c->reset_attention_mask ? 0 : FIELD_SET(document_start))},
        .embedding = spec_embedding(c, d),
        .stack = {spec_stack(c, d, &(StackShape){.name = "decoder", .layers = c->num_layers, .causal = true},
                             arena)},
        .n_stacks = 1,
        .head = spec_lm_head(c, d, arena),
        .flow = {{"hidden", 0, c->seq_length, 0, c->num_layers}},
        .n_flows = 1,
        .loss = {{"lm loss", EXTENT_POSITIONS, FIELD_loss_mask, 0}},
        .n_losses = 1,
    };
}

const Family gpt_family = {"gpt", gpt_plan, gpt_stage};
