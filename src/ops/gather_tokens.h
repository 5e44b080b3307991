/* Gathers a microbatch's tokens, which are sharded over tensor- and context-parallel ranks. Two computations
 * need a microbatch's full set of tokens: load balancing, and dropping the tokens that exceed an expert's
 * capacity. The gathered tokens have no gradient. */
#pragma once

#include "tape/tape.h"

/* Returns all tokens [S,b,w] of x_sbw [s,b,w] (floats or I64), in the same order as on one rank. Returns x
 * itself if x is not sharded. */
Tensor *tokens_whole(Tape *, Tensor *x_sbw);
/* Returns the rows of `whole` [S,b,w] that correspond to the rows of x [s,b,*], or `whole` itself if x is not
 * sharded. */
Tensor *tokens_own(Tape *, Tensor *whole, const Tensor *x);
/* tokens_check_whole fails with a message that names `op` if x is sharded. tokens_check_same fails with such a
 * message if x and y have different tokens. */
void tokens_check_whole(const Tape *, const char *op, const Tensor *x);
void tokens_check_same(const Tape *, const char *op, const Tensor *x, const Tensor *y);
/* Sums x in place over the ranks of the axes (a mask). x becomes I on these axes. */
void tokens_sum(Tape *, Tensor *x, unsigned axes);
