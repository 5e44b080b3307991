/* The tokens of a microbatch that are cut over tensor- and context-parallel ranks, for what no rank can
 * decide by its own: which of them an expert has no room for, and how they balance. No gradient flows back. */
#ifndef ISOTRON_OPS_GATHER_TOKENS_H
#define ISOTRON_OPS_GATHER_TOKENS_H

#include "tape/tape.h"

/* x_sbw [s,b,w], floats or I64 -> [S,b,w], all tokens in the order of one rank; x itself if it is not cut. */
Tensor *tokens_whole(Tape *, Tensor *x_sbw);
/* The rows of `whole` [S,b,w] that x_sb* [s,b,*] has; `whole` itself if x is not cut. */
Tensor *tokens_own(Tape *, Tensor *whole, const Tensor *x);
/* A fault of the op of that name unless x is not cut: what it decides depends on all tokens; unless x has the
 * tokens that y has. */
void tokens_check_whole(const Tape *, const char *op, const Tensor *x);
void tokens_check_same(const Tape *, const char *op, const Tensor *x, const Tensor *y);
/* Adds up x, in place, over the ranks of the axes (a mask): I there. */
void tokens_sum(Tape *, Tensor *x, unsigned axes);

#endif
