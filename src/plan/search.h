/* Finds layouts in which each rank fits into a device's memory. --ranks sets the number of ranks; by default, it is the
 * minimum. A search varies tensor parallelism inside a node, context, pipeline and expert parallelism, virtual
 * stages, ZeRO, recomputation and microbatches. With rates, the search ranks layouts by their predicted tokens/s, and
 * also varies sequence and expert tensor parallelism. All other options are unchanged. */
#pragma once

#include "plan/step_time.h"

enum {
    SEARCH_MOST = 8,
    SEARCH_WORDS = 512,
    SEARCH_CONTEXT = 16,
    SEARCH_MICRO = 8,
    SEARCH_TRIES = 20000,
    SEARCH_LAYOUTS = 100000,
    SEARCH_EVENTS = 40000000
};

/* With rates: layouts are listed if they take at most this multiple of the fastest one's time. */
#define SEARCH_SLOWEST 1.1

typedef struct FoundLayout {
    char words[SEARCH_WORDS]; /* the options that select this layout */
    int64_t ranks, tensor, context, pipeline, expert, data;
    bool sequence;         /* sequence parallelism */
    int64_t expert_tensor; /* 0: the option is unchanged */
    int64_t chunks, micro; /* number of stages per pipeline rank; number of samples per microbatch */
    int zero;              /* the ZeRO stage, DataParallel.stage */
    RecomputeGranularity recompute;
    size_t bytes; /* memory of the rank that needs the most memory */
    double bubble;
    /* with rates: the predicted step. exposed and idle are the fractions of the time in which a rank waits for
     * operations in progress, and for other ranks. */
    double ns, tokens_per_second, mfu, exposed, idle;
} FoundLayout;

typedef struct Search {
    /* The best layout for each number of ranks and each choice of tensor-, context- and pipeline-parallel sizes. The
     * layouts are sorted by ranks, recomputation, ZeRO stage and bubble percentage, all ascending. With rates, there is
     * also one for each expert-parallel size, and the layouts are sorted by the step's time. */
    FoundLayout found[SEARCH_MOST];
    int n;
    int64_t tries;       /* number of layouts whose rules and memory were checked */
    int64_t node, micro; /* the largest tensor-parallel size and microbatch size that were tried */
    bool stopped;        /* whether the search stopped after SEARCH_TRIES layouts. With rates: after
                     SEARCH_LAYOUTS layouts or SEARCH_EVENTS events */
    bool rated;          /* whether the layouts are sorted by time */
    /* with rates: numbers of layouts that were simulated; whose lower bounds exceed the listed layouts' times; that
     * have no rates; and that were not tried because the search stopped */
    int64_t timed, slower, unrated, left;
} Search;

/* Tries up to `node` tensor-parallel ranks, SEARCH_CONTEXT context-parallel ranks, and SEARCH_MICRO samples
 * per microbatch, or more if the options set a larger number. */
Search plan_search(const Config *, const Device *target, size_t available, int64_t node);
/* Simulates the steps of layouts in ascending order of a lower bound on their times, until no bound is below the time
 * of the last layout in the list. The bound is the time of a rank that has all layers, without operations of data and
 * pipeline parallelism. It is divided by the number of pipeline ranks and increased by the bubble of equal passes.
 * Returns an error if no rates exist for any layout that fits. */
Err plan_search_fastest(const Config *, const Device *target, size_t available, int64_t node, const Rates *,
                        Search *);
