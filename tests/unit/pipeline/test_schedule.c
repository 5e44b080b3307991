/* Compares the lists of passes with published schedules and formulas, and checks the invariants of every list
 * without the simulator. */
#include "unit/err.h"
#include "unit/pipeline/plan.h"

static const PassTimes ONE = {1, 1, 1};

/* Asserts the beginning of a list, in the form "F0a F1a B0b W0a". */
static void assert_list(PipelineSpec spec, int rank, const char *expected) {
    Arena *arena = arena_new();
    RankSchedule r = pipeline_schedule(&spec, rank, arena);
    Str text = {0};
    for (int64_t i = 0; i < r.count; i++) {
        const Action *a = &r.actions[i];
        str_printf(&text, "%s%c%d", i ? " " : "", "FBIW"[a->kind], (int)a -> microbatch);
        if (spec.chunks > 1) str_printf(&text, "%c", 'a' + a->chunk);
    }
    assert_string_equal(text.s, expected);
    str_free(&text);
    arena_free(arena);
}

/* The expected orders were copied by hand from the figures of the papers, and from a comment in Megatron-LM's
 * schedules.py (2 ranks, groups of 3, 5 microbatches, 2 chunks). */
TEST(small_lists_are_the_published_ones) {
    PipelineSpec s = {SCHEDULE_GPIPE, 2, 1, 3, 2, false, false, false};
    assert_list(s, 0, "F0 F1 F2 B0 B1 B2");
    s.kind = SCHEDULE_1F1B;
    assert_list(s, 0, "F0 F1 B0 F2 B1 B2");
    assert_list(s, 1, "F0 B0 F1 B1 F2 B2");
    s.kind = SCHEDULE_ZERO_BUBBLE;
    assert_list(s, 0, "F0 F1 I0 W0 F2 I1 W1 I2 W2");
    assert_list(s, 1, "F0 I0 F1 I1 W0 F2 I2 W1 W2");
    s = (PipelineSpec){SCHEDULE_INTERLEAVED, 2, 2, 5, 3, false, false, false};
    assert_list(s, 0, "F0a F1a F2a F0b F1b F2b B0b F3a B1b F4a B2b F3b B0a F4b B1a B2a B3b B4b B3a B4a");
    assert_list(s, 1, "F0a F1a F2a F0b B0b F1b B1b F2b B2b F3a B0a F4a B1a F3b B2a F4b B3b B4b B3a B4a");
    s.forward_only = true;
    assert_list(s, 1, "F0a F1a F0b F1b F2a F3a F2b F3b F4a F4b");
}

/* On one rank, the list has two forward passes, then pairs of a backward pass and the forward pass two microbatches
 * later, then two backward passes, so that three microbatches are in flight. A single microbatch has no pair. On
 * several ranks, more forward passes come first. */
TEST(mixed_passes_are_pairs) {
    PipelineSpec s = {SCHEDULE_1F1B, 1, 1, 5, 1, false, false, true};
    assert_list(s, 0, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
    Arena *arena = arena_new();
    for (s.microbatches = 1; s.microbatches <= 5; s.microbatches++) {
        const RankSchedule r = pipeline_schedule(&s, 0, arena);
        assert_int_equal(r.slots, s.microbatches < 3 ? s.microbatches : 3);
        for (int64_t i = 0; i < r.count; i += 2) {
            assert_int_equal(r.actions[i].pair, s.microbatches > 1);
            assert_true(r.actions[i].slot != r.actions[i + 1].slot || s.microbatches == 1);
        }
    }
    s = (PipelineSpec){SCHEDULE_1F1B, 2, 1, 6, 1, false, false, true};
    assert_list(s, 0, "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5");
    assert_list(s, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
    s = (PipelineSpec){SCHEDULE_1F1B, 1, 1, 5, 1, false, false, true};
    s.forward_only = true;
    const RankSchedule r = pipeline_schedule(&s, 0, arena);
    assert_true(r.actions[0].pair && r.actions[0].slot != r.actions[1].slot);
    arena_free(arena);
}

static int64_t warmup_of(const RankSchedule *r) {
    int64_t n = 0;
    while (n < r->count && r->actions[n].kind == ACTION_FORWARD) n++;
    return n;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A list begins with the forward passes of the warm-up and the first one of the steady phase, which determine the
 * number of microbatches in flight. As in Megatron-LM's schedules.py, the number of forward passes in the warm-up is
 * min(p - r - 1, M), or 2 (p - r - 1) + (v - 1) G, but at most all. */
static void visit_warmup(Arena *arena, PipelineSpec s) {
    int64_t total = s.microbatches * s.chunks, p = s.ranks;
    for (int rank = 0; rank < s.ranks; rank++) {
        RankSchedule r = pipeline_schedule(&s, rank, arena);
        int64_t behind = p - rank - 1, interleaved = 2 * behind + (s.chunks - 1) * s.group;
        int64_t warmup = s.kind == SCHEDULE_GPIPE         ? total
                         : s.mixed                        ? (interleaved + 3) / 2 * 2
                         : s.kind == SCHEDULE_INTERLEAVED ? interleaved
                                                          : behind;
        int64_t slots = s.kind == SCHEDULE_ZERO_BUBBLE ? p : warmup + 1;
        assert_int_equal(warmup_of(&r), least(warmup + 1, total));
        assert_int_equal(r.slots, least(slots, total));
    }
}

TEST(warmups_and_slots_are_the_closed_forms) { plan_sweep(visit_warmup); }

/* Each pass must occur once, a backward pass must follow its forward pass, gradients must be in the order of
 * microbatches, and slots must never be shared. */
static void visit_invariants(Arena *arena, PipelineSpec s) {
    for (int rank = 0; rank < s.ranks; rank++) {
        RankSchedule r = pipeline_schedule(&s, rank, arena);
        int64_t next[4][4] = {{0}}, held = 0, peak = 0; /* [kind][chunk] next microbatch */
        int64_t *owner = arena_alloc(arena, (size_t)r.slots * sizeof *owner); /* 1 + microbatch * v + chunk */
        bool split = s.kind == SCHEDULE_ZERO_BUBBLE;
        assert_int_equal(r.count, s.microbatches * s.chunks * (split ? 3 : 2));
        for (int64_t i = 0; i < r.count; i++) {
            const Action *a = &r.actions[i];
            int64_t me = 1 + a->microbatch * s.chunks + a->chunk;
            assert_int_equal(a->microbatch, next[a->kind][a->chunk]++);
            if (a->kind != ACTION_FORWARD) assert_true(a->microbatch < next[ACTION_FORWARD][a->chunk]);
            if (a->kind == ACTION_BACKWARD_WEIGHT)
                assert_true(a->microbatch < next[ACTION_BACKWARD_INPUT][a->chunk]);
            assert_int_equal(owner[a->slot], a->kind == ACTION_FORWARD ? 0 : me);
            if (a->kind == ACTION_FORWARD) {
                owner[a->slot] = me;
                if (++held > peak) peak = held;
            }
            if (a->kind == (split ? ACTION_BACKWARD_WEIGHT : ACTION_BACKWARD)) owner[a->slot] = 0, held--;
        }
        assert_int_equal(held, 0);
        assert_int_equal(peak, r.slots); /* no slot is superfluous */
    }
}

TEST(every_list_keeps_the_invariants) { plan_sweep(visit_invariants); }

static void at_most(int64_t n, int64_t bound) { assert_true(n <= bound); }

/* Overlap needs one more buffer, or two for pairs. A gradient is kept until the weight pass. */
static void visit_buffers(Arena *arena, PipelineSpec s) {
    for (s.overlap = false;; s.overlap = true) {
        for (int rank = 0; rank < s.ranks; rank++) {
            const RankSchedule r = pipeline_schedule(&s, rank, arena);
            const bool alone = s.ranks * s.chunks == 1;
            const int64_t at_a_time = s.mixed ? 2 : 1, more = s.overlap ? at_a_time : 0;
            at_most(r.received[PIPELINE_UP], alone ? 0 : r.slots + more);
            at_most(r.received[PIPELINE_DOWN],
                    alone ? 0 : at_a_time + more + (s.kind == SCHEDULE_ZERO_BUBBLE ? rank : 0));
            if (s.chunks > 1) continue;
            assert_int_equal(!r.received[PIPELINE_UP], rank == 0);
            assert_int_equal(!r.received[PIPELINE_DOWN], rank == s.ranks - 1);
            assert_int_equal(!r.sent[PIPELINE_UP], rank == s.ranks - 1);
            assert_int_equal(!r.sent[PIPELINE_DOWN], rank == 0);
        }
        if (s.overlap) return;
    }
}

TEST(overlap_takes_one_buffer_more) { plan_sweep(visit_buffers); }

/* The first step runs a group without overlap and then the rest. Both must fit into the slots and buffers of
 * the whole schedule. */
static void visit_parts(Arena *arena, PipelineSpec s) {
    const int64_t first = s.kind == SCHEDULE_INTERLEAVED ? s.group : (s.mixed ? 2 : 1) * s.ranks;
    if (s.microbatches <= first) return;
    for (s.overlap = false;; s.overlap = true) {
        PipelineSpec part[2] = {s, s};
        part[0].microbatches = first, part[0].overlap = false;
        part[1].microbatches -= first;
        for (int rank = 0; rank < s.ranks; rank++) {
            const RankSchedule all = pipeline_schedule(&s, rank, arena);
            for (int i = 0; i < 2; i++) {
                const RankSchedule r = pipeline_schedule(&part[i], rank, arena);
                at_most(r.slots, all.slots);
                for (int way = 0; way < PIPELINE_WAYS; way++)
                    at_most(r.received[way], all.received[way]), at_most(r.sent[way], all.sent[way]);
            }
        }
        if (s.overlap) return;
    }
}

TEST(parts_fit_into_the_memory_of_all) { plan_sweep(visit_parts); }

TEST(messages_go_to_the_neighbouring_stage) {
    PipelineSpec s = {SCHEDULE_INTERLEAVED, 4, 2, 4, 4, false, false, false};
    static const struct {
        int rank;
        Action action;
        StageRef source, target;
    } cases[] = {
        {0, {ACTION_FORWARD, 0, 1, 0, -1, false}, {-1, -1}, {1, 0}},
        {3, {ACTION_FORWARD, 0, 1, 0, -1, false}, {2, 0}, {0, 1}},
        {0, {ACTION_FORWARD, 1, 1, 0, -1, false}, {3, 0}, {1, 1}},
        {3, {ACTION_FORWARD, 1, 1, 0, -1, false}, {2, 1}, {-1, -1}},
        {3, {ACTION_BACKWARD, 1, 1, 0, -1, false}, {-1, -1}, {2, 1}},
        {0, {ACTION_BACKWARD, 1, 1, 0, -1, false}, {1, 1}, {3, 0}},
        {3, {ACTION_BACKWARD_INPUT, 0, 1, 0, -1, false}, {0, 1}, {2, 0}},
        {0, {ACTION_BACKWARD, 0, 1, 0, -1, false}, {1, 0}, {-1, -1}},
        {1, {ACTION_BACKWARD_WEIGHT, 0, 1, 0, -1, false}, {-1, -1}, {-1, -1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        StageRef source = pipeline_source(&s, cases[i].rank, &cases[i].action);
        StageRef target = pipeline_target(&s, cases[i].rank, &cases[i].action);
        assert_memory_equal(&source, &cases[i].source, sizeof source);
        assert_memory_equal(&target, &cases[i].target, sizeof target);
    }
}

/* ---- what the options request ---- */

static Err spec_of(const char *line, int chunks, int64_t microbatches, bool forward_only, PipelineSpec *out) {
    Arena *arena = arena_new();
    Args args;
    Config c;
    char *argv[16], *rest = NULL, *text = arena_printf(arena, "--num-layers 16 %s", line);
    int argc = 0;
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) argv[argc++] = w;
    args_init(&args, arena, "test", NULL);
    assert_ok(config_parse(&c, &args, USE_ALL, CHECK_LAYOUT, argc, argv));
    PipelineLayout layout = {.ranks = (int)c.pipeline_model_parallel_size, .chunks = chunks};
    Err e = pipeline_spec(&c, &layout, microbatches, forward_only, out);
    args_free(&args);
    arena_free(arena);
    return e;
}

#define MIXED                                                                                                \
    "--pipeline-model-parallel-size 4 --tensor-model-parallel-size 2 --ranks 8 --interleaved-microbatches "  \
    "2 "                                                                                                     \
    "--interleave-forward-backward"

TEST(options_choose_the_schedule) {
    PipelineSpec s;
    assert_ok(spec_of("--pipeline-model-parallel-size 4", 1, 2, false, &s));
    assert_int_equal(s.kind, SCHEDULE_1F1B);
    assert_ok(spec_of("--pipeline-model-parallel-size 4", 2, 8, false, &s));
    assert_int_equal(s.kind, SCHEDULE_INTERLEAVED);
    assert_int_equal(s.group, 4);
    const char *six = "--pipeline-model-parallel-size 4 --microbatch-group-size-per-virtual-pipeline-stage 6";
    assert_ok(spec_of(six, 2, 10, false, &s));
    assert_int_equal(s.group, 6);
    assert_ok(spec_of(six, 2, 9, true, &s)); /* an evaluation accepts any number */
    assert_ok(spec_of(six, 2, 3, false, &s));
    /* Pairs of passes need groups of twice as many ranks (fills_pairs), unless the option says otherwise. */
    assert_ok(spec_of(MIXED, 2, 8, false, &s));
    assert_true(s.mixed && s.group == 8);
    assert_ok(spec_of(MIXED " --microbatch-group-size-per-virtual-pipeline-stage 6", 2, 12, false, &s));
    assert_true(s.mixed && s.group == 6);
    assert_string_equal(
        spec_of(six, 2, 9, false, &s).msg,
        "9 microbatches per step in groups of 6 leave a last group of 3. The interleaved schedule can "
        "deadlock if the last group has fewer microbatches than --pipeline-model-parallel-size 4: change "
        "--global-batch-size, --micro-batch-size or --microbatch-group-size-per-virtual-pipeline-stage");
    const char *zero = "--pipeline-model-parallel-size 4 --pipeline-schedule zero-bubble";
    assert_ok(spec_of(zero, 1, 8, false, &s));
    assert_string_equal(spec_of(zero, 2, 8, false, &s).msg,
                        "--pipeline-schedule zero-bubble cannot be used with 2 virtual stages per pipeline "
                        "rank: use interleaved or gpipe, or change --num-virtual-stages-per-pipeline-rank");
    assert_int_equal(spec_of("--pipeline-schedule interleaved", 1, 8, false, &s).code, ERR_USER);
    assert_int_equal(
        spec_of("--pipeline-model-parallel-size 2 --pipeline-schedule 1f1b", 2, 8, false, &s).code, ERR_USER);
    assert_ok(spec_of("--pipeline-model-parallel-size 2 --pipeline-schedule gpipe", 2, 8, false, &s));
}

/* Shows why group sizes are restricted. */
TEST(forbidden_groups_deadlock) {
    Arena *arena = arena_new();
    Plan p;
    plan_make(&p, arena, (PipelineSpec){SCHEDULE_INTERLEAVED, 4, 3, 5, 4, false, false, false}, ONE);
    Err e = plan_try(&p);
    assert_int_equal(e.code, ERR_FAILED);
    assert_string_equal(e.msg, "pipeline rank 0, action 14, forward of microbatch 4, chunk 2, slot 14: a "
                               "deadlock: it waits for a message to be sent");
    arena_free(arena);
}

static void assert_shortened(Arena *arena, PipelineSpec whole) {
    const PipelineSpec part = pipeline_shortened(&whole);
    const int64_t m = whole.microbatches;
    assert_true(whole.kind == SCHEDULE_GPIPE || m < 5 * 2 * PLAN_RANKS || part.microbatches < m);
    assert_true(whole.chunks == 1 || plan_group_fits(whole.ranks, (int)part.microbatches, (int)whole.group));
    for (int rank = 0; rank < whole.ranks; rank++) {
        arena_reset(arena);
        const RankSchedule a = pipeline_schedule(&whole, rank, arena),
                           b = pipeline_schedule(&part, rank, arena);
        assert_int_equal(a.slots, b.slots);
        assert_memory_equal(a.received, b.received, sizeof a.received);
        assert_memory_equal(a.sent, b.sent, sizeof a.sent);
    }
}

/* A shortened schedule must need as many slots and buffers as the full one, and its group size must be
 * valid. */
TEST(a_shortened_schedule_takes_as_much_memory) {
    static const int64_t COUNTS[] = {1, 5, 23, 64, 131, 132};
    Arena *arena = arena_new();
    for (int kind = SCHEDULE_GPIPE; kind <= SCHEDULE_ZERO_BUBBLE; kind++)
        for (int p = 1; p <= PLAN_RANKS; p++)
            for (int group = p; group <= 2 * p; group++)
                for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
                    const int v = kind == SCHEDULE_INTERLEAVED ? 3 : 1, m = (int)COUNTS[i];
                    if (v > 1 && (p == 1 || !plan_group_fits(p, m, group))) continue;
                    const bool mixed = kind == SCHEDULE_1F1B || kind == SCHEDULE_INTERLEAVED;
                    for (int paired = 0; paired <= mixed; paired++)
                        assert_shortened(arena, (PipelineSpec){kind, p, v, m, group, false, true, paired});
                }
    arena_free(arena);
}
