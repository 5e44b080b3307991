/* Concatenates two parts of each head. */
#pragma once

#include "tape/tape.h"

/* a [s,b,g,r,d] and b [s,b,g,r,e], possibly strided -> [s,b,g,r,d+e]: the elements of a head of a, then those of b.
 * If b is [s,b,1,1,e], all heads share it, and its gradient is a sum over heads. */
Tensor *op_join_heads(Tape *, Tensor *a, Tensor *b);
