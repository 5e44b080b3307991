/* The residual stream. The last addition to the stream is delayed, so that the next norm's kernel can also
 * compute this addition. */
#pragma once

#include "nn/norm.h"

typedef struct Stream {
    Tensor *x;      /* [s, b, h] */
    Tensor *branch; /* the branch that must still be added to x; NULL if there is none */
} Stream;

/* Returns x + branch. */
Tensor *stream_sum(Tape *, Stream);
/* Sets x to x + branch, and returns the normalized sum. */
Tensor *stream_norm(Tape *, const Norm *, Stream *);
