#include "pipeline/schedule.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/min_max.h"

/* ---- from options ---- */

int64_t pipeline_unit(const Config *c) {
    return c->interleave_forward_backward ? 1 : c->interleaved_microbatches;
}

int64_t pipeline_units(const Config *c, int64_t microbatches) {
    const int64_t each = pipeline_unit(c);
    return (microbatches + each - 1) / each;
}

/* Rejects a last group that has fewer microbatches than ranks, because such a group can deadlock. Megatron-LM
 * also rejects such a group. Unlike Megatron-LM, this schedule supports a step with fewer microbatches than a
 * group. */
static Err check_group(const PipelineSpec *s) {
    int64_t last = s->microbatches % s->group;
    if (s->microbatches <= s->group || !last || last >= s->ranks) return ERR_OK;
    return err_user("%lld microbatches per step in groups of %lld leave a last group of %lld. The "
                    "interleaved schedule can deadlock if the last group has fewer microbatches than "
                    "--pipeline-model-parallel-size %d: change --global-batch-size, --micro-batch-size or "
                    "--microbatch-group-size-per-virtual-pipeline-stage",
                    (long long)s->microbatches, (long long)s->group, (long long)last, s->ranks);
}

Err pipeline_spec(const Config *c, const PipelineLayout *layout, int64_t microbatches, bool forward_only,
                  PipelineSpec *out) {
    PipelineSchedule kind = c->pipeline_schedule,
                     by_chunks = layout->chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
    int64_t group = c->microbatch_group_size_per_virtual_pipeline_stage;
    if (kind == SCHEDULE_AUTO) kind = by_chunks;
    if (kind != by_chunks && kind != SCHEDULE_GPIPE && (layout->chunks > 1 || kind == SCHEDULE_INTERLEAVED))
        return err_user("--pipeline-schedule %s cannot be used with %d virtual stages per pipeline rank: use "
                        "%s or gpipe, or change --num-virtual-stages-per-pipeline-rank",
                        PipelineSchedule_spellings[kind], layout->chunks,
                        PipelineSchedule_spellings[by_chunks]);
    *out = (PipelineSpec){.kind = kind,
                          .ranks = layout->ranks,
                          .chunks = layout->chunks,
                          .microbatches = microbatches,
                          .group = i64_or(group, layout->ranks * (c->interleave_forward_backward ? 2 : 1)),
                          .forward_only = forward_only,
                          .overlap = c->overlap_p2p_communication,
                          .mixed = c->interleave_forward_backward};
    return kind == SCHEDULE_INTERLEAVED && !forward_only ? check_group(out) : ERR_OK;
}

/* ---- messages ---- */

static StageRef stage_at(const PipelineSpec *s, int64_t stage) {
    if (stage < 0 || stage >= (int64_t)s->ranks * s->chunks) return (StageRef){-1, -1};
    return (StageRef){(int)(stage % s->ranks), (int)(stage / s->ranks)};
}

/* Returns the stage that is `ahead` steps away in the action's direction: up for a forward pass, and down for
 * a backward pass. */
static StageRef along(const PipelineSpec *s, int rank, const Action *a, int ahead) {
    if (a->kind == ACTION_BACKWARD_WEIGHT) return (StageRef){-1, -1};
    int64_t stage = (int64_t)a->chunk * s->ranks + rank;
    return stage_at(s, a->kind == ACTION_FORWARD ? stage + ahead : stage - ahead);
}

StageRef pipeline_source(const PipelineSpec *s, int rank, const Action *a) { return along(s, rank, a, -1); }
StageRef pipeline_target(const PipelineSpec *s, int rank, const Action *a) { return along(s, rank, a, 1); }

PipelineWay pipeline_way(const Action *a) { return a->kind == ACTION_FORWARD ? PIPELINE_UP : PIPELINE_DOWN; }

/* ---- one rank's actions ---- */

/* After all warm-ups and delays (fewer than p microbatches each), the schedule of one chunk repeats with every
 * microbatch, and the schedule of several chunks repeats with every group. GPipe has no repeating part. */
PipelineSpec pipeline_shortened(const PipelineSpec *s) {
    enum { GROUPS_KEPT = 4, REPEATED = 3 };
    const bool grouped = s->kind == SCHEDULE_INTERLEAVED;
    const int64_t few = grouped ? GROUPS_KEPT * s->group + s->microbatches % s->group
                                : (int64_t)(s->mixed ? 4 : 2) * s->ranks + REPEATED;
    PipelineSpec out = *s;
    if (s->kind != SCHEDULE_GPIPE) out.microbatches = smaller(s->microbatches, few);
    return out;
}

/* The parameters of a schedule. */
typedef struct Shape {
    int64_t group;
    int64_t warmup; /* number of forward passes before the first backward pass */
    int64_t lag;    /* number of backward passes before the first weight pass */
    bool split;     /* whether separate passes compute input gradients and weight gradients */
} Shape;

static Shape shape_of(const PipelineSpec *s, int rank) {
    int64_t total = s->microbatches * s->chunks, p = s->ranks, behind = p - rank - 1;
    const int64_t pairs = p - rank + ((s->chunks - 1) * s->group + 1) / 2; /* warm-up pairs, with `mixed` */
    if (s->forward_only) return (Shape){.group = p, .warmup = total};
    switch (s->kind) {
    case SCHEDULE_GPIPE:
        return (Shape){.group = s->microbatches, .warmup = total};
    case SCHEDULE_1F1B:
        return (Shape){.group = p, .warmup = s->mixed ? 2 * pairs : behind};
    case SCHEDULE_INTERLEAVED:
        return (Shape){.group = s->group,
                       .warmup = s->mixed ? 2 * pairs : 2 * behind + (s->chunks - 1) * s->group};
    case SCHEDULE_ZERO_BUBBLE:
        return (Shape){.group = p, .warmup = behind, .lag = rank, .split = true};
    case SCHEDULE_AUTO:
        break;
    }
    CHECK(false, "a schedule must be chosen: %d", (int)s->kind);
    return (Shape){0};
}

/* Returns the k-th forward pass. Groups of microbatches run in order. A group runs chunk by chunk, and a chunk runs all
 * microbatches of the group. For backward passes, the order of the chunks is reversed. */
static Action nth(const PipelineSpec *s, int64_t group, ActionKind kind, int64_t k) {
    int64_t first = k / (group * s->chunks) * group, size = smaller(group, s->microbatches - first);
    int64_t in_group = k - first * s->chunks;
    int chunk = (int)(in_group / size);
    return (Action){.kind = kind,
                    .chunk = kind == ACTION_FORWARD ? chunk : s->chunks - 1 - chunk,
                    .microbatch = first + in_group % size};
}

/* Pairs consecutive actions, except those that could deadlock through other ranks: two forward passes of different
 * chunks, two backward passes of different chunks, or a warm-up forward pass and the first backward pass. */
static void make_pairs(const PipelineSpec *s, int64_t warmup, RankSchedule *r) {
    if (!s->mixed || (s->forward_only && s->ranks > 1)) return;
    for (int64_t i = 0; i + 1 < r->count; i += pipeline_step(r, i)) {
        Action *a = &r->actions[i];
        a->pair = a->kind == a[1].kind ? a->chunk == a[1].chunk : i >= warmup && a->kind == ACTION_FORWARD;
    }
}

int64_t pipeline_step(const RankSchedule *r, int64_t action) {
    return action >= r->count ? 0 : r->actions[action].pair ? 2 : 1;
}

bool pipeline_ends_slot(const PipelineSpec *s, const Action *a) {
    if (s->forward_only) return a->kind == ACTION_FORWARD;
    return a->kind == (s->kind == SCHEDULE_ZERO_BUBBLE ? ACTION_BACKWARD_WEIGHT : ACTION_BACKWARD);
}

/* Assigns each (microbatch, chunk) to a free slot, or to a new slot if no slot is free. */
static int64_t assign_slots(const PipelineSpec *s, Action *actions, int64_t count) {
    int64_t total = s->microbatches * s->chunks, slots = 0, n_free = 0;
    int64_t *slot_of = mem_zero((size_t)total, sizeof *slot_of),
            *unused = mem_zero((size_t)total, sizeof *unused);
    for (Action *a = actions; a < actions + count; a++) {
        int64_t *slot = &slot_of[a->microbatch * s->chunks + a->chunk];
        if (a->kind == ACTION_FORWARD) *slot = n_free ? unused[--n_free] : slots++;
        a->slot = *slot;
        if (pipeline_ends_slot(s, a)) unused[n_free++] = *slot;
    }
    free(slot_of);
    free(unused);
    return slots;
}

/* A list of unused receive buffers. */
typedef struct BufferList {
    int64_t *unused, n_unused, count;
} BufferList;

static void assign_buffer(const PipelineSpec *s, int rank, Action *a, BufferList *lists) {
    BufferList *l = &lists[pipeline_way(a)];
    if (pipeline_source(s, rank, a).rank < 0) return;
    a->buffer = l->n_unused ? l->unused[--l->n_unused] : l->count++;
}

static void release_buffers(const PipelineSpec *s, const Action *a, int64_t *held, BufferList *lists) {
    int64_t *mine = &held[a->slot * PIPELINE_WAYS];
    for (int way = 0; pipeline_ends_slot(s, a) && way < PIPELINE_WAYS; way++) {
        if (mine[way]) lists[way].unused[lists[way].n_unused++] = mine[way] - 1;
        mine[way] = 0;
    }
}

/* Assigns buffers in the order in which receives start. */
static void assign_buffers(const PipelineSpec *s, int rank, RankSchedule *r) {
    /* for each slot and direction: 1 + the index of the slot's buffer, or 0 if there is none */
    int64_t *held = mem_zero((size_t)(r->slots * PIPELINE_WAYS), sizeof *held);
    BufferList lists[PIPELINE_WAYS] = {{0}};
    for (int way = 0; way < PIPELINE_WAYS; way++)
        lists[way].unused = mem_zero((size_t)r->slots + 2, sizeof *lists[way].unused);
    for (int64_t i = 0; i < r->count; i++) r->actions[i].buffer = -1;
    int64_t begun = 0; /* number of actions whose receives have started */
    for (int64_t i = 0; i < r->count;) {
        const int64_t end = i + pipeline_step(r, i), next = s->overlap ? end + pipeline_step(r, end) : end;
        while (begun < next) assign_buffer(s, rank, &r->actions[begun++], lists);
        for (int64_t k = i; k < end; k++) {
            const Action *a = &r->actions[k];
            if (a->buffer >= 0) held[a->slot * PIPELINE_WAYS + pipeline_way(a)] = 1 + a->buffer;
        }
        for (; i < end; i++) release_buffers(s, &r->actions[i], held, lists);
    }
    for (int way = 0; way < PIPELINE_WAYS; way++) {
        r->received[way] = lists[way].count;
        free(lists[way].unused);
    }
    free(held);
}

/* Sets the number of send buffers. Two buffers are usually sufficient: one is written while the other is sent.
 * Between the last rank and the first, messages for the next chunk are queued: the receiver reads the first
 * such message only after all microbatches of the group have passed through its current chunk. */
static void count_sent(const PipelineSpec *s, int rank, int64_t group, RankSchedule *r) {
    const int64_t total = s->microbatches * s->chunks,
                  queue = larger(2, smaller(group, s->microbatches) - s->ranks + 1);
    for (int64_t i = 0; i < r->count; i++)
        if (pipeline_target(s, rank, &r->actions[i]).rank >= 0)
            r->sent[pipeline_way(&r->actions[i])] = smaller(total, queue);
}

RankSchedule pipeline_schedule(const PipelineSpec *s, int rank, Arena *arena) {
    Shape shape = shape_of(s, rank);
    int64_t total = s->microbatches * s->chunks, warmup = smaller(shape.warmup, total), weights = 0, n = 0;
    int64_t passes = s->forward_only ? 1 : shape.split ? 3 : 2;
    ActionKind backward = shape.split ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD;
    Action *list = arena_alloc(arena, (size_t)(passes * total) * sizeof *list);
    for (int64_t k = 0; k < total + warmup; k++) {
        int64_t done = k - warmup; /* number of backward passes so far */
        if (k < total) list[n++] = nth(s, shape.group, ACTION_FORWARD, k);
        if (s->forward_only || done < 0) continue;
        list[n++] = nth(s, shape.group, backward, done);
        if (shape.split && done >= shape.lag)
            list[n++] = nth(s, shape.group, ACTION_BACKWARD_WEIGHT, weights++);
    }
    while (shape.split && weights < total) list[n++] = nth(s, shape.group, ACTION_BACKWARD_WEIGHT, weights++);
    RankSchedule out = {.actions = list, .count = n};
    if (s->forward_only) {
        out.slots = smaller(2, total);
        for (int64_t i = 0; i < n; i++) list[i].slot = i % out.slots;
    } else {
        out.slots = assign_slots(s, list, n);
    }
    make_pairs(s, shape.warmup, &out);
    assign_buffers(s, rank, &out);
    count_sent(s, rank, shape.group, &out);
    return out;
}
