/* The table of residual branches (branches.def). A layer is a list of branches. For each branch, the layer applies a
 * norm, the branch and dropout, and adds the result to the residual stream (models/stack.h). */
#pragma once

#include "nn/feed.h"
#include "param/param.h"
#include "tape/tape.h"

/* A pool of rows that a branch stores during generation: one row for each position or for each encoder position,
 * depending on `extent`. With EXTENT_SAMPLES, the pool has a row for each request; rows are F32 if activations have 16
 * bits. */
typedef struct CacheSpec {
    FieldExtent extent;
    int64_t dim[3]; /* shape of a row on this rank: groups, rows per group, width */
} CacheSpec;

enum { BRANCH_CACHES = 2 };

typedef struct BranchOps {
    size_t size; /* size of the branch's module in bytes */
    /* Registers parameters and states under `name`. `self` and `spec` must outlive the registry and must not move.
     * `counters` is F64 with as many elements as the function `counters` returns, or NULL if the branch has no
     * counters. */
    void (*init)(void *self, Registry *, const char *name, const void *spec, Tensor *counters);
    /* Returns [s, b, h] with the SPMD type of x_sbh. The feed must exist until tape_end. `cache` points to the
     * branch's pools in Feed.cache, and is NULL if Feed.cache is NULL. */
    Tensor *(*forward)(Tape *, const void *self, const Feed *, Tensor *cache, Tensor *x_sbh);
    /* Describes the branch's pools in `out`, and returns how many there are. The function is NULL if the branch caches
     * nothing. */
    int (*caches)(const void *spec, const Layout *, CacheSpec out[BRANCH_CACHES]);
    /* Returns the model FLOPs for the forward and backward passes over one sample of s positions. As in
     * num_floating_point_operations in Megatron-LM's training.py, causal attention counts as half of full attention. */
    double (*flops)(const void *spec, double s);
    /* returns the number of step counters (param/state.h); NULL if the branch has none */
    int64_t (*counters)(const void *spec);
    CommReduction reduction; /* how ranks combine the counters */
} BranchOps;

typedef enum BranchId {
#define BRANCH(kind, ...) BRANCH_##kind,
#include "nn/branches.def"
#undef BRANCH
    BRANCH_KINDS
} BranchId;

typedef struct BranchKind {
    char letter;
    const char *scope, *norm, *post_norm, *dropout;
    const BranchOps *ops;
} BranchKind;

extern const BranchKind BRANCHES[BRANCH_KINDS];
