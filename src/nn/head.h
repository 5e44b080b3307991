/* A model's head: turns the last layer's output into losses or logits. A family's plan names its head. */
#ifndef ISOTRON_NN_HEAD_H
#define ISOTRON_NN_HEAD_H

#include "param/param.h"

typedef struct HeadOps {
    size_t size; /* of the head's module */
    /* Registers parameters and states. words: the word table that a tied head shares, or its copy; NULL: the
     * head is not tied. `self` and `spec` must outlive the registry and must not move. */
    void (*init)(void *self, Registry *, const void *spec, Param *words);
    /* Number of positions in a chunk of logits, for b samples of s positions; 0: all logits at once. */
    int64_t (*chunk)(const void *spec, const Layout *, int64_t s, int64_t b, DType storage);
    double (*flops)(const void *spec, double s); /* as BranchOps.flops */
} HeadOps;

typedef struct HeadSpec {
    const HeadOps *ops;
    const void *spec;
    bool tied; /* the word table is its output layer */
} HeadSpec;

#endif
