/* Concatenates two parts of each head. */
#pragma once

#include "tape/tape.h"

/* Returns [s,b,g,r,d+e]: for each head, the elements of a [s,b,g,r,d], then those of b [s,b,g,r,e]. a and b may
 * be strided. If b is [s,b,1,1,e], all heads share b, and the gradient of b is a sum over heads. */
Tensor *op_join_heads(Tape *, Tensor *a, Tensor *b);
