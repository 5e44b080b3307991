/* Compares the simulator with closed forms and longest paths, and runs it on wrong schedules. */
#include "unit/pipeline/plan.h"

#include "base/philox.h"

/* The bound on rounding errors: the times below are sums along a path, with rounding error n t u for n terms
 * and a total t. */
static double path_error(const Plan *p) {
    return (double)(p->ranks[0].count * p->spec.ranks) * p->out.makespan * 0x1p-53;
}

/* ---- times ---- */

static void assert_bubble(const Plan *p, double expected) {
    for (int rank = 0; rank < p->spec.ranks; rank++)
        if (fabs(p->out.makespan - p->out.ranks[rank].busy - expected) > path_error(p))
            fail_msg("%s p %d v %d M %d: bubble %g, not %g", PipelineSchedule_spellings[p->spec.kind],
                     p->spec.ranks, p->spec.chunks, (int)p->spec.microbatches,
                     p->out.makespan - p->out.ranks[rank].busy, expected);
}

/* Compares the bubble (for pairs, twice the bubble) with the formulas of the papers. Some times are exact in binary,
 * others are not. */
static void visit_bubble(Arena *arena, PipelineSpec s) {
    static const PassTimes times[] = {{1, 1, 1}, {1, 1.5, 0.5}, {0.3, 0.7, 0.1}};
    int64_t m = s.microbatches, p = s.ranks, at_a_time = s.mixed ? 2 : 1;
    if (s.chunks > 1 && (s.kind == SCHEDULE_GPIPE ? m < p : m % p || m < s.group)) return;
    if (s.mixed && (s.chunks > 1 ? s.group % 2 || s.group < 2 * p || m % s.group : m % 2 && m < 2 * p))
        return;
    if (s.kind == SCHEDULE_ZERO_BUBBLE && m < p) return;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        PassTimes t = times[i];
        double weight = s.kind == SCHEDULE_ZERO_BUBBLE ? -t.backward_weight : t.backward_weight;
        Plan plan;
        plan_make(&plan, arena, s, t);
        plan_play(&plan);
        double bubble = (double)(at_a_time * (p - 1)) * (t.forward + t.backward_input + weight);
        assert_bubble(&plan, bubble);
        assert_bubble(&plan, pipeline_bubble(&s, t));
        if (s.kind == SCHEDULE_INTERLEAVED) { /* Narayanan et al. 2021: (p - 1) / (v m) */
            double ideal = plan.out.ranks[0].busy;
            assert_true(fabs((plan.out.makespan - ideal) / ideal -
                             (double)(at_a_time * (p - 1)) / (double)(s.chunks * m)) < 1e-12);
        }
    }
}

TEST(bubbles_are_the_closed_forms) { plan_sweep(visit_bubble); }

/* In cases that the papers do not cover, pipeline_bubble must be correct or NaN. */
static void visit_other_bubble(Arena *arena, PipelineSpec s) {
    static const PassTimes times[] = {{1, 1, 1}, {3, 1, 2}, {1, 2, 1.5}};
    for (int forward_only = 0; forward_only < 2; forward_only++)
        for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
            Plan plan;
            s.forward_only = forward_only;
            plan_make(&plan, arena, s, times[i]);
            plan_play(&plan);
            double formula = pipeline_bubble(&s, times[i]);
            if (!isnan(formula)) assert_bubble(&plan, formula);
        }
}

TEST(a_formula_is_right_where_there_is_one) { plan_sweep(visit_other_bubble); }

static double start_of(const Plan *p, int rank, ActionKind kind, int chunk, int64_t microbatch,
                       double *takes) {
    for (int64_t i = 0; i < p->ranks[rank].count; i++) {
        const Action *a = &p->ranks[rank].actions[i];
        bool same = a->kind == kind || (kind != ACTION_FORWARD && a->kind == ACTION_BACKWARD);
        if (!same || a->chunk != chunk || a->microbatch != microbatch) continue;
        *takes = pipeline_duration(&p->spec, &p->times, rank, a);
        return p->out.ranks[rank].start[i];
    }
    fail_msg("there is no such pass");
    return 0;
}

/* Every kind of schedule, with numbers of microbatches that are not multiples of the group. */
static const PipelineSpec SPECS[] = {
    {SCHEDULE_GPIPE, 3, 2, 5, 3, false, false, false},
    {SCHEDULE_1F1B, 4, 1, 7, 4, false, false, false},
    {SCHEDULE_INTERLEAVED, 3, 3, 8, 5, false, false, false},
    {SCHEDULE_INTERLEAVED, 2, 2, 6, 4, false, false, false},
    {SCHEDULE_ZERO_BUBBLE, 4, 1, 6, 4, false, false, false},
    {SCHEDULE_INTERLEAVED, 3, 2, 7, 3, true, false, false},
    {SCHEDULE_GPIPE, 2, 2, 4, 2, false, false, false},
    {SCHEDULE_1F1B, 3, 1, 5, 3, false, false, false},
    {SCHEDULE_INTERLEAVED, 3, 2, 7, 4, false, false, false},
    {SCHEDULE_INTERLEAVED, 2, 3, 5, 3, false, false, false},
    {SCHEDULE_ZERO_BUBBLE, 3, 1, 5, 3, false, false, false},
    {SCHEDULE_INTERLEAVED, 2, 2, 5, 2, true, false, false},
    {SCHEDULE_1F1B, 1, 1, 3, 1, true, false, false},
};
enum { N_SPECS = sizeof SPECS / sizeof *SPECS };

/* For any times of the stages, every pass must start exactly when its last dependency is complete. A pass depends on
 * the previous pass of its rank, and on the same pass of the previous stage plus the latency. */
TEST(passes_start_as_soon_as_they_can) {
    Arena *arena = arena_new();
    for (size_t i = 0; i < N_SPECS; i++) {
        const PipelineSpec *s = &SPECS[i];
        Plan p;
        plan_make(&p, arena, *s, (PassTimes){0});
        for (int k = 0; k < s->ranks * s->chunks; k++) {
            Philox4 r = philox4x32(7, i, (uint64_t)k);
            p.stages[k] = (PassTimes){1 + r.v[0] % 8, 1 + r.v[1] % 8,
                                      1 + r.v[2] % 8}; /* integers, so that sums are exact */
        }
        p.times.latency = 0.5;
        plan_play(&p);
        for (int rank = 0; rank < s->ranks; rank++) {
            double clock = 0;
            for (int64_t k = 0; k < p.ranks[rank].count; k++) {
                const Action *a = &p.ranks[rank].actions[k];
                double need = clock, takes = 0;
                int stage = a->chunk * s->ranks + rank,
                    before = a->kind == ACTION_FORWARD ? stage - 1 : stage + 1;
                if (a->kind != ACTION_BACKWARD_WEIGHT && before >= 0 && before < s->ranks * s->chunks) {
                    ActionKind kind = a->kind == ACTION_FORWARD ? a->kind : ACTION_BACKWARD_INPUT;
                    double start =
                        start_of(&p, before % s->ranks, kind, before / s->ranks, a->microbatch, &takes);
                    need = fmax(need, start + takes + p.times.latency);
                }
                assert_true(p.out.ranks[rank].start[k] == need);
                const PassTimes *t = &p.stages[stage];
                clock = need + (a->kind == ACTION_FORWARD          ? t->forward
                                : a->kind == ACTION_BACKWARD       ? t->backward_input + t->backward_weight
                                : a->kind == ACTION_BACKWARD_INPUT ? t->backward_input
                                                                   : t->backward_weight);
            }
            assert_true(clock <= p.out.makespan);
        }
    }
    arena_free(arena);
}

/* ---- buffers ---- */

/* Even if sends end only when they are received, there must be no deadlock, the time must be unchanged, and all slots
 * must be used at the peak. */
static void visit_rendezvous(Arena *arena, PipelineSpec s) {
    for (int forward_only = 0; forward_only < 2; forward_only++) {
        Plan plan;
        s.forward_only = forward_only;
        plan_make(&plan, arena, s, (PassTimes){1, 1, 1});
        plan_play(&plan);
        double eager = plan.out.makespan;
        plan.times.rendezvous = true;
        plan_play(&plan);
        assert_true(plan.out.makespan == eager);
        for (int rank = 0; rank < s.ranks && !forward_only; rank++)
            assert_int_equal(plan.out.ranks[rank].peak_slots, plan.ranks[rank].slots);
    }
}

TEST(buffers_suffice_where_sends_wait_for_receives) { plan_sweep(visit_rendezvous); }

TEST(too_few_buffers_to_send_from_deadlock) {
    Arena *arena = arena_new();
    for (int way = 0; way < PIPELINE_WAYS; way++) {
        Plan p;
        plan_make(&p, arena, (PipelineSpec){SCHEDULE_INTERLEAVED, 2, 2, 16, 8, false, false, false},
                  (PassTimes){1, 1, 1});
        p.times.rendezvous = true;
        plan_play(&p);
        for (int rank = 0; rank < 2; rank++) p.ranks[rank].sent[way] = 5;
        Err e = plan_try(&p);
        assert_int_equal(e.code, ERR_FAILED);
        assert_non_null(strstr(e.msg, "a deadlock: it waits for "));
    }
    arena_free(arena);
}

/* A message must not overwrite one that a slot still uses, even if its receive starts early. */
TEST(a_buffer_in_use_is_not_received_into) {
    Arena *arena = arena_new();
    for (int kind = SCHEDULE_GPIPE; kind <= SCHEDULE_ZERO_BUBBLE; kind++)
        for (int way = 0; way < PIPELINE_WAYS; way++) {
            Plan p;
            plan_make(&p, arena,
                      (PipelineSpec){kind, 2, kind == SCHEDULE_INTERLEAVED ? 2 : 1, 4, 2, false, true, false},
                      (PassTimes){1, 1, 1});
            plan_play(&p);
            const int rank = way == PIPELINE_UP;
            bool fewer = p.ranks[rank].received[way] > 1;
            for (int64_t i = 0; i < p.ranks[rank].count; i++) {
                Action *a = &p.ranks[rank].actions[i];
                if (a->buffer > 0 && pipeline_way(a) == (PipelineWay)way) a->buffer = 0;
            }
            const Err e = plan_try(&p);
            assert_int_equal(e.code, fewer ? ERR_FAILED : ERR_NONE);
            if (fewer) assert_non_null(strstr(e.msg, "the message's buffer is in use"));
        }
    arena_free(arena);
}

/* Computed by hand: rank 1 runs F0 at 3-4, B0 at 4-6, F1 at 6-7, and rank 0 receives the gradient of B0 at
 * 8. */
TEST(a_full_gradient_buffer_delays_the_next_backward) {
    Arena *arena = arena_new();
    Plan p;
    plan_make(&p, arena, (PipelineSpec){SCHEDULE_1F1B, 2, 1, 2, 2, false, false, false},
              (PassTimes){1, 1, 1});
    p.times.latency = 2;
    p.times.rendezvous = true;
    plan_play(&p);
    assert_true(p.out.ranks[1].start[3] == 7);
    p.ranks[1].sent[PIPELINE_DOWN] = 1;
    plan_play(&p);
    assert_true(p.out.ranks[1].start[3] == 8);
    arena_free(arena);
}

/* ---- wrong schedules ---- */

static void assert_caught(Plan *p, const char *what, int rank, int64_t at) {
    Err e = plan_try(p);
    if (e.code != ERR_FAILED || !strstr(e.msg, "pipeline rank "))
        fail_msg("%s: %s at action %d of rank %d is not caught", PipelineSchedule_spellings[p->spec.kind],
                 what, (int)at, rank);
}

static void break_each(Plan *p, int rank, int64_t at) {
    RankSchedule *r = &p->ranks[rank], good = *r;
    Action *a = &r->actions[at], was = *a, next = at + 1 < r->count ? a[1] : was;
    const PipelineSpec *s = &p->spec;
    a->slot = (a->slot + 1) % r->slots;
    if (a->slot != was.slot && !s->forward_only) assert_caught(p, "a wrong slot", rank, at);
    a->slot = r->slots;
    assert_caught(p, "a slot out of range", rank, at);
    a->slot = -1;
    assert_caught(p, "a negative slot", rank, at);
    *a = was;
    a->microbatch = (a->microbatch + 1) % s->microbatches;
    assert_caught(p, "a wrong microbatch", rank, at);
    *a = was;
    a->chunk = (a->chunk + 1) % (s->chunks + 1);
    assert_caught(p, "a wrong chunk", rank, at);
    *a = was;
    a->kind = a->kind == ACTION_FORWARD ? ACTION_BACKWARD : ACTION_FORWARD;
    assert_caught(p, "a wrong kind", rank, at);
    *a = was;
    if (was.kind == ACTION_BACKWARD) {
        a->kind = ACTION_BACKWARD_INPUT;
        assert_caught(p, "a weight gradient left out", rank, at);
        *a = was;
    }
    if (next.kind == was.kind && at + 1 < r->count &&
        s->ranks > 1) { /* a single rank may start with any pass */
        a[0] = next, a[1] = was;
        assert_caught(p, "a swapped pair", rank, at);
        a[0] = was, a[1] = next;
    }
    r->actions = arena_alloc(p->arena, (size_t)(good.count + 1) * sizeof *a);
    for (int doubled = 0; doubled < 2; doubled++) {
        int64_t n = 0;
        for (int64_t i = 0; i < good.count; i++)
            for (int copies = i == at ? 2 * doubled : 1; copies > 0; copies--)
                r->actions[n++] = good.actions[i];
        r->count = n;
        assert_caught(p, doubled ? "a doubled action" : "a dropped action", rank, at);
    }
    *r = good;
}

TEST(every_broken_action_is_caught) {
    Arena *arena = arena_new();
    for (size_t i = 0; i < N_SPECS; i++) {
        Plan p;
        plan_make(&p, arena, SPECS[i], (PassTimes){1, 1, 1});
        plan_play(&p);
        for (int rank = 0; rank < p.spec.ranks; rank++)
            for (int64_t at = 0; at < p.ranks[rank].count; at++) break_each(&p, rank, at);
        plan_play(&p);
    }
    arena_free(arena);
}

/* ---- error messages ---- */

static void assert_sentence(bool forward_only, int rank, int64_t at, Action broken, const char *sentence) {
    Arena *arena = arena_new();
    Plan p;
    plan_make(&p, arena, (PipelineSpec){SCHEDULE_ZERO_BUBBLE, 2, 1, 3, 2, forward_only, false, false},
              (PassTimes){1, 1, 1});
    p.ranks[rank].actions[at] = broken;
    Err e = plan_try(&p);
    assert_string_equal(e.msg, sentence);
    arena_free(arena);
}

TEST(sentences_name_rank_action_and_reason) {
    assert_sentence(false, 0, 2, (Action){ACTION_BACKWARD_INPUT, 0, 1, 1, -1, false},
                    "pipeline rank 0, action 2, input gradient of microbatch 1, chunk 0, slot 1: backward "
                    "passes must process the microbatches in order");
    assert_sentence(
        false, 0, 1, (Action){ACTION_FORWARD, 0, 1, 0, -1, false},
        "pipeline rank 0, action 1, forward of microbatch 1, chunk 0, slot 0: the slot is in use");
    assert_sentence(false, 1, 0, (Action){ACTION_FORWARD, 0, 1, 0, -1, false},
                    "pipeline rank 1, action 0, forward of microbatch 1, chunk 0, slot 0: it receives a "
                    "message before another message that was sent earlier");
    assert_sentence(false, 1, 4, (Action){ACTION_BACKWARD_WEIGHT, 0, 1, 1, -1, false},
                    "pipeline rank 1, action 4, weight gradient of microbatch 1, chunk 0, slot 1: weight "
                    "passes must process the microbatches in order");
    assert_sentence(false, 0, 8, (Action){ACTION_BACKWARD_INPUT, 0, 2, 0, -1, false},
                    "pipeline rank 0, action 8, input gradient of microbatch 2, chunk 0, slot 0: backward "
                    "passes must process the microbatches in order");
    assert_sentence(false, 0, 2, (Action){ACTION_BACKWARD_WEIGHT, 0, 0, 0, -1, false},
                    "pipeline rank 0, action 2, weight gradient of microbatch 0, chunk 0, slot 0: its input "
                    "gradient has not been computed");
    assert_sentence(false, 1, 0, (Action){ACTION_BACKWARD_INPUT, 0, 0, 0, -1, false},
                    "pipeline rank 1, action 0, input gradient of microbatch 0, chunk 0, slot 0: its forward "
                    "pass has not run");
    assert_sentence(true, 1, 1, (Action){ACTION_BACKWARD, 0, 0, 0, -1, false},
                    "pipeline rank 1, action 1, backward of microbatch 0, chunk 0, slot 0: the schedule is "
                    "only for forward passes");
}
