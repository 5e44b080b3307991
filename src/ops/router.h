/* The router of a mixture of experts. Megatron-LM core/transformer/moe/router.py, moe_utils.py. */
#ifndef ISOTRON_OPS_ROUTER_H
#define ISOTRON_OPS_ROUTER_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* The experts of each token, ascending, and the probabilities that their outputs are multiplied by. */
typedef struct Routing {
    Tensor *probs;  /* [s,b,k], in the arithmetic's type */
    Tensor *expert; /* I64 [s,b,k] */
} Routing;

/* Scores of e experts, or of a gate (e = 1): x_sbh [s,b,h], w_eh [e,h] -> [s,b,e] in the arithmetic's type,
 * whatever the storage is (--moe-router-dtype). */
Tensor *op_gate_logits(Tape *, Tensor *x_sbh, Tensor *w_eh);
/* Chooses the k experts with the best scores; of equal ones the smaller number. select_sbe [s,b,e] (NULL: the
 * scores of RouteAttr) are compared instead of the scores, bias_e [e] (NULL: none) is added to what is
 * compared; neither gets a gradient. logits_sbe, select_sbe and bias_e are in the arithmetic's type. */
Routing op_route(Tape *, Tensor *logits_sbe, Tensor *select_sbe, Tensor *bias_e, int64_t k, RouteAttr);
/* exp(logits) scaled to equal shares of all tokens and of all experts; no gradient. */
Tensor *op_sinkhorn(Tape *, Tensor *logits_sbe);
/* Tokens of each expert, of this rank's (P where the microbatch is cut): of all samples (count F64 [1,e]) or
 * of each (count F64 [b,e]); added if count says so. */
void op_expert_count(Tape *, const Routing *, Tensor *count);
/* A loss of the router, F64 [1], P where the microbatch is cut over ranks; formulas in
 * kernels/cpu/router_loss.c. count F64 [1 or b,e], of all tokens, for ROUTER_BALANCE, else NULL. */
Tensor *op_router_loss(Tape *, Tensor *logits_sbe, Tensor *count, RouterLossAttr);

#endif
