/* Pipeline schedules as data: the ordered list of the passes that each rank runs in a step.
 *   `gpipe`        runs all forward passes, then all backward passes (Huang et al. 2019, arXiv 1811.06965).
 *   `1f1b`         runs min(p - r - 1, M) forward passes, then alternately forward and backward passes (PipeDream,
 *                  arXiv 1806.03377).
 *   `interleaved`  is 1F1B over the chunks of a rank (Narayanan et al. 2021, arXiv 2104.04473; Megatron-LM
 *                  core/pipeline_parallel/schedules.py), with 2 (p - r - 1) + (v - 1) G forward passes first.
 *   `zero-bubble`  is ZB-H1 (Qi et al. 2023, arXiv 2401.10241): 1F1B with the weight gradients of rank r delayed
 *                  by r microbatches; as in 1F1B, at most p microbatches are in flight on a rank.
 *
 * An action can run several microbatches interleaved (executor.h). In this file, "microbatch" means all
 * microbatches of one action. With `mixed`, the schedules `1f1b` and `interleaved` run pairs of consecutive actions
 * interleaved: two forward passes in the warm-up, then a backward and a forward pass, and finally two backward passes.
 * A message arrives only after both actions of a pair, so the warm-up has more forward passes: 2 (p - r) + (v - 1) G,
 * rounded up to an even number. (Megatron-LM schedules.py adds one forward pass with
 * --overlap-moe-expert-parallel-comm.)
 *
 * p is the number of ranks, r this rank, v the number of chunks per rank, M the number of microbatches, and G
 * the number of microbatches that one chunk processes before the next chunk.
 *
 * In every schedule, a chunk's backward and weight passes run in the order of the microbatches. Gradients are therefore
 * summed in a fixed order and are bitwise equal for all schedules.
 *
 * Messages are not actions: pipeline_source and pipeline_target derive the messages from an action. To run an
 * action, wait for the source's message, compute, and start to send the result to the target. A forward pass
 * sends the activation to the next stage, and a backward pass sends the gradient of the stage's input to the
 * previous stage. A rank's k-th message in a direction is sent from buffer k % sent[direction]. A message is
 * received into the buffer of its action, which is in use until the last pass of the action's slot. The receive
 * starts before the action or, with `overlap`, before the previous action, so that the message arrives while
 * the previous action computes.
 *
 * A send must finish before its buffer is written again. No schedule can deadlock while it waits for sends,
 * even if a send finishes only when its message is received. Between two ranks, forward messages are received
 * in the order in which they are sent, and so are backward messages. With two ranks and several chunks,
 * messages in both directions use the same pair of ranks and may overtake each other, so the two directions
 * need separate channels. */
#pragma once

#include "pipeline/layout.h"

typedef enum ActionKind {
    ACTION_FORWARD,
    ACTION_BACKWARD,        /* computes input and weight gradients */
    ACTION_BACKWARD_INPUT,  /* computes only input gradients */
    ACTION_BACKWARD_WEIGHT, /* computes the weight gradients of an earlier BACKWARD_INPUT */
} ActionKind;

typedef struct Action {
    ActionKind kind;
    int chunk;
    int64_t microbatch;
    int64_t slot; /* the memory that holds the activations of (microbatch, chunk) until its last pass */
    /* index, for the message's direction, of the buffer that receives the source's message; -1 if there is no
     * message */
    int64_t buffer;
    bool pair; /* whether the action runs interleaved with the next action */
} Action;

typedef struct PipelineSpec {
    PipelineSchedule kind; /* never SCHEDULE_AUTO */
    int ranks, chunks;
    int64_t microbatches, group;
    bool forward_only; /* true for an evaluation: groups of p microbatches, in two alternating slots */
    bool overlap;      /* whether a message is received while the previous action computes */
    bool mixed;        /* set by --interleave-forward-backward */
} PipelineSpec;

typedef enum PipelineWay {
    PIPELINE_UP,
    PIPELINE_DOWN,
    PIPELINE_WAYS
} PipelineWay; /* the direction of a message */

typedef struct RankSchedule {
    Action *actions;
    int64_t count;
    int64_t slots; /* maximum number of (microbatch, chunk) pairs in flight; at most two with forward_only */
    int64_t received[PIPELINE_WAYS], sent[PIPELINE_WAYS]; /* number of message buffers */
} RankSchedule;

/* The rank and the chunk at the other end of a message. The rank is -1 if there is no message. */
typedef struct StageRef {
    int rank, chunk;
} StageRef;

/* Returns the number of microbatches per action. */
int64_t pipeline_unit(const Config *);
/* Returns the number of microbatches in a schedule. All microbatches of an action count as one. */
int64_t pipeline_units(const Config *, int64_t microbatches);
/* Returns the schedule that the options select. A schedule that does not support the number of chunks, or a
 * group size that does not match the number of microbatches, is a user error. */
Err pipeline_spec(const Config *, const PipelineLayout *, int64_t microbatches, bool forward_only,
                  PipelineSpec *out);
/* Returns a schedule with fewer microbatches that still contains the repeating part. Every rank needs as much
 * memory as in the full schedule, including slots and gradients. */
PipelineSpec pipeline_shortened(const PipelineSpec *);
/* Returns one rank's passes, which are allocated in the arena. */
RankSchedule pipeline_schedule(const PipelineSpec *, int rank, Arena *);

/* Return the stage that sends the message that the action waits for, and the stage that receives the action's
 * result. */
StageRef pipeline_source(const PipelineSpec *, int rank, const Action *);
StageRef pipeline_target(const PipelineSpec *, int rank, const Action *);
PipelineWay pipeline_way(const Action *);
/* Returns the number of actions in the next step, which begins with `action`: 1, 2 for a pair, or 0 after the last
 * action. */
int64_t pipeline_step(const RankSchedule *, int64_t action);
/* Returns whether the action is the last pass that uses its slot. */
bool pipeline_ends_slot(const PipelineSpec *, const Action *);
