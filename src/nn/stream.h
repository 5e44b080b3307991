/* The residual stream, with a sum that the next norm computes along the way. */
#ifndef ISOTRON_NN_STREAM_H
#define ISOTRON_NN_STREAM_H

#include "nn/norm.h"

typedef struct Stream {
    Tensor *x;      /* [s, b, h] */
    Tensor *branch; /* still to be added to x; NULL: nothing */
} Stream;

/* x + branch. */
Tensor *stream_sum(Tape *, Stream);
/* The norm of x + branch, which becomes x. */
Tensor *stream_norm(Tape *, const Norm *, Stream *);

#endif
