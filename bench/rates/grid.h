/* GEMMs and attention over a grid of sizes, for measurements of rates. */
#pragma once

#include "base/mem.h"
#include "kernels/cases.h"

typedef struct GridCalls {
    void (*add)(void *arg, const KernelCase *); /* receives each call */
    void *arg;
    Arena *arena; /* allocates the calls' attributes */
    DType type;   /* the type of activations */
    bool gpu;     /* whether the calls are large and, in BF16, also have FP8 operands */
} GridCalls;

void rates_grid(const GridCalls *);
