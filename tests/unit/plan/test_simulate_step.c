/* Compares simulated steps with times calculated by hand, and checks that less work is never slower. */
#include "unit/err.h"

#include <float.h>
#include <math.h>

#include "base/philox.h"
#include "plan/simulate_step.h"

enum { RANKS = 3, MOST = 64, CHANNELS = 4, TP = 1 << AXIS_TP, DP = 1 << AXIS_DP, PP = 1 << AXIS_PP };

/* A step that a test builds call by call. */
typedef struct Script {
    Arena *arena;
    SimRank rank[RANKS];
    int members[2 * CHANNELS];
    SimStep step;
    SimTimes times;
} Script;

static Script script_new(int ranks) {
    Script s = {.arena = arena_new()};
    for (int i = 0; i < ranks; i++)
        s.rank[i] = (SimRank){.events = arena_alloc(s.arena, MOST * sizeof(SimEvent)),
                              .operations = arena_alloc(s.arena, MOST * sizeof(SimOperation)),
                              .n_channels = CHANNELS};
    s.step = (SimStep){.ranks = ranks, .meetings = 2 * CHANNELS};
    return s;
}

static void add(Script *s, int rank, SimEvent e) {
    assert_in_range(s->rank[rank].n, 0, MOST - 1);
    s->rank[rank].events[s->rank[rank].n++] = e;
}

static void op(Script *s, int rank, double ns) { add(s, rank, (SimEvent){SIM_OP, 0, ns}); }
static void wait(Script *s, int rank, int i) { add(s, rank, (SimEvent){.kind = SIM_WAIT, .what = i}); }
static void host_wait(Script *s, int rank) { add(s, rank, (SimEvent){.kind = SIM_HOST_WAIT}); }

static int start(Script *s, int rank, SimOperation o) {
    const int i = s->rank[rank].n_operations++;
    if (o.meeting >= 0) s->members[o.meeting] = 2;
    s->rank[rank].operations[i] = o;
    add(s, rank, (SimEvent){.kind = SIM_START, .what = i});
    return i;
}

static int sum(Script *s, unsigned axes, double ns, double load) {
    return start(s, 0, (SimOperation){.meeting = -1, .axes = axes, .ns = ns, .load = load});
}

/* Messages to the next rank use channel and meeting 1, gradients 2. */
static int message(Script *s, int rank, int way) {
    return start(s, rank, (SimOperation){.channel = way, .meeting = way, .axes = PP, .ns = 0.5});
}

static double total(const SimParts *p) {
    double sum = p->ops + p->load + p->bubble + p->host;
    for (int i = 0; i < SIM_AXES; i++) sum += p->exposed[i];
    return sum;
}

/* Runs the step. The parts of each rank must add up to the step's time, up to a rounding of each event; there are fewer
 * than 2^12. */
static double run(Script *s) {
    s->step.rank = s->rank, s->step.members = s->members;
    assert_ok(simulate_step(&s->step, s->arena, &s->times));
    for (int i = 0; i < s->step.ranks; i++)
        assert_true(fabs(total(&s->times.parts[i]) - s->times.ns) <= 0x1p12 * DBL_EPSILON * s->times.ns);
    return s->times.ns;
}

static void script_free(Script *s) { arena_free(s->arena); }

TEST(a_sum_that_the_next_op_needs_is_exposed) {
    Script s = script_new(1);
    op(&s, 0, 100);
    wait(&s, 0, sum(&s, TP, 30, 0.1));
    op(&s, 0, 50);
    assert_true(run(&s) == 180);
    assert_true(s.times.parts[0].exposed[TP] == 30 && s.times.parts[0].load == 0);
    script_free(&s);
}

/* The second bucket's sum starts after the first one: it runs from 160 to 220, and ops end at 160. */
TEST(the_sums_of_two_buckets_overlap_with_ops) {
    static const struct {
        double load, ns, exposed, slowed;
    } ROWS[] = {{0, 220, 60, 0}, {0.1, 220, 54, 6}, {1, 280, 0, 120}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        Script s = script_new(1);
        op(&s, 0, 100);
        const int first = sum(&s, DP, 60, ROWS[i].load);
        op(&s, 0, 50);
        const int second = sum(&s, DP, 60, ROWS[i].load);
        op(&s, 0, 10);
        wait(&s, 0, first);
        wait(&s, 0, second);
        assert_true(run(&s) == ROWS[i].ns);
        assert_true(s.times.parts[0].exposed[DP] == ROWS[i].exposed);
        assert_true(s.times.parts[0].load == ROWS[i].slowed);
        script_free(&s);
    }
}

/* Sums of different groups run at the same time. */
TEST(channels_are_independent) {
    Script s = script_new(1);
    const int one = start(&s, 0, (SimOperation){.channel = 0, .meeting = -1, .axes = TP, .ns = 50}),
              other = start(&s, 0, (SimOperation){.channel = 1, .meeting = -1, .axes = DP, .ns = 60});
    wait(&s, 0, other);
    wait(&s, 0, one);
    assert_true(run(&s) == 60 && s.times.parts[0].exposed[TP] == 0);
    script_free(&s);
}

/* 1F1B on 2 ranks with 3 microbatches: forward passes take 1, backward passes 2, and messages 0.5. */
TEST(a_pipeline_of_two_stages) {
    Script s = script_new(2);
    int sent[3];
    for (int i = 0; i < 3; i++) {
        op(&s, 0, 1);
        sent[i] = message(&s, 0, 1);
        if (i) wait(&s, 0, message(&s, 0, 2)), op(&s, 0, 2);
    }
    wait(&s, 0, message(&s, 0, 2));
    op(&s, 0, 2);
    for (int i = 0; i < 3; i++) wait(&s, 0, sent[i]);
    for (int i = 0; i < 3; i++) {
        wait(&s, 1, message(&s, 1, 1));
        op(&s, 1, 1);
        op(&s, 1, 2);
        sent[i] = message(&s, 1, 2);
    }
    for (int i = 0; i < 3; i++) wait(&s, 1, sent[i]);
    assert_true(run(&s) == 14);
    const SimParts *first = s.times.parts, *last = first + 1;
    assert_true(first->ops == 9 && first->exposed[PP] == 1.5 && first->bubble == 3.5);
    assert_true(last->ops == 9 && last->exposed[PP] == 2 && last->bubble == 3);
    script_free(&s);
}

/* The host starts a call every 10 ns. It waits for the first op and for a sum in host memory. */
TEST(the_host_limits_small_ops) {
    Script s = script_new(1);
    s.step.launch_ns = 10;
    op(&s, 0, 25); /* from 10 to 35 */
    op(&s, 0, 1);  /* from 35 to 36 */
    host_wait(&s, 0);
    wait(&s, 0, start(&s, 0, (SimOperation){.meeting = -1, .host = true, .ns = 4})); /* from 46 to 50 */
    op(&s, 0, 5);                                                                    /* from 60 to 65 */
    assert_true(run(&s) == 65);
    assert_true(s.times.parts[0].host == 10 + 10 + 10 && s.times.parts[0].exposed[0] == 4);
    script_free(&s);
}

TEST(a_rank_that_waits_forever_is_named) {
    Script s = script_new(2);
    op(&s, 0, 1);
    op(&s, 1, 1);
    wait(&s, 1, message(&s, 1, 1));
    s.step.rank = s.rank, s.step.members = s.members;
    const Err e = simulate_step(&s.step, s.arena, &s.times);
    assert_true(e.code == ERR_FAILED);
    assert_non_null(strstr(e.msg, "rank 1 waits forever at event 2"));
    script_free(&s);
}

/* ---- random steps ---- */

typedef struct Draw {
    uint64_t seed, i;
} Draw;

static int below(Draw *d, int n) { return (int)(philox_u32(d->seed, 0, d->i++) % (uint32_t)n); }

/* Adds calls in an order in which each message has been sent before a rank waits for it. */
static void fill(Script *s, Draw *d) {
    int open[RANKS][MOST], n_open[RANKS] = {0};
    s->step.launch_ns = below(d, 4);
    for (int i = 0; i < 50; i++) {
        const int rank = below(d, RANKS), what = below(d, 8);
        const double ns = 1 + below(d, 20), load = below(d, 3) * 0.25;
        if (what < 2) {
            op(s, rank, ns);
        } else if (what < 4) {
            open[rank][n_open[rank]++] =
                start(s, rank, (SimOperation){.meeting = -1, .axes = DP, .ns = ns, .load = load});
        } else if (what < 6 && rank + 1 < RANKS) {
            for (int k = rank; k < rank + 2; k++)
                open[k][n_open[k]++] = start(
                    s, k,
                    (SimOperation){.channel = 1 + rank, .meeting = rank, .axes = PP, .ns = ns, .load = load});
        } else if (what == 6) {
            host_wait(s, rank);
        } else if (n_open[rank]) {
            const int k = below(d, n_open[rank]);
            wait(s, rank, open[rank][k]);
            open[rank][k] = open[rank][--n_open[rank]];
        }
    }
    for (int rank = 0; rank < RANKS; rank++)
        while (n_open[rank]) wait(s, rank, open[rank][--n_open[rank]]);
}

/* Returns a random duration or load of the step. */
static double *any_number(Script *s, Draw *d) {
    SimRank *r = &s->rank[below(d, RANKS)];
    if (!below(d, 8)) return &s->step.launch_ns;
    if (r->n_operations && below(d, 2)) {
        SimOperation *o = &r->operations[below(d, r->n_operations)];
        return below(d, 2) ? &o->ns : &o->load;
    }
    return r->n ? &r->events[below(d, (int)r->n)].ns : &s->step.launch_ns;
}

TEST(less_work_is_never_slower) {
    for (uint64_t seed = 0; seed < 400; seed++) {
        Draw d = {seed, 0};
        Script s = script_new(RANKS);
        fill(&s, &d);
        for (double before = run(&s), now; d.i < 600; before = now) {
            double *x = any_number(&s, &d);
            *x *= 0.25 * below(&d, 4);
            now = run(&s);
            if (now > before) fail_msg("seed %d: %.17g is slower than %.17g", (int)seed, now, before);
        }
        script_free(&s);
    }
}
