/* The layouts of the fewest ranks, or of exactly --ranks, in which a rank fits into a device's memory: tensor parallelism inside a
 * node, pipeline and expert parallelism, ZeRO and recomputation. All other options stay as they are. */
#ifndef ISOTRON_PLAN_SEARCH_H
#define ISOTRON_PLAN_SEARCH_H

#include "plan/plan.h"

enum { SEARCH_MOST = 8, SEARCH_WORDS = 320 };

typedef struct FoundLayout {
    char words[SEARCH_WORDS]; /* the options that give it */
    int64_t ranks, tensor, pipeline, expert, data, microbatches;
    int zero; /* DataParallel.stage */
    RecomputeGranularity recompute;
    size_t bytes; /* of the largest rank */
    double bubble;
} FoundLayout;

typedef struct Search {
    FoundLayout found[SEARCH_MOST]; /* by ranks, recomputation, ZeRO and bubble, all ascending; one for each
                                       choice of ranks, tensor and pipeline sizes */
    int n;
} Search;

/* The tensor-parallel ranks are at most `node`. */
Search plan_search(const Config *, const Derived *, const Device *target, size_t available, int64_t node);

#endif
