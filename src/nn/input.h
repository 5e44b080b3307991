/* A stack's input computes the residual stream from a microbatch's fields. A model family's plan names the input of
 * each stack. */
#pragma once

#include "nn/feed.h"
#include "param/param.h"
#include "tape/tape.h"

typedef struct InputOps {
    size_t size; /* size of the input's module in bytes */
    /* Registers parameters. The inputs of several stacks may share parameters. `self` and `spec` must outlive
     * the registry and must not move. */
    void (*init)(void *self, Registry *, const void *spec);
    /* Returns [s, b, h]. With sequence parallelism, the result is V along the sequence over tensor-parallel ranks;
     * otherwise, it is I. */
    Tensor *(*forward)(Tape *, const void *self, const Feed *);
    double (*flops)(const void *spec, double s); /* as in BranchOps.flops; NULL for 0 FLOPs */
} InputOps;

typedef struct InputSpec {
    const InputOps *ops;
    const void *spec;
} InputSpec;
