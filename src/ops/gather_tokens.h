/* Gathers the tokens of a microbatch that are sharded over tensor- and context-parallel ranks. It serves
 * decisions that depend on all tokens: which tokens exceed an expert's capacity, and the balance of the load. No
 * gradient flows back. */
#pragma once

#include "tape/tape.h"

/* x_sbw [s,b,w], floats or I64 -> [S,b,w], all tokens in the order of one rank; x itself if it is not
 * sharded. */
Tensor *tokens_whole(Tape *, Tensor *x_sbw);
/* The rows of `whole` [S,b,w] that correspond to x_sb* [s,b,*]; `whole` itself if x is not sharded. */
Tensor *tokens_own(Tape *, Tensor *whole, const Tensor *x);
/* Faults that name `op`. The first occurs if x is sharded, for an op that depends on all tokens. The second occurs if x
 * and y have different tokens. */
void tokens_check_whole(const Tape *, const char *op, const Tensor *x);
void tokens_check_same(const Tape *, const char *op, const Tensor *x, const Tensor *y);
/* Sums x over the ranks of the axes (a mask), in place; the result is I there. */
void tokens_sum(Tape *, Tensor *x, unsigned axes);
