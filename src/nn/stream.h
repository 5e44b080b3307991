/* The residual stream. The last addition to the stream is delayed, so that the kernel of the next norm can also
 * compute this addition. */
#pragma once

#include "nn/norm.h"

typedef struct Stream {
    Tensor *x;      /* [s, b, h] */
    Tensor *branch; /* is still to be added to x; NULL if nothing is to be added */
} Stream;

/* Returns x + branch. */
Tensor *stream_sum(Tape *, Stream);
/* Returns the norm of x + branch, and sets x to x + branch. */
Tensor *stream_norm(Tape *, const Norm *, Stream *);
