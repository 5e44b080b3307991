/* The ops of an MoE layer's router. Megatron-LM core/transformer/moe/router.py, moe_utils.py. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* The experts of each token, ascending, and the probabilities that scale their outputs. */
typedef struct Routing {
    Tensor *probs;  /* [s,b,k], in the arithmetic type */
    Tensor *expert; /* I64 [s,b,k] */
} Routing;

/* Computes the scores of e experts, or of a gate (e = 1): x_sbh [s,b,h], w_eh [e,h], bias_e [e] (may be NULL)
 * -> [s,b,e] in the arithmetic type, regardless of the storage (--moe-router-dtype). */
Tensor *op_gate_logits(Tape *, Tensor *x_sbh, Tensor *w_eh, Tensor *bias_e);
/* Chooses the k experts with the highest scores; among equal scores, the expert with the lower number wins.
 * Unless they are NULL, select_sbe [s,b,e] replaces the scores of RouteAttr in the comparison, and bias_e [e]
 * is added to the compared values. Neither gets a gradient. logits_sbe, select_sbe and bias_e are in the
 * arithmetic type. */
Routing op_route(Tape *, Tensor *logits_sbe, Tensor *select_sbe, Tensor *bias_e, int64_t k, RouteAttr);
/* Random logits, or logits with a random bias: see RandomLogits. The gradient is passed on unchanged, even to
 * logits that were replaced. A draw depends only on the run's seed, `site`, and the global index of the
 * token, sample or expert. */
Tensor *op_random_logits(Tape *, Tensor *logits_sbe, RandomLogits, double std, uint64_t site);
/* Returns exp(logits), scaled so that all tokens, and all experts, have equal sums. It has no gradient. */
Tensor *op_sinkhorn(Tape *, Tensor *logits_sbe);
/* Returns F64 [e+1]: biases with which tokens * k / e of these tokens would choose each of the e experts, then 1, so
 * that a sum of results can be averaged. logits_sbe [s,b,e] must have all tokens of a microbatch. bias_e [e] has the
 * current biases. No gradient. */
Tensor *op_quantile(Tape *, Tensor *logits_sbe, Tensor *bias_e, int64_t k);
/* Counts the tokens of each expert on this rank (P where the microbatch is sharded): over all samples (count
 * F64 [1,e]) or per sample (count F64 [b,e]). Adds to count if it has TENSOR_ACCUM. */
void op_expert_count(Tape *, const Routing *, Tensor *count);
/* A loss of the router, F64 [1], P where the microbatch is sharded over ranks; kernels/cpu/router_loss.c has
 * the formulas. count is F64 [1 or b,e], over all tokens, for ROUTER_BALANCE, and otherwise NULL. */
Tensor *op_router_loss(Tape *, Tensor *logits_sbe, Tensor *count, RouterLossAttr);
