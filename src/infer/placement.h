/* Chooses the replica for each request, like Megatron-LM's data-parallel coordinator
 * (core/inference/data_parallel_inference_coordinator/coordinator.py). A choice depends only on earlier calls and on the
 * numbers of requests, not on the time.
 *
 * A request's score at a replica is alpha * match + (1 - alpha) * free. `free` is the part of the replica's requests
 * that do not run, and `match` the part of the prompt's pages that the replica has, or whether it has the first page.
 * Among equal scores, the replica with the fewest requests is chosen.
 *
 * It does not ask the replicas. For each of them, it keeps the names of the pages of the prompts that it has
 * sent there, in a page pool of the same size. */
#pragma once

#include "infer/engine.h"

typedef struct Placement Placement;

/* Uses the sizes and the policy in the limits. */
Placement *placement_new(int64_t replicas, const EngineLimits *);
void placement_free(Placement *);
/* Chooses a replica for a request that engine_check accepts. open[replicas]: the number of requests of each replica. */
int64_t placement_choose(Placement *, const Request *, const int64_t *open);
/* Forgets all pages. The caller must call it when the replicas forget theirs. */
void placement_forget(Placement *);
