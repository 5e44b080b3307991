/* Finds layouts in which each rank fits into a device's memory. --ranks sets the number of ranks; by default, it is the
 * minimum. The search varies tensor parallelism inside a node, context, pipeline and expert parallelism, virtual
 * stages, ZeRO, recomputation and microbatches. All other options are unchanged. */
#pragma once

#include "plan/plan.h"

enum { SEARCH_MOST = 8, SEARCH_WORDS = 512, SEARCH_CONTEXT = 16, SEARCH_MICRO = 8, SEARCH_TRIES = 20000 };

typedef struct FoundLayout {
    char words[SEARCH_WORDS]; /* the options that select this layout */
    int64_t ranks, tensor, context, pipeline, expert, data;
    int64_t chunks, micro; /* number of stages per pipeline rank; number of samples per microbatch */
    int zero;              /* the ZeRO stage, DataParallel.stage */
    RecomputeGranularity recompute;
    size_t bytes; /* memory of the rank that needs the most memory */
    double bubble;
} FoundLayout;

typedef struct Search {
    /* The best layout for each number of ranks and each choice of tensor-, context- and pipeline-parallel sizes. The
     * layouts are sorted by ranks, recomputation, ZeRO stage and bubble percentage, all ascending. */
    FoundLayout found[SEARCH_MOST];
    int n;
    int64_t tries;       /* number of layouts whose rules and memory were checked */
    int64_t node, micro; /* the largest tensor-parallel size and microbatch size that were tried */
    bool stopped;        /* whether the search stopped after SEARCH_TRIES layouts, which limits its time */
} Search;

/* Tries up to `node` tensor-parallel ranks, SEARCH_CONTEXT context-parallel ranks, and SEARCH_MICRO samples
 * per microbatch, or more if the options set a larger number. */
Search plan_search(const Config *, const Device *target, size_t available, int64_t node);
