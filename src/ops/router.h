/* The ops for an MoE layer's router, like Megatron-LM core/transformer/moe/router.py and moe_utils.py. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* Each token's experts in ascending order, and the probabilities by which the experts' outputs are
 * multiplied. */
typedef struct Routing {
    Tensor *probs;  /* [s,b,k], in the arithmetic type */
    Tensor *expert; /* I64 [s,b,k] */
} Routing;

/* Returns the scores for e experts, or for a gate (e = 1), as [s,b,e] in the arithmetic type, regardless of the storage
 * type (--moe-router-dtype). x_sbh is [s,b,h], w_eh is [e,h], and bias_e is [e] or NULL. */
Tensor *op_gate_logits(Tape *, Tensor *x_sbh, Tensor *w_eh, Tensor *bias_e);
/* Selects the k experts with the highest scores; among equal scores, the lower expert number takes precedence.
 * If select_sbe [s,b,e] is not NULL, its values are compared instead of RouteAttr's scores. If bias_e [e] is
 * not NULL, bias_e is added to the compared values. select_sbe and bias_e have no gradient. logits_sbe,
 * select_sbe and bias_e have the arithmetic type. */
Routing op_route(Tape *, Tensor *logits_sbe, Tensor *select_sbe, Tensor *bias_e, int64_t k, RouteAttr);
/* Returns random logits, or logits with a random bias (see RandomLogits). In the backward pass, the gradient is
 * unchanged, even for logits that were replaced. A random number depends only on the run's seed, `site`, and
 * the global index of the token, sample or expert. */
Tensor *op_random_logits(Tape *, Tensor *logits_sbe, RandomLogits, double std, uint64_t site);
/* Returns exp(logits), scaled so that each token has the same sum over experts, and each expert has the same sum over
 * tokens. The op has no gradient. */
Tensor *op_sinkhorn(Tape *, Tensor *logits_sbe);
/* Returns F64 [e+1]: the biases with which each of the e experts would receive tokens * k / e of the
 * microbatch's tokens, followed by 1, so that a sum of results can be averaged. logits_sbe [s,b,e] must
 * contain all tokens of the microbatch. bias_e [e] contains the current biases. The op has no gradient. */
Tensor *op_quantile(Tape *, Tensor *logits_sbe, Tensor *bias_e, int64_t k);
/* Counts each expert's tokens on this rank: over all samples (count F64 [1,e]) or for each sample (count F64
 * [b,e]). count is P along the axes that shard the microbatch. If TENSOR_ACCUM is set in count, the op adds to
 * the existing counts. */
void op_expert_count(Tape *, const Routing *, Tensor *count);
/* Returns a router loss, F64 [1], which is P along the axes that shard the microbatch.
 * kernels/cpu/router_loss.c contains the formulas. For ROUTER_BALANCE, count is F64 [1 or b,e] over all tokens;
 * otherwise, count is NULL. */
Tensor *op_router_loss(Tape *, Tensor *logits_sbe, Tensor *count, RouterLossAttr);
