/* Pipeline schedules as data: for each rank the list of passes it makes in a step, in order.
 *   gpipe        all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)
 *   1f1b         min(p - r - 1, M) forwards, then one forward, one backward (PipeDream, arXiv 1806.03377)
 *   interleaved  1F1B over the chunks of a rank (Narayanan et al. 2021, arXiv 2104.04473; Megatron-LM
 *                core/pipeline_parallel/schedules.py), 2 (p - r - 1) + (v - 1) G forwards first
 *   zero-bubble  ZB-H1 (Qi et al. 2023, arXiv 2401.10241): 1F1B with the weight gradients of rank r put
 *                off by r microbatches; no rank has more than 1F1B's p microbatches in flight
 * p ranks, r this one, v chunks a rank, M microbatches, G the group of microbatches that a chunk takes before
 * the next chunk does.
 *
 * In every schedule the backwards and the weight gradients of a chunk run in the order of the microbatches,
 * so gradients are added up in one order and are bitwise the same whatever the schedule.
 *
 * Messages are not actions: they follow from an action by one rule (pipeline_source, pipeline_target).
 * Playing a list means: receive what the source sent (blocking), run, start to send the result to the target
 * (not blocking). A forward carries the activation and sends from its slot; a backward carries the gradient
 * of the stage's input, and a rank's k-th such message goes through buffer k % gradients. A send must have
 * ended before its buffer is written again; no schedule deadlocks on that, even if a send ends only when it
 * is received. From one rank to another the forward messages are received in the order in which they are
 * sent, and so are the backward ones; with two ranks and several chunks the two ways share the pair of ranks
 * and overtake each other, so each needs a channel of its own. */
#ifndef ISOTRON_PIPELINE_SCHEDULE_H
#define ISOTRON_PIPELINE_SCHEDULE_H

#include "pipeline/layout.h"

typedef enum ActionKind {
    ACTION_FORWARD,
    ACTION_BACKWARD,        /* input and weight gradients */
    ACTION_BACKWARD_INPUT,  /* input gradients only */
    ACTION_BACKWARD_WEIGHT, /* the weight gradients of an earlier BACKWARD_INPUT */
} ActionKind;

typedef struct Action {
    ActionKind kind;
    int chunk;
    int64_t microbatch;
    int64_t slot; /* where the activations of (microbatch, chunk) live until its last pass */
} Action;

typedef struct PipelineSpec {
    PipelineSchedule kind; /* never SCHEDULE_AUTO */
    int ranks, chunks;
    int64_t microbatches, group;
    bool forward_only; /* evaluation: in groups of p, with two slots that take turns */
} PipelineSpec;

typedef struct RankSchedule {
    Action *actions;
    int64_t count;
    int64_t slots;     /* as many as (microbatch, chunk) pairs are ever in flight; at most two forward_only */
    int64_t gradients; /* buffers for input gradients on their way */
} RankSchedule;

/* The rank and chunk at the other end of a message; rank -1: there is none. */
typedef struct StageRef {
    int rank, chunk;
} StageRef;

/* The schedule that the options ask for. A schedule that does not fit the chunks and a group that does not
 * fit the microbatches are user errors. */
Err pipeline_spec(const Config *, const PipelineLayout *, int64_t microbatches, bool forward_only,
                  PipelineSpec *out);
/* The same schedule with fewer microbatches, but enough to repeat what it repeats: every rank needs as much
 * memory for them, slots and gradients included. */
PipelineSpec pipeline_shortened(const PipelineSpec *);
/* The passes of one rank; they belong to the arena. */
RankSchedule pipeline_schedule(const PipelineSpec *, int rank, Arena *);

/* Whose message the action waits for, and who waits for its result. */
StageRef pipeline_source(const PipelineSpec *, int rank, const Action *);
StageRef pipeline_target(const PipelineSpec *, int rank, const Action *);

#endif
