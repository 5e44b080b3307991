/* Compares predicted steps with times calculated by hand: the ops of one rank, and the operations between ranks. */
#include "unit/config_helper.h"

#include <float.h>
#include <math.h>

#include "base/exact_sum.h"
#include "plan/step_time.h"

/* All ops take a time by bytes of 0, and GEMMs take 1 ns per FLOP. */
static const Rates FLOPS = {.device = "CPU", .copy = HUGE_VAL, .gemm = {[F32] = 1}};
/* All ops take 1 ns per byte. */
static const Rates BYTES = {.device = "CPU", .copy = 1, .gemm = {[F32] = HUGE_VAL}};

__attribute__((format(printf, 2, 3))) static StepTime time_of(const Rates *r, const char *fmt, ...) {
    char words[1000];
    va_list list;
    va_start(list, fmt);
    vsnprintf(words, sizeof words, fmt, list);
    va_end(list);
    Setup *s = setup_new("--hidden-dropout 0 --attention-dropout 0 %s", words);
    RunPlan plan;
    StepTime t;
    assert_ok(plan_make(&s->config, NULL, s->arena, &plan));
    assert_ok(step_time(&plan, NULL, r, NULL, s->arena, &t));
    t.work = NULL; /* owned by the arena */
    setup_free(s);
    return t;
}

/* FLOPs of the GEMMs of a pass over one sample of the GPT in config_helper.h: layers with 12 h^2 weights, and the output
 * layer. */
enum { LAYERS = 2, H = 16, S = 8, V = 128, LAYER = 2 * S * 12 * H * H, HEAD = 2 * S * H * V };

TEST(the_gemms_of_a_step) {
    static const struct {
        const char *words;
        double passes_of_layers, passes_of_heads;
    } ROWS[] = {
        {"--global-batch-size 1", 3, 3},
        {"--global-batch-size 2", 6, 6},
        {"--global-batch-size 6 --micro-batch-size 2", 18, 18},
        {"--global-batch-size 5 --recompute-granularity full --recompute-method uniform "
         "--recompute-num-layers 1",
         20, 15},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const StepTime t = time_of(&FLOPS, "%s", ROWS[i].words);
        assert_true(t.family_ns[OP_FAMILY_GEMM] ==
                    ROWS[i].passes_of_layers * LAYERS * LAYER + ROWS[i].passes_of_heads * HEAD);
        assert_true(t.ns == t.family_ns[OP_FAMILY_GEMM] + t.family_ns[OP_FAMILY_ATTENTION]);
        assert_true(t.source_ns[RATE_ROOF] == t.ns);
    }
}

/* Adam reads gradients, and reads and writes masters and moments; the norm reads gradients. */
TEST(the_optimizer_runs_once_per_step) {
    const double weights = V * H + S * H + LAYERS * (12 * H * H + 13 * H) + 2 * H;
    for (int batch = 1; batch < 4; batch++) {
        const StepTime t = time_of(&BYTES, "--global-batch-size %d", batch);
        const double bytes = t.family_ns[OP_FAMILY_OPTIMIZER] / (4 * weights);
        assert_true(bytes >= 8 && bytes < 9); /* small tables, and gaps between parameters */
    }
}

/* A top-2 router of 4 experts sends each token through two MLPs. */
TEST(the_experts_of_a_step) {
    const StepTime t = time_of(&FLOPS, "--num-experts 4 --moe-router-topk 2 --disable-bias-linear");
    const double router = 2. * S * H * 4, attention = 2. * S * 4 * H * H, experts = 2 * 2. * S * 8 * H * H;
    assert_true(t.family_ns[OP_FAMILY_GEMM] == 3 * (LAYERS * (router + attention + experts) + HEAD));
}

TEST(the_host_limits_a_step) {
    Rates slow = FLOPS;
    slow.launch_ns = 1e6;
    const StepTime fast = time_of(&FLOPS, "--global-batch-size 1"),
                   t = time_of(&slow, "--global-batch-size 1");
    assert_true(t.calls > 0 && t.host_ns == 1e6 * (double)t.calls && t.ns == t.host_ns);
    assert_true(fast.ns == fast.device_ns && fast.device_ns == t.device_ns && fast.ns < t.ns);
    assert_true(fabs(t.tokens_per_second * t.ns - S * 1e9) < 1);
    assert_true(fabs(fast.mfu - 3 * (LAYERS * LAYER + HEAD + LAYERS * 2. * S * S * H) / fast.ns) < 0.05);
}

/* A larger model or batch never takes less time. */
TEST(more_work_takes_more_time) {
    static const char *const MODELS[] = {
        "", "--num-experts 4 --disable-bias-linear", "--model bert --vocab-size 200",
        "--model t5 --decoder-seq-length 8 --position-embedding-type relative --vocab-size 200"};
    static const char *const MORE[] = {
        "--num-layers 4", "--hidden-size 32", "--global-batch-size 3", "--seq-length 16",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"};
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
        for (size_t k = 0; k < sizeof MORE / sizeof *MORE; k++)
            for (int r = 0; r < 2; r++) {
                const Rates *rates = r ? &BYTES : &FLOPS;
                assert_true(time_of(rates, "%s %s", MODELS[i], MORE[k]).ns >
                            time_of(rates, "%s", MODELS[i]).ns);
            }
}

/* ---- several ranks ---- */

/* Hosts of 2 ranks. A byte takes 1 ns on NVLink, and 4 ns through a NIC. Ops take no time. */
static const Rates LINKS = {
    .device = "CPU",
    .copy = HUGE_VAL,
    .gemm = {[F32] = HUGE_VAL},
    .links = {.described = true, .host = {.ranks = 2, .nics = 2, .rails = 2, .nvlink = 1, .nic = 0.25}}};

enum { TP = 1 << AXIS_TP, DP = 1 << AXIS_DP, PP = 1 << AXIS_PP, EP = 1 << AXIS_EP };

/* The bytes of a layer's activations, those of two numbers per token that the loss gathers from the other rank, and the
 * number of weights. Buffers have gaps after vectors of H and 3 H elements, because each parameter begins at a multiple
 * of 64 elements. */
enum {
    ACTIVATION = 4 * S * H,
    STATISTICS = 2 * 4 * S,
    GAPS = LAYERS * (6 * 48 + 16) + 2 * 48,
    WEIGHTS = LAYERS * (12 * H * H + 13 * H) + 2 * H + V * H + S * H + GAPS
};

/* Each event of a step adds one rounding. The steps of these tests have fewer than 2^14 events. */
static bool is_near(double a, double b) { return fabs(a - b) <= 0x1p14 * DBL_EPSILON * fabs(b); }

/* On n ranks, a sum takes 2 (n-1)/n ns per byte, as long as a reduce-scatter and an all-gather. */
#define EXPERTS                                                                                              \
    "--num-experts 4 --disable-bias-linear --expert-model-parallel-size 2 --ranks 2 --global-batch-size 2"
TEST(operations_of_each_axis) {
    static const struct {
        const char *words;
        unsigned axes;
        double ns;
    } ROWS[] = {
        /* two sums of activations per layer and pass, one for the embedding and one for the head's gradient */
        {"--tensor-model-parallel-size 2 --ranks 2 --global-batch-size 3", TP,
         3 * ((4 * LAYERS + 2) * ACTIVATION + STATISTICS)},
        /* F32 gradients */
        {"--ranks 2 --global-batch-size 6", DP, 4 * WEIGHTS},
        /* the loss and its weight in F64, and the words of the exact norm */
        {"--ranks 2 --global-batch-size 6", 0, 2 * 8 + 8 * EXACT_WORDS},
        /* the ring leaves each host through 2 NICs */
        {"--ranks 4 --global-batch-size 4", DP, 4 * WEIGHTS * 1.5 * 2},
        {"--ranks 2 --global-batch-size 4 --use-distributed-optimizer", DP, 4 * WEIGHTS},
        /* one rank waits for an activation and until its gradient is sent, the other one waits for this gradient */
        {"--pipeline-model-parallel-size 2 --ranks 4 --global-batch-size 2", PP, 3 * 4 * ACTIVATION / 2},
        /* Each token has 2 of 4 experts, with F32 probabilities. All tokens are gathered, with their I64 experts. */
        {EXPERTS " --moe-token-dispatcher-type allgather", EP,
         LAYERS * (4 * ACTIVATION + 2 * S * (2 * 4 + 8))},
        /* Or half of 2 rows per token are sent to experts and back, after the I64 offsets of 4 experts. */
        {EXPERTS " --moe-token-dispatcher-type alltoall", EP, LAYERS * (4 * ACTIVATION + 2 * S * 4 + 5 * 8)},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const StepTime t = time_of(&LINKS, "%s", ROWS[i].words);
        const double ns = t.parts.exposed[ROWS[i].axes];
        if (!is_near(ns, ROWS[i].ns)) fail_msg("%s: %.0f ns, not %.0f", ROWS[i].words, ns, ROWS[i].ns);
        double sum = t.parts.load + t.parts.bubble;
        for (int k = 0; k < SIM_AXES; k++) sum += t.parts.exposed[k];
        assert_true(is_near(t.ns, sum));
        assert_true(t.link_ns[LINK_DESCRIBED] > ns && t.link_ns[LINK_NONE] == 0);
    }
}

static const char *const LAYOUTS[] = {
    "--pipeline-model-parallel-size 2",
    "--pipeline-model-parallel-size 2 --pipeline-schedule zero-bubble",
    "--pipeline-model-parallel-size 2 --pipeline-schedule gpipe",
    "--pipeline-model-parallel-size 2 --num-layers 4 --num-virtual-stages-per-pipeline-rank 2",
    "--pipeline-model-parallel-size 2 --interleaved-microbatches 2",
    "--pipeline-model-parallel-size 2 --interleaved-microbatches 2 --interleave-forward-backward",
    ("--pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce "
     "--overlap-param-gather"),
    "--use-megatron-fsdp --overlap-grad-reduce --overlap-param-gather",
    "--tensor-model-parallel-size 2 --sequence-parallel --interleaved-microbatches 2 --tp-comm-overlap",
    "--context-parallel-size 2 --seq-length 16",
    "--num-experts 4 --disable-bias-linear --expert-model-parallel-size 2",
};
enum { N_LAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS };

/* Simulates all microbatches of a step. */
static double complete_time(const Rates *r, const char *words) {
    Setup *s = setup_new("--hidden-dropout 0 --attention-dropout 0 %s", words);
    RunPlan plan;
    SimTimes times;
    Trace t = {.rates = r};
    Device *target = device_cpu(1);
    assert_ok(plan_make(&s->config, NULL, s->arena, &plan));
    step_trace_record(&t, &plan, target, plan.microbatches, 1);
    int *members = arena_alloc(s->arena, (size_t)t.meetings * sizeof *members);
    for (int i = 0; i < t.meetings; i++) members[i] = t.meeting[i].members;
    assert_ok(simulate_step(&(SimStep){.rank = t.rank,
                                       .ranks = t.ranks,
                                       .members = members,
                                       .meetings = t.meetings,
                                       .launch_ns = r->launch_ns},
                            s->arena, &times));
    const double ns = times.ns;
    step_trace_free(&t);
    device_free(target);
    setup_free(s);
    return ns;
}

/* Two shorter steps predict the time of the complete step. */
TEST(steps_with_many_microbatches) {
    Rates r = LINKS;
    r.copy = 0.01, r.gemm[F32] = 0.5, r.launch_ns = 20;
    for (int i = 0; i < N_LAYOUTS; i++) {
        char words[400];
        snprintf(words, sizeof words, "--ranks 4 --global-batch-size 64 %s", LAYOUTS[i]);
        const double ns = time_of(&r, "%s", words).ns, complete = complete_time(&r, words);
        if (!is_near(ns, complete)) fail_msg("%s: %.17g, not %.17g", LAYOUTS[i], ns, complete);
    }
}

/* If only attention takes time, and messages take none, each layer's forward pass takes 1 us and its backward pass 2 us.
 * The bubble is then that of pipeline_bubble. */
TEST(bubbles_are_the_closed_forms) {
    static const struct {
        int stages, layers, batch;
        const char *words;
    } ROWS[] = {
        {4, 4, 8, ""},
        {4, 4, 24, "--no-overlap-p2p-communication"},
        {4, 4, 24, "--pipeline-schedule gpipe"},
        {4, 8, 8, "--num-virtual-stages-per-pipeline-rank 2"},
        {2, 6, 64, "--num-virtual-stages-per-pipeline-rank 3"},
    };
    Rate each[] = {{"attention F32 causal", 3, {2 * S, S, H / 2}, 1000},
                   {"attention_grad F32 causal deterministic", 3, {2 * S, S, H / 2}, 2000}};
    Rates r = FLOPS;
    r.gemm[F32] = HUGE_VAL, r.tile = 1, r.rate = each, r.n = 2;
    r.links = (Links){.described = true, .host = {.ranks = 8, .nvlink = HUGE_VAL}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const int stages = ROWS[i].stages, layers = ROWS[i].layers, batch = ROWS[i].batch;
        Setup *s = setup_new("--hidden-dropout 0 --attention-dropout 0 --ranks %d --num-layers %d "
                             "--pipeline-model-parallel-size %d --global-batch-size %d %s",
                             stages, layers, stages, batch, ROWS[i].words);
        RunPlan plan;
        StepTime t;
        assert_ok(plan_make(&s->config, NULL, s->arena, &plan));
        assert_ok(step_time(&plan, NULL, &r, NULL, s->arena, &t));
        assert_true(is_near(t.parts.ops, 3000. * batch * layers / stages));
        if (!is_near(t.parts.bubble / t.ns, plan.bubble))
            fail_msg("row %d: %g, not %g", (int)i, t.parts.bubble / t.ns, plan.bubble);
        setup_free(s);
    }
}

TEST(faster_hardware_is_never_slower) {
    for (int i = 0; i < N_LAYOUTS; i++) {
        Rates r = LINKS;
        r.copy = 0.05, r.gemm[F32] = 0.5, r.launch_ns = 2000,
        r.links.host.nvlink_ns = r.links.host.nic_ns = 500;
        double *const faster[] = {&r.copy, &r.gemm[F32], &r.links.host.nvlink, &r.links.host.nic},
                      *const shorter[] = {&r.launch_ns, &r.links.host.nvlink_ns, &r.links.host.nic_ns};
        double before = time_of(&r, "--ranks 4 --global-batch-size 24 %s", LAYOUTS[i]).ns;
        for (int k = 0; k < 14; k++) {
            if (k % 7 < 4)
                *faster[k % 7] *= 3;
            else
                *shorter[k % 7 - 4] /= 3;
            const double ns = time_of(&r, "--ranks 4 --global-batch-size 24 %s", LAYOUTS[i]).ns;
            if (ns > before) fail_msg("%s: change %d makes %g ns to %g", LAYOUTS[i], k, before, ns);
            before = ns;
        }
    }
}

TEST(more_work_takes_more_time_on_several_ranks) {
    static const char *const MORE[] = {"--num-layers 8", "--hidden-size 32", "--global-batch-size 32",
                                       "--seq-length 32"};
    Rates r = LINKS;
    r.copy = 0.05, r.gemm[F32] = 0.5, r.launch_ns = 200;
    for (int i = 0; i < N_LAYOUTS; i++)
        for (size_t k = 0; k < sizeof MORE / sizeof *MORE; k++) {
            const char *words = strstr(LAYOUTS[i], "--num-layers") && k == 0 ? "" : LAYOUTS[i];
            const char *batch = k == 2 ? "" : "--global-batch-size 16";
            const double less = time_of(&r, "--ranks 4 --global-batch-size 16 %s", words).ns,
                         more = time_of(&r, "--ranks 4 %s %s %s", batch, words, MORE[k]).ns;
            if (more <= less) fail_msg("%s %s: %g ns after %g", LAYOUTS[i], MORE[k], more, less);
        }
}

/* Links and other ranks do not change the MFU if operations take no time. */
TEST(the_rates_of_all_ranks) {
    Rates r = FLOPS;
    r.links = (Links){.described = true, .host = {.ranks = 8, .nvlink = HUGE_VAL}};
    const StepTime one = time_of(&r, "--global-batch-size 1"),
                   four = time_of(&r, "--ranks 4 --global-batch-size 4");
    assert_true(is_near(four.ns, one.ns) && is_near(four.mfu, one.mfu));
    assert_true(is_near(four.tokens_per_second, 4 * one.tokens_per_second));
}

/* GEMMs use 99 of 132 multiprocessors. */
TEST(a_margin_slows_gemms) {
    Rates r = FLOPS;
    strcpy(r.device, "NVIDIA H200");
    const char *const words = "--device cuda --no-deterministic-mode --global-batch-size 1";
    const StepTime all = time_of(&r, "%s", words), some = time_of(&r, "%s --gemm-sm-margin 33", words);
    assert_true(is_near(some.family_ns[OP_FAMILY_GEMM], all.family_ns[OP_FAMILY_GEMM] * 4 / 3));
    assert_true(some.family_ns[OP_FAMILY_ATTENTION] == all.family_ns[OP_FAMILY_ATTENTION]);
}

TEST(missing_rates_are_named) {
    Setup *s = setup_new("--global-batch-size 1");
    RunPlan plan;
    StepTime t;
    const Rates none = {.device = "CPU", .copy = 1}, gpu = {.device = "NVIDIA H200"};
    assert_ok(plan_make(&s->config, NULL, s->arena, &plan));
    const Err lacks = step_time(&plan, NULL, &none, NULL, s->arena, &t),
              other = step_time(&plan, NULL, &gpu, NULL, s->arena, &t);
    assert_non_null(strstr(
        lacks.msg, "no rates for attention F32 causal, attention_grad F32 causal deterministic, linear F32, "
                   "linear_dgrad F32, linear_wgrad F32: measure"));
    assert_non_null(
        strstr(other.msg, "the rates are of NVIDIA H200, but the plan is for a CPU: remove --device cpu"));
    setup_free(s);
}
