/* The decoder-only transformer. GPT-2, Llama, Mixtral and similar models differ only in their plans' settings. As in
 * Megatron-LM core/models/gpt/gpt_model.py: embedding -> layers of [norm, attention, residual, norm, mlp, residual] ->
 * final norm -> output layer without bias. */
#include <string.h>

#include "models/model.h"
#include "models/specs.h"
#include "nn/lm_head.h"
#include "nn/mtp_input.h"

/* ---- one layer ---- stack.c runs a layer's branches as op calls. The lines below show a Llama layer, with d = head
 * width, g = query groups, r = query heads per group, f = MLP width. The last column is the type over tp
 * (tensor/spmd.h). The stream x and y are V along the sequence with sequence parallelism, otherwise I.
 *   y = op_norm(x, gain)                    [s, b, h]            V or I
 *   c = op_linear(y, linear_qkv)            [s, b, g*(r+2)*d]    V along the groups; the op gathers y
 *   q, k, v = views of c                    [s, b, g, r|1|1, d]  V; op_rope rotates q and k
 *   a = op_attention(q, k, v)               [s, b, g, r, d]      V; viewed as [s, b, g*r*d]
 *   x = op_add(x, op_linear(a, linear_proj)) [s, b, h]           V or I; the op sums over tp
 *   y = op_norm(x, gain)                    [s, b, h]            V or I
 *   u = op_linear(y, linear_fc1)            [s, b, 2*f]          V: rows of gate and of up; the op gathers y
 *   z = op_activation(u, ACT_SWIGLU)        [s, b, f]            V
 *   x = op_add(x, op_linear(z, linear_fc2)) [s, b, h]            V or I; the op sums over tp */

/* ---- additional tokens (MTP) ---- As in Megatron-LM core/transformer/multi_token_prediction.py, stack k >= 1 predicts
 * the token k + 1 positions ahead from stack k - 1's output and the token k positions ahead. */

/* Returns the fields that a stack at depth k reads. The stack's field `name` is element k - 1 of the
 * microbatch's `field`. */
static const FeedField *fields_ahead(FieldId name, FieldId field, int k, Arena *arena) {
    const FeedField fields[] = {{name, field, k - 1},
                                {FIELD_position_ids, FIELD_position_ids, 0},
                                {FIELD_document_start, FIELD_document_start, 0}};
    return memcpy(arena_alloc(arena, sizeof fields), fields, sizeof fields);
}

static StackSpec stack_ahead(const Config *c, int k, Arena *arena) {
    EmbeddingSpec *words = spec_words(c, arena);
    MtpInputSpec *input = arena_alloc(arena, sizeof *input);
    const int64_t layer = c->num_layers + k - 1;
    const char *name = arena_printf(arena, "mtp.layers.%d", c->mtp_use_repeated_layer ? 0 : k - 1);
    words->dropout_site = arena_printf(arena, "%s.embedding.dropout", name);
    words->detached = c->mtp_detach_heads;
    *input = (MtpInputSpec){.name = name,
                            .words = words,
                            .norm = spec_norm(c),
                            .init_std = c->derived.init_std,
                            .quant = spec_quant(c, layer, arena)};
    const StackShape shape = {.name = name,
                              .input = {&mtp_input, input},
                              .positions = c->seq_length,
                              .layers = 1,
                              .below = layer,
                              .causal = true};
    StackSpec s = spec_stack(c, &shape, arena);
    s.numbered = c->derived.letters_ahead;
    s.only = s.numbered ? "mtp_model_layer" : "transformer_layer";
    s.repeats = c->mtp_use_repeated_layer && k > 1;
    s.detached = c->mtp_detach_heads && k == 1;
    s.fields = fields_ahead(FIELD_tokens, FIELD_tokens_ahead, k, arena), s.n_fields = 3;
    return s;
}

static HeadSpec head_ahead(const Config *c, const EmbeddingSpec *words, int k, Arena *arena) {
    HeadSpec head = spec_lm_head(c, words, arena);
    head.stack = k;
    head.fields = fields_ahead(FIELD_labels, FIELD_labels_ahead, k, arena), head.n_fields = 1;
    LmHeadSpec *spec = memcpy(arena_alloc(arena, sizeof *spec), head.spec, sizeof *spec);
    spec->counts = true, spec->detached = c->mtp_detach_heads;
    head.spec = spec;
    head.loss[0] = (LossSpec){.name = arena_printf(arena, "mtp_%d loss", k),
                              .extent = EXTENT_POSITIONS,
                              .weights = FIELD_loss_mask_ahead,
                              .column = k - 1,
                              .auxiliary = true,
                              .factor = c->mtp_loss_scaling_factor / (double)c->mtp_num_layers};
    head.loss[1] = head.loss[0], head.n_counts = 1;
    head.loss[1].name = arena_printf(arena, "mtp_%d_acceptance_rate", k);
    return head;
}

void plan_gpt(const Config *c, Arena *arena, ModelPlan *plan) {
    const EmbeddingSpec *words = spec_words(c, arena);
    const StackShape decoder = {.name = "decoder",
                                .input = {&words_input, words},
                                .positions = c->seq_length,
                                .layers = c->num_layers,
                                .causal = true};
    *plan = (ModelPlan){
        .sample = {.positions = c->seq_length,
                   .fields = GPT_FIELDS & ~(c->reset_attention_mask ? 0 : FIELD_SET(document_start))},
        .stack = {spec_stack(c, &decoder, arena)},
        .n_stacks = 1,
        .head = {spec_lm_head(c, words, arena)},
        .n_heads = 1,
    };
    const int depths = (int)c->mtp_num_layers;
    if (depths) plan->sample.fields |= AHEAD_FIELDS;
    for (int f = 0; f < FIELDS; f++)
        if (fields_have(AHEAD_FIELDS, f)) plan->sample.width[f] = depths;
    for (int k = 1; k <= depths; k++) {
        plan->stack[plan->n_stacks++] = stack_ahead(c, k, arena);
        plan->head[plan->n_heads++] = head_ahead(c, words, k, arena);
    }
}
