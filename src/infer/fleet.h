/* Generates on all ranks. Each data-parallel replica has an engine (engine.h), which all ranks of the replica
 * run. Rank 0 receives requests and signals, numbers them, and sends them to all ranks before each pass.
 * Every rank applies requests and signals in the order of their numbers, so all ranks of a replica make the
 * same calls, and only rank 0 makes decisions. All replicas run their steps together. Rank 0 receives all
 * replicas' events.
 *
 * Rank 0 chooses each request's replica (placement.h). With one rank, the fleet calls the engine directly. */
#pragma once

#include "infer/fleet_state.h"

typedef struct Fleet Fleet;

/* Like engine_new. All ranks must call this function, and all get the same error. */
Err fleet_new(const Model *, const RunContext *, const EngineLimits *, Fleet **out);
/* On rank 0, this function first makes the other ranks' fleet_follow calls return. */
void fleet_free(Fleet *);

/* Returns whether this is rank 0, which makes all calls below except fleet_follow. */
bool fleet_leads(const Fleet *);
/* All ranks except rank 0 must call this function once. fleet_follow returns when rank 0 stops or frees its
 * fleet. */
void fleet_follow(Fleet *);

/* Like engine_add. The request must not be steered. Call fleet_add between steps. */
Err fleet_add(Fleet *, const Request *);
/* Like engine_abort. No later event for the request is reported, but its pages become free only in the next step. */
bool fleet_abort(Fleet *, int64_t id);
/* On all ranks, applies the requests, aborts and signals sent since the last call. Then runs a pass unless the fleet is
 * paused, suspended or stopped. Returns false if there was nothing to compute. Each replica's events arrive in the
 * order in which the replica admitted the requests. The sink may call fleet_abort. */
bool fleet_step(Fleet *, EngineSink *, void *arg);
/* Returns the counts at the end of the last step: the replicas' maxima for `passes` and `model_ns`, and their sums for
 * all others. */
EngineCounts fleet_counts(const Fleet *);

/* Sends a signal, which takes effect in the next step. Returns a user error if the signal is not allowed in
 * the current state. A signal never waits forever: if a rank does not follow within the Comm's deadline, all
 * ranks end. `path` is the folder from which SIGNAL_WEIGHTS loads; it is copied. Other signals ignore
 * `path`. */
Err fleet_signal(Fleet *, FleetSignal, const char *path);
FleetState fleet_state(const Fleet *);
/* Sets a function that returns whether this rank must end, for example because of a signal. Rank 0 collects these
 * results in a step every half second. fleet_interrupted is true on rank 0 once any rank must end. */
void fleet_on_interrupt(Fleet *, int (*poll)(void));
bool fleet_interrupted(const Fleet *);
/* Loads the parameters of the checkpoint in `path`. After an error, which is the same on all ranks, no parameter has
 * changed. */
typedef Err FleetLoad(void *arg, const char *path);
/* Sets the function that each rank calls in the step that applies SIGNAL_WEIGHTS. If the function succeeds, later
 * tokens are computed with the new parameters (EngineEvent.weights). All ranks must call fleet_on_weights before the
 * signal. */
void fleet_on_weights(Fleet *, FleetLoad *, void *arg);
/* Returns the result of the last SIGNAL_WEIGHTS that a step has applied. */
Err fleet_loaded(const Fleet *);
