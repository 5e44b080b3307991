/* Simulates the schedules of all ranks with the given pass durations. Checks that the schedules finish and that every
 * pass runs once, in order and in its slot. Returns the start time of each action and the total duration. */
#pragma once

#include "pipeline/schedule.h"

/* The durations of passes, in any unit. ACTION_BACKWARD takes backward_input + backward_weight. */
typedef struct PassTimes {
    double forward, backward_input, backward_weight;
} PassTimes;

typedef struct PipelineTimes {
    const PassTimes *stages; /* [chunks * ranks], in the order of PipelineLayout.stages */
    double latency;          /* time from the end of a pass to the arrival of its message */
    bool rendezvous; /* whether a send finishes when its message is received, instead of immediately */
} PipelineTimes;

double pipeline_duration(const PipelineSpec *, const PipelineTimes *, int rank, const Action *);

typedef struct RankTrace {
    double busy;        /* time spent in passes; the rest of the makespan is the bubble */
    int64_t peak_slots; /* maximum number of slots in use */
    double *start;      /* [count]: start time of each action */
} RankTrace;

typedef struct Simulation {
    double makespan; /* time from the start of the first pass to the end of the last pass, over all ranks */
    RankTrace *ranks;
} Simulation;

/* `schedules` has one entry per rank. An error (ERR_FAILED) names the rank, the action and the problem: a deadlock, a
 * pass that is missing, duplicated or out of order, a message out of order, or a wrong slot. The arrays in `out` are
 * allocated in the arena. */
Err pipeline_simulate(const PipelineSpec *, const RankSchedule *schedules, const PipelineTimes *, Arena *,
                      Simulation *out);

/* Returns the bubble of equal stages without latency in closed form: the makespan minus the busy time of any rank. The
 * bubble is (p - 1) (F + I + W) per chunk for gpipe, 1f1b and interleaved, twice as much for pairs (`mixed`), and (p -
 * 1) (F + I - W) for zero-bubble with at least p microbatches.
 *
 * The result is NaN if there is no formula. The formula for several chunks requires that the last group has
 * at least p microbatches. The formula for pairs requires an even number of microbatches, or at least 2 p
 * microbatches. With several chunks, the formula requires equal groups with an even number of microbatches that is at
 * least 2 p. The formula for zero-bubble requires a weight pass to be no longer than any other pass. */
double pipeline_bubble(const PipelineSpec *, PassTimes);
