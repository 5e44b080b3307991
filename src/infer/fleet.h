/* Generates on all ranks. Each data-parallel replica has an engine (engine.h), which all its ranks run. Rank 0
 * receives requests and signals, numbers them, and sends them to all ranks before each pass. Every rank applies them
 * in this order, so all ranks of a replica make the same calls, and only rank 0 makes decisions. All replicas run
 * their steps together. Rank 0 receives the events of all replicas.
 *
 * A request goes to the replica with the fewest requests. With one rank, the fleet calls the engine directly. */
#pragma once

#include "infer/fleet_state.h"

typedef struct Fleet Fleet;

/* Like engine_new. All ranks must call it, and all return the same error. */
Err fleet_new(const Model *, const RunContext *, const EngineLimits *, Fleet **out);
/* On rank 0, this function first ends the calls of fleet_follow. */
void fleet_free(Fleet *);

/* Returns whether this is rank 0, which makes the calls below. */
bool fleet_leads(const Fleet *);
/* All other ranks must call it once. It returns when rank 0 stops or frees its fleet. */
void fleet_follow(Fleet *);

/* Like engine_add, outside of a step. The request must not be steered. */
Err fleet_add(Fleet *, const Request *);
/* Like engine_abort. No later event of the request is reported, but its pages become free only in the next step. */
bool fleet_abort(Fleet *, int64_t id);
/* Applies the requests, aborts and signals since the last call on all ranks. Then runs a pass, unless the fleet is
 * paused, suspended or stopped. Returns false if there was nothing to compute. Events of a replica are in the order of
 * its admission. The sink may call fleet_abort. */
bool fleet_step(Fleet *, EngineSink *, void *arg);
/* Returns the sums over the replicas at the end of the last step. For `passes` and `model_ns`, these are maxima. */
EngineCounts fleet_counts(const Fleet *);

/* Sends a signal, which takes effect in the next step. Returns a user error if it is not allowed in this state. A
 * signal never waits forever: a rank that does not follow within the Comm's deadline ends the world. */
Err fleet_signal(Fleet *, FleetSignal);
FleetState fleet_state(const Fleet *);
/* Sets a function that returns whether this rank must end, for example because of a signal. Every half second, in a
 * step, rank 0 collects these results. fleet_interrupted is then true on rank 0. */
void fleet_on_interrupt(Fleet *, int (*poll)(void));
bool fleet_interrupted(const Fleet *);
/* Sets the function that each rank calls in the step of SIGNAL_WEIGHTS to change the model's parameters. Later tokens
 * are computed with the new parameters (EngineEvent.weights). All ranks must call it before the signal. */
void fleet_on_weights(Fleet *, void (*load)(void *arg), void *arg);
