/* The decoder-only transformer. GPT-2, Llama, Mixtral and similar models differ only in the settings of one
 * plan. Megatron-LM core/models/gpt/gpt_model.py: embedding -> layers of [norm, attention, residual, norm,
 * mlp, residual] -> final norm -> output layer without bias. */
#include "models/model.h"
#include "models/specs.h"

/* ---- one layer ---- stack.c runs the branches of a layer as calls of ops. This is a layer of Llama, with d
 * = width of a head, g = query groups, r = query heads per group, f = width of the MLP. The last column is
 * the type over tp (tensor/spmd.h); the stream x and y are V along the sequence with sequence parallelism,
 * else I.
 *   y = op_norm(x, gain)                    [s, b, h]            V or I
 *   c = op_linear(y, linear_qkv)            [s, b, g*(r+2)*d]    V along the groups; the op gathers y
 *   q, k, v = views of c                    [s, b, g, r|1|1, d]  V; op_rope rotates q and k
 *   a = op_attention(q, k, v)               [s, b, g, r, d]      V; viewed as [s, b, g*r*d]
 *   x = op_add(x, op_linear(a, linear_proj)) [s, b, h]           V or I; the op sums over tp
 *   y = op_norm(x, gain)                    [s, b, h]            V or I
 *   u = op_linear(y, linear_fc1)            [s, b, 2*f]          V: rows of gate and of up; the op gathers y
 *   z = op_activation(u, ACT_SWIGLU)        [s, b, f]            V
 *   x = op_add(x, op_linear(z, linear_fc2)) [s, b, h]            V or I; the op sums over tp */

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
}
