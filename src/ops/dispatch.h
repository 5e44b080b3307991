/* Moves tokens to experts and back. Megatron-LM core/transformer/moe/moe_utils.py permute, unpermute. */
#pragma once

#include "ops/router.h"

/* The destination of each copy of a token. kernels/ops.def defines its fields. Copies whose row is -1 are
 * dropped. */
typedef struct Dispatch {
    Tensor *row;     /* I64 [s,b,k] */
    Tensor *copy;    /* I64 [r] */
    Tensor *offset;  /* I64 [e+1] */
    SpmdType tokens; /* the SPMD type that x must have; the result has the dual type */
} Dispatch;

/* Without a capacity, r is s * b * k or, with `local`, the number of copies for the call's experts. With a capacity, r
 * is at most e * capacity, and the routing must cover all tokens of the microbatch. If all expert-parallel ranks share
 * the routing (R), each rank computes the rows of its experts, and the result is a partial sum. */
Dispatch op_dispatch(Tape *, const Routing *, int64_t experts, DispatchAttr);
/* x_sbh [s,b,h] -> the experts' rows [r,1,h]. A row without a token is zero. */
Tensor *op_permute(Tape *, Tensor *x_sbh, const Dispatch *);
/* probs_sbk [s,b,k], which no other op may read -> [r,1,1]. */
Tensor *op_permute_probs(Tape *, Tensor *probs_sbk, const Dispatch *);
/* y_r1h [r,1,h], V over EP where the tokens are R -> [s,b,h]: the sum of each token's rows, in the order of
 * the experts. */
Tensor *op_unpermute(Tape *, Tensor *y_r1h, const Dispatch *);
/* x [s,b,h], p [s,b,1] in the arithmetic type or x's type -> x * p or, with `sigmoid`, x * sigmoid(p), in x's type.
 * */
Tensor *op_scale_rows(Tape *, Tensor *x_sbh, Tensor *p_sb1, bool sigmoid);
