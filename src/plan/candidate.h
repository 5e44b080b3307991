/* Layouts that a search tries, and their options. */
#pragma once

#include "plan/search.h"

enum { ZERO_MOST = 3 };

typedef struct Candidate {
    int64_t ranks, tensor, context, pipeline, data;
} Candidate;

typedef struct Seeker {
    const Config *config;
    const Device *target;
    size_t available;
    MemoryPlan whole; /* memory that a rank needs if it holds the full model */
    double experts;   /* the fraction of the parameters that belong to experts */
    int zero;         /* the ZeRO stage of the options */
    int64_t tries;
    Arena *arena; /* contains the data of the layout that is being tried */
} Seeker;

/* The levels of recomputation, from the one that needs the most memory. */
extern const RecomputeGranularity CANDIDATE_LEVELS[];
enum { CANDIDATE_LEVEL_COUNT = 3 };
int candidate_level(RecomputeGranularity);

/* The caller frees the seeker's arena. */
Seeker seeker_new(const Config *, const Device *target, size_t available);
/* Plans the run, and returns whether it fits into the memory. The options must have passed the rules. */
bool seeker_fits(const Seeker *, const Config *, RunPlan *);
/* Lists the candidates. All sizes are powers of two, except the data-parallel size that follows from --ranks, and the
 * pipeline size. The latter is at most the number of layers plus embedding and head. */
Candidate *candidates_list(const Config *, int64_t node, int64_t *n);
int64_t candidate_micro_most(const Config *);

/* Returns the options with those of the layout. */
Config candidate_config(const Seeker *, const FoundLayout *);
void candidate_words(const Config *, const FoundLayout *, char *out);
/* Returns a lower bound on the peak memory per rank: the memory for parameters, gradients and optimizer state,
 * split equally across ranks. */
double candidate_least_state(const Seeker *, const FoundLayout *);
bool candidate_keeps_rules(const Seeker *, const Config *);
