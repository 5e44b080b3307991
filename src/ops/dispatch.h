/* Moves tokens to experts and back, like permute and unpermute in Megatron-LM core/transformer/moe/moe_utils.py. */
#pragma once

#include "ops/router.h"

/* The destinations of all copies of tokens. Copies with row -1 are dropped. kernels/ops.def defines the
 * fields. */
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
/* Returns the number of copies that a dry run's experts receive (RunContext.experts_share). `copies` is an equal share.
 * Each of `ranks` ranks has tokens with these rows [s,b,k]. The result is limited, because a token has at most one copy
 * for each of this rank's `experts` experts. */
int64_t dispatch_expected(const Tape *, int64_t copies, const Tensor *row, int64_t ranks, int64_t experts);
/* Copies x_sbh [s,b,h] to the experts' rows, and returns the rows [r,1,h]. A row without a token is zero. */
Tensor *op_permute(Tape *, Tensor *x_sbh, const Dispatch *);
/* Does the same as op_permute for probs_sbk [s,b,k], which no other op may read. Returns [r,1,1]. */
Tensor *op_permute_probs(Tape *, Tensor *probs_sbk, const Dispatch *);
/* Returns [s,b,h]: for each token, the sum of its rows in y_r1h [r,1,h], added in expert order. y_r1h is V
 * over EP if the tokens are R. */
Tensor *op_unpermute(Tape *, Tensor *y_r1h, const Dispatch *);
/* Returns x * p or, if `sigmoid` is true, x * sigmoid(p), in the type of x [s,b,h]. p [s,b,1] has the arithmetic type
 * or x's type. */
Tensor *op_scale_rows(Tape *, Tensor *x_sbh, Tensor *p_sb1, bool sigmoid);
