/* The schedules of all ranks with their simulation, and a sweep over all small cases. */
#pragma once

#include <math.h>
#include <string.h>

#include "unit/cmocka_all.h"

#include "pipeline/simulate.h"

enum { PLAN_RANKS = 8, PLAN_STAGES = 32 };

typedef struct Plan {
    Arena *arena;
    PipelineSpec spec;
    RankSchedule ranks[PLAN_RANKS];
    PassTimes stages[PLAN_STAGES];
    PipelineTimes times;
    Simulation out;
} Plan;

static inline void plan_make(Plan *p, Arena *arena, PipelineSpec spec, PassTimes each) {
    *p = (Plan){.arena = arena, .spec = spec};
    p->times.stages = p->stages;
    for (int i = 0; i < PLAN_STAGES; i++) p->stages[i] = each;
    for (int rank = 0; rank < spec.ranks; rank++) p->ranks[rank] = pipeline_schedule(&spec, rank, arena);
}

static inline Err plan_try(Plan *p) {
    return pipeline_simulate(&p->spec, p->ranks, &p->times, p->arena, &p->out);
}

static inline void plan_play(Plan *p) {
    Err e = plan_try(p);
    const PipelineSpec *s = &p->spec;
    if (e.code)
        fail_msg("%s p %d v %d M %d G %d forward only %d mixed %d: %s", PipelineSchedule_spellings[s->kind],
                 s->ranks, s->chunks, (int)s->microbatches, (int)s->group, s->forward_only, s->mixed, e.msg);
}

/* Whether the group size of the interleaved schedule is valid. */
static inline bool plan_group_fits(int p, int m, int group) {
    return group >= p && (m <= group || m % group == 0 || m % group >= p);
}

/* Calls visit for every valid case with p in 1..8, v in 1..4, M in 1..20. */
static inline void plan_sweep(void (*visit)(Arena *, PipelineSpec)) {
    Arena *arena = arena_new();
    for (int kind = SCHEDULE_GPIPE; kind <= SCHEDULE_ZERO_BUBBLE; kind++)
        for (int p = 1; p <= PLAN_RANKS; p++)
            for (int v = 1; v <= (p == 1 ? 1 : 4); v++)
                for (int m = 1; m <= 20; m++)
                    for (int group = 1; group <= 20; group++) {
                        bool interleaved = kind == SCHEDULE_INTERLEAVED;
                        if (v > 1 && !interleaved && kind != SCHEDULE_GPIPE) continue;
                        if (interleaved ? v == 1 || !plan_group_fits(p, m, group) : group > 1) continue;
                        arena_reset(arena);
                        visit(arena, (PipelineSpec){kind, p, v, m, group, false, true, false});
                        if (!interleaved && kind != SCHEDULE_1F1B) continue;
                        visit(arena, (PipelineSpec){kind, p, v, m, group, false, true, true});
                    }
    arena_free(arena);
}
