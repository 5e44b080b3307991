/* The layouts of the fewest ranks, or of exactly --ranks, in which a rank fits into a device's memory: tensor
 * parallelism inside a node, context, pipeline and expert parallelism, virtual stages, ZeRO, recomputation and
 * microbatches. All other options stay as they are. */
#pragma once

#include "plan/plan.h"

enum { SEARCH_MOST = 8, SEARCH_WORDS = 512, SEARCH_CONTEXT = 16, SEARCH_MICRO = 8, SEARCH_TRIES = 20000 };

typedef struct FoundLayout {
    char words[SEARCH_WORDS]; /* the options that give it */
    int64_t ranks, tensor, context, pipeline, expert, data;
    int64_t chunks, micro; /* stages of a pipeline rank; samples of a microbatch */
    int zero;              /* DataParallel.stage */
    RecomputeGranularity recompute;
    size_t bytes; /* bytes of the largest rank */
    double bubble;
} FoundLayout;

typedef struct Search {
    FoundLayout found
        [SEARCH_MOST]; /* by ranks, recomputation, ZeRO and percents of bubble, all ascending; one for each
                                       choice of ranks, tensor, context and pipeline sizes */
    int n;
    int64_t tries;       /* layouts whose rules and memory were checked */
    int64_t node, micro; /* the largest tensor-parallel size and microbatch that were tried */
    bool stopped;        /* at SEARCH_TRIES, which bounds the time */
} Search;

/* The tensor-parallel ranks are at most `node`, the context-parallel ranks SEARCH_CONTEXT, the samples of a microbatch
 * SEARCH_MICRO or those of the options. */
Search plan_search(const Config *, const Device *target, size_t available, int64_t node);
