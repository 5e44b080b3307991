/* Generates on all ranks. Each data-parallel replica has an engine (engine.h), which all its ranks run. Rank 0 gets
 * requests and signals, numbers them, and sends them to all ranks before each pass. Every rank applies them in this
 * order, so all ranks of a replica make the same calls, and no rank except rank 0 decides anything. All replicas step
 * together. Rank 0 gets the events of all replicas.
 *
 * A request goes to the replica with the fewest requests. With one rank, the calls are those of the engine. */
#pragma once

#include "infer/fleet_state.h"

typedef struct Fleet Fleet;

/* As engine_new. All ranks must call it and get the same error. */
Err fleet_new(const Model *, const RunContext *, const EngineLimits *, Fleet **out);
/* On rank 0, it first ends the calls of fleet_follow. */
void fleet_free(Fleet *);

/* Whether this is rank 0, which makes the calls below. */
bool fleet_leads(const Fleet *);
/* The other ranks call it once. It returns when rank 0 stops or frees its fleet. */
void fleet_follow(Fleet *);

/* As engine_add, outside of a step. The request must not be steered. */
Err fleet_add(Fleet *, const Request *);
/* As engine_abort. No further event of the request is reported, but its pages are free only in the next step. */
bool fleet_abort(Fleet *, int64_t id);
/* Applies the requests, aborts and signals since the last call on all ranks. Then runs a pass, unless the fleet is
 * paused, suspended or stopped. Returns false if there was nothing to compute. Events of a replica are in the order of
 * its admission. The sink may call fleet_abort. */
bool fleet_step(Fleet *, EngineSink *, void *arg);
/* The sums over the replicas at the end of the last step; for `passes` and `model_ns`, the maxima. */
EngineCounts fleet_counts(const Fleet *);

/* Sends a signal, which takes effect in the next step. Returns a user error if it is not allowed in this state. No
 * signal waits forever: a rank that does not follow within the Comm's deadline ends the world. */
Err fleet_signal(Fleet *, FleetSignal);
FleetState fleet_state(const Fleet *);
/* Sets a function that tells whether this rank must end, for example because of a signal. Rank 0 collects the answers
 * each half second, in steps: fleet_interrupted is then true on rank 0. */
void fleet_on_interrupt(Fleet *, int (*poll)(void));
bool fleet_interrupted(const Fleet *);
/* Sets what each rank calls in the step of SIGNAL_WEIGHTS to change the model's parameters. Later tokens are those of
 * the new parameters (EngineEvent.weights). All ranks must call it before. */
void fleet_on_weights(Fleet *, void (*load)(void *arg), void *arg);
