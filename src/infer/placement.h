/* Chooses the replica for each request, like Megatron-LM's data-parallel coordinator
 * (core/inference/data_parallel_inference_coordinator/coordinator.py). A choice depends only on earlier calls
 * and on the number of requests at each replica, not on time.
 *
 * A request's score at a replica is alpha * match + (1 - alpha) * free. `free` is the unused fraction of the
 * replica's maximum number of requests. `match` is the fraction of the prompt's pages that the replica has
 * or, with first_prefix_block, 1 if the replica has the first page. Among equal scores, the replica with the
 * fewest requests is chosen.
 *
 * Replicas do not report which pages they have. Instead, Placement has a page pool of the same size for each replica.
 * It contains the names of the pages of all prompts sent to that replica. */
#pragma once

#include "infer/engine.h"

typedef struct Placement Placement;

/* Creates a Placement with the sizes and the policy in the limits. */
Placement *placement_new(int64_t replicas, const EngineLimits *);
void placement_free(Placement *);
/* Chooses a replica for a request that engine_check accepts. open [replicas] contains each replica's number of
 * requests. */
int64_t placement_choose(Placement *, const Request *, const int64_t *open);
/* Forgets all pages. The caller must call this function when the replicas discard their cached pages. */
void placement_forget(Placement *);
