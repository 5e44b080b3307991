/* Tests that a dry run of part of a step plans exactly the memory that the whole step uses on ranks that are threads.
 * Also tests how the plans of ranks that share memory are added. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/machine.h"
#include "tensor/backend.h"
#include "unit/train/ranks_step.h"

enum { RANKS = 4, MICROBATCHES = 16 };
#define T5 "--model t5 --decoder-seq-length 4 --position-embedding-type relative "

/* ---- allocations of a rank on a device with memory ---- */

/* Names of allocations, and the rows of the plan to which they belong. */
static const struct {
    const char *what;
    MemoryPart part;
} ROWS[] = {
    {"parameters", MEMORY_parameters},
    {"FP8 parameters", MEMORY_parameters},
    {"the scales of FP8 weights", MEMORY_parameters},
    {"the scales of quantized weights", MEMORY_parameters},
    {"main gradients", MEMORY_gradients},
    {"master parameters", MEMORY_optimizer},
    {"optimizer state", MEMORY_optimizer},
    {"pieces of the parameters", MEMORY_optimizer},
    {"an optimizer step", MEMORY_optimizer},
    {"activation", MEMORY_slots},
    {"pipeline messages", MEMORY_slots},
    {"offloaded activation", MEMORY_slots},
    {"transient", MEMORY_transient},
    {"gathered parameters", MEMORY_gathered},
    {"gradients of a bucket", MEMORY_gathered},
    {"replicated gradients", MEMORY_gathered},
    {"RoPE table", MEMORY_tables},
    {"step counters", MEMORY_tables},
    {"the FP8 values of FP8 weights", MEMORY_tables},
    {"batches", MEMORY_inputs},
    {"loss", MEMORY_inputs},
    {"offloaded activations", MEMORY_offloaded},
    {"offloaded master parameters", MEMORY_offloaded_state},
    {"offloaded optimizer state", MEMORY_offloaded_state},
    {"offloaded gradients", MEMORY_offloaded_state},
    {"offloaded parameters", MEMORY_offloaded_state},
};

static _Thread_local size_t taken[MEMORY_PART_COUNT];

static void note(const Device *d, size_t bytes, const char *what) {
    size_t i = 0;
    if (d->kind == DEVICE_NULL) return;
    while (i < sizeof ROWS / sizeof *ROWS && strcmp(ROWS[i].what, what)) i++;
    if (i == sizeof ROWS / sizeof *ROWS) printf("no row of the plan has '%s'\n", what), exit(1);
    taken[ROWS[i].part] += bytes;
}

void *__real_device_alloc(Device *, size_t, const char *);
void *__wrap_device_alloc(Device *, size_t, const char *);
void *__wrap_device_alloc(Device *d, size_t bytes, const char *what) {
    note(d, bytes, what);
    return __real_device_alloc(d, bytes, what);
}

/* Other allocations in host memory are a few bytes for results. */
void *__real_device_host_alloc(Device *, size_t, const char *);
void *__wrap_device_host_alloc(Device *, size_t, const char *);
void *__wrap_device_host_alloc(Device *d, size_t bytes, const char *what) {
    if (!strncmp(what, "offloaded ", strlen("offloaded "))) note(d, bytes, what);
    return __real_device_host_alloc(d, bytes, what);
}

typedef struct Trial {
    const Setup *setup;
    Str wrong[RANKS]; /* rows of the plan that differ from the rank's allocations */
} Trial;

static void train(void *arg, Comm *comm) {
    Trial *t = arg;
    const Setup *s = t->setup;
    const MemoryPlan plan = memory_plan_new(&s->config, comm, NULL);
    memset(taken, 0, sizeof taken);
    Trainer *r = rank_trainer(s, &plan, comm); /* an allocation beyond the plan would be a fault */
    rank_step(s, r);
    /* In the zero-bubble schedule, each slot has a separate transient space. */
    const ExecutorMemory peak = executor_peak(r->executor);
    const size_t transient = peak.transient * (size_t)s->config.interleaved_microbatches;
    taken[MEMORY_slots] += taken[MEMORY_transient] - transient, taken[MEMORY_transient] = transient;
    if (peak.slot != plan.unit.slot) str_printf(&t->wrong[comm_rank(comm)], "another slot; ");
    for (int i = 0; i < MEMORY_PART_COUNT; i++)
        if (taken[i] != plan.part[i])
            str_printf(&t->wrong[comm_rank(comm)], "%s: %zu bytes, and not %zu; ", MEMORY_TITLES[i], taken[i],
                       plan.part[i]);
    trainer_free(r);
}

/* The dry run runs 8 of 16 microbatches (interleaved), 7 (1F1B, zero-bubble) or all (GPipe). */
TEST(a_part_of_a_step_plans_the_whole) {
    static const char *const WAYS[] = {
        "--pipeline-schedule 1f1b",
        "--pipeline-schedule zero-bubble",
        "--pipeline-schedule gpipe",
        "--step-batch-size-schedule 0:32,1K:16 --global-batch-size none --train-iters none --train-samples "
        "160",
        "--num-virtual-stages-per-pipeline-rank 2",
        "--use-megatron-fsdp --overlap-grad-reduce --overlap-param-gather",
        "--use-megatron-fsdp --overlap-grad-reduce --num-virtual-stages-per-pipeline-rank 2",
        "--use-megatron-fsdp --overlap-grad-reduce --overlap-param-gather --no-overlap-with-attention",
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --ddp-bucket-size 200",
        "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 200",
        "--model bert --tensor-model-parallel-size 2 --sequence-parallel --global-batch-size 16",
        "--model bert --use-megatron-fsdp --overlap-grad-reduce --overlap-param-gather",
        "--tensor-model-parallel-size 2 --sequence-parallel --interleaved-microbatches 2 "
        "--keep-gathered-inputs --pipeline-schedule zero-bubble --global-batch-size 16",
        "--pipeline-model-parallel-size 1 --tensor-model-parallel-size 2 --sequence-parallel "
        "--interleaved-microbatches 2 --interleave-forward-backward --keep-gathered-inputs",
        "--tensor-model-parallel-size 2 --sequence-parallel --interleaved-microbatches 2 "
        "--interleave-forward-backward --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 16",
        "--position-embedding-type rope --optimizer sgd --tensor-model-parallel-size 2 --global-batch-size "
        "16",
        "--fp8-format hybrid --fp8-keep-weights",
        "--fp8-format hybrid --fp8-recipe blockwise --fp8-param-gather --use-megatron-fsdp "
        "--overlap-param-gather",
        "--use-precision-aware-optimizer --exp-avg-dtype bf16 --main-grads-dtype bf16 "
        "--use-distributed-optimizer",
        "--pipeline-model-parallel-size 1 --cpu-offloading-num-layers 3",
        "--use-precision-aware-optimizer --exp-avg-dtype bf16 --main-grads-dtype bf16 "
        "--use-distributed-optimizer --optimizer-cpu-offload --optimizer-offload-fraction 0.5",
        "--optimizer-cpu-offload --optimizer sgd",
        "--num-experts 4 --disable-bias-linear --moe-router-score-function sigmoid "
        "--moe-router-enable-expert-bias --expert-model-parallel-size 2 --moe-expert-capacity-factor 1",
        T5 "--num-virtual-stages-per-pipeline-rank 4 --use-distributed-optimizer --overlap-grad-reduce",
        T5 "--pipeline-schedule zero-bubble --context-parallel-size 2 --global-batch-size 16",
        T5 "--use-megatron-fsdp --overlap-grad-reduce --num-virtual-stages-per-pipeline-rank 2",
    };
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        Trial t = {0};
        Setup *s = setup_new("--num-layers 4 --seq-length 8 --bf16 --ranks %d --pipeline-model-parallel-size "
                             "2 --micro-batch-size 1 --global-batch-size %d %s",
                             RANKS, 2 * MICROBATCHES, WAYS[i]);
        t.setup = s;
        comm_threads(RANKS, NULL, train, &t);
        for (int rank = 0; rank < RANKS; rank++)
            if (t.wrong[rank].len) fail_msg("%s: rank %d takes %s", WAYS[i], rank, t.wrong[rank].s);
        setup_free(s);
    }
}

/* ---- dropless experts ---- */

typedef enum Pattern { BALANCED, LEARNED, SKEWED, PATTERNS } Pattern;

typedef struct Experts {
    const Setup *setup;
    Pattern kind;
    double planned[RANKS], most[RANKS], taken[RANKS];
} Experts;

/* With SKEWED, parameters are zero, so that each token selects the first experts, which are on rank 0. */
static void train_experts(void *arg, Comm *comm) {
    Experts *t = arg;
    const Setup *s = t->setup;
    const int rank = comm_rank(comm);
    MemoryPlan plan = memory_plan_new(&s->config, comm, NULL);
    memory_plan_worst(&plan, &s->config, comm, NULL);
    Trainer *r = trainer_new(&s->config, &plan, comm, NULL);
    if (t->kind != SKEWED) registry_init(r->run.model->registry, r->run.context.seed);
    trainer_publish(r);
    rank_step(s, r);
    t->planned[rank] = (double)memory_plan_total(&plan), t->most[rank] = (double)memory_plan_most(&plan);
    t->taken[rank] = (double)r->run.device->most_allocated;
    trainer_free(r);
}

#define EXPERTS                                                                                              \
    "--bf16 --num-layers 4 --hidden-size 16 --moe-ffn-hidden-size 16 --num-experts 8 --moe-router-topk 2 "   \
    "--disable-bias-linear --seq-length 128 --micro-batch-size 48 "
#define A2A "--moe-token-dispatcher-type alltoall "
#define CUT "--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2 "

/* Balanced experts need within 1 % of the planned memory. In any routing, no rank exceeds the maximum, which rank 0
 * reaches if it receives all tokens. The environment variable EXPERT_WAYS is the number of layouts; by default, all are
 * tested. */
TEST(dropless_experts_need_the_planned_memory) {
    static const struct {
        const char *words;
        int ranks;
    } WAYS[] = {
        {A2A "--expert-model-parallel-size 2", 2},
        {A2A "--expert-model-parallel-size 4 --moe-router-topk 3", 4}, /* only 2 experts on a rank */
        {A2A "--expert-model-parallel-size 4 --interleaved-microbatches 2", 4},
        {A2A "--expert-model-parallel-size 2 --recompute-granularity full --recompute-method uniform "
             "--recompute-num-layers 1",
         2},
        {A2A CUT "--expert-tensor-parallel-size 2", 4},
        {CUT "--expert-tensor-parallel-size 1 --moe-token-dispatcher-type allgather", 2},
    };
    const char *few = getenv("EXPERT_WAYS");
    const size_t all = sizeof WAYS / sizeof *WAYS, ways = few ? (size_t)atoi(few) : all;
    for (size_t i = 0; i < ways && i < all; i++)
        for (Pattern kind = 0; kind < PATTERNS; kind++) {
            Setup *s = setup_new(EXPERTS "--ranks %d --global-batch-size %d %s %s", WAYS[i].ranks,
                                 96 * WAYS[i].ranks, WAYS[i].words,
                                 kind == BALANCED ? "--moe-router-force-load-balancing" : "");
            Experts t = {.setup = s, .kind = kind};
            comm_threads(WAYS[i].ranks, NULL, train_experts, &t);
            for (int rank = 0; rank < WAYS[i].ranks; rank++) {
                const double error = t.taken[rank] / t.planned[rank] - 1, part = t.taken[rank] / t.most[rank];
                const bool fits = (kind != BALANCED || fabs(error) <= 0.01) && part <= 1 &&
                                  (kind != SKEWED || rank || part > 0.9999);
                if (!fits)
                    fail_msg("%s, pattern %d: rank %d takes %.0f bytes; planned %.0f, at most %.0f",
                             WAYS[i].words, (int)kind, rank, t.taken[rank], t.planned[rank], t.most[rank]);
            }
            setup_free(s);
        }
}

/* Rank i uses i + 1 bytes for parameters and 10 i bytes for offloaded activations. */
static void share(void *arg, Comm *comm) {
    const Device *device = arg;
    MemoryPlan own = {.part = {[MEMORY_parameters] = (size_t)comm_rank(comm) + 1,
                               [MEMORY_offloaded] = 10 * (size_t)comm_rank(comm)}};
    MemoryPlan all = memory_plan_together(&own, device, comm);
    assert_int_equal(all.part[MEMORY_parameters], 1 + 2 + 3 + 4);
    assert_int_equal(memory_plan_total(&all), 10 + 60);
    own.discrete = true; /* three devices, each of which at most two of the four ranks share */
    all = memory_plan_together(&own, device, comm);
    assert_int_equal(memory_plan_total(&all), 2 * own.part[MEMORY_parameters]);
    assert_int_equal(memory_plan_host(&all), 60);
}

TEST(threads_add_up_what_they_share) {
    Device three = {.kind = DEVICE_NULL, .n_devices = 3};
    comm_threads(RANKS, NULL, share, &three);
    const MemoryPlan own = {.part = {[MEMORY_slots] = 7}}, alone = memory_plan_together(&own, &three, NULL);
    assert_int_equal(memory_plan_total(&alone), 7);
}

/* Returns the communication memory of a rank on a machine with this number of (simulated) GPUs. */
static size_t communication(Setup *s, Comm *comm, int devices) {
    Device *cpu = device_cpu(1), gpu = *cpu;
    DeviceBackend backend = *cpu->backend;
    backend.discrete = true, gpu.backend = &backend, gpu.n_devices = devices;
    const MemoryPlan plan = memory_plan_new(&s->config, comm, &gpu);
    assert_true(plan.communicators > 0);
    device_free(cpu);
    return plan.part[MEMORY_gathered];
}

static void share_gpus(void *arg, Comm *comm) {
    assert_true(communication(arg, comm, RANKS - 1) < (size_t)1 << 20);
    assert_true(communication(arg, comm, RANKS) > (size_t)465 << 20);
}

/* Threads that share a GPU communicate through host memory. In `isotron plan`, each rank has a GPU, even if this
 * machine has fewer. */
TEST(planned_ranks_have_a_gpu_each) {
    Setup *s = setup_new(
        "--ranks %d --global-batch-size 8 --micro-batch-size 1 --num-layers 4 --train-iters 1", RANKS);
    Comm *planned = comm_null(RANKS, 0);
    assert_true(communication(s, planned, 1) > (size_t)465 << 20);
    comm_free(planned);
    comm_threads(RANKS, NULL, share_gpus, s);
    setup_free(s);
}

/* The name of this rank's host. */
static _Thread_local const char *host_name;

void __wrap_machine_host(char out[MACHINE_TEXT]);
void __wrap_machine_host(char out[MACHINE_TEXT]) { snprintf(out, MACHINE_TEXT, "%s", host_name); }

/* Ranks 0 to 2 are on one host, rank 3 on another. */
static void share_host(void *arg, Comm *comm) {
    (void)arg;
    const int rank = comm_rank(comm);
    MemoryPlan own = {.part = {[MEMORY_parameters] = (size_t)rank + 1,
                               [MEMORY_scratch] = 1000 * (size_t)rank,
                               [MEMORY_snapshot] = 100 * (size_t)rank,
                               [MEMORY_offloaded] = 10 * (size_t)rank}};
    host_name = rank < 3 ? "a" : "b";
    MemoryPlan all = memory_plan_of_host(&own, comm);
    assert_int_equal(all.part[MEMORY_parameters], rank < 3 ? 1 + 2 + 3 : 4);
    assert_int_equal(all.part[MEMORY_offloaded], 30);
    own.discrete = true; /* each rank has its own device */
    all = memory_plan_of_host(&own, comm);
    assert_int_equal(all.part[MEMORY_parameters], rank + 1);
    assert_int_equal(all.part[MEMORY_offloaded], 30);
    assert_int_equal(memory_plan_total(&all), 1000 * rank + rank + 1);
    assert_int_equal(memory_plan_host(&all), 330);
}

TEST(processes_of_a_host_add_up_its_memory) { comm_threads(RANKS, NULL, share_host, NULL); }

/* ---- text ---- */

/* Part i needs i + 1 MiB: parameters 1, gradients 2, optimizer 3, activations 4, transient 5, communication 6, tables
 * 7, batches 8, kernels 9, and 10, 11 and 12 in the host's memory. */
static MemoryPlan sized(bool discrete) {
    MemoryPlan p = {.discrete = discrete, .most[MEMORY_offloaded] = (size_t)22 << 20};
    for (size_t i = 0; i < MEMORY_PART_COUNT; i++) p.part[i] = (i + 1) << 20;
    return p;
}

static void expect_text(const MemoryPlan *p, const char *text) {
    Str out = {0};
    memory_plan_describe(p, &out);
    assert_string_equal(out.s, text);
    str_free(&out);
}

TEST(each_part_is_described) {
#define PARTS                                                                                                \
    "parameters 1.0 MiB, main gradients 2.0 MiB, optimizer 3.0 MiB, activations 4.0 MiB, transient 5.0 "     \
    "MiB, communication 6.0 MiB, tables 7.0 MiB, batches 8.0 MiB, kernels 9.0 MiB, "
#define HOST                                                                                                 \
    "; in the host's memory checkpoint copy 10.0 MiB; in the host's memory offloaded activations 11.0 MiB "  \
    "(at most 22.0 MiB); in the host's memory offloaded optimizer 12.0 MiB"
    MemoryPlan p = sized(true), one = {.part = {[MEMORY_tables] = 3}};
    expect_text(&p, PARTS "total 45.0 MiB" HOST);
    for (size_t i = 0; i < MEMORY_offloaded; i++) p.most[i] = p.part[i];
    p.most[MEMORY_slots] = (size_t)7 << 20;
#define MORE "activations 4.0 MiB (at most 7.0 MiB)"
    Str more = {0};
    memory_plan_describe(&p, &more);
    assert_non_null(strstr(more.s, MORE));
    assert_non_null(strstr(
        more.s, "total 45.0 MiB (at most 48.0 MiB, if all tokens are sent to this rank's experts)" HOST));
    str_free(&more);
    p = sized(false), p.most[MEMORY_offloaded] = p.part[MEMORY_offloaded];
    expect_text(&p, PARTS "checkpoint copy 10.0 MiB, offloaded activations 11.0 MiB, offloaded optimizer "
                          "12.0 MiB, total 78.0 MiB");
    expect_text(&one, "tables 3 B, total 3 B");
}

TEST(a_plan_that_does_not_fit_names_its_parts) {
    const MemoryPlan gpu = sized(true), cpu = sized(false);
    MemoryPlan host = gpu;
    host.part[MEMORY_snapshot] = (size_t)1 << 60;
    assert_ok(memory_plan_check(&gpu, (size_t)45 << 20));
    assert_ok(memory_plan_check(&cpu, (size_t)78 << 20));
    assert_err(memory_plan_check(&gpu, ((size_t)6 << 20) - 1),
               "parameters, main gradients and optimizer state already need 6.0 MiB of memory, but only 6.0 "
               "MiB are available. Choose a smaller model");
    assert_err(
        memory_plan_check(&gpu, (size_t)6 << 20),
        "the run needs 45.0 MiB of memory (6.0 MiB for parameters, main gradients and optimizer state, "
        "9.0 MiB for activations), but only 6.0 MiB are available; lower --micro-batch-size, offload "
        "activations with --cpu-offloading-num-layers, or recompute");
    assert_err(memory_plan_check(&cpu, (size_t)77 << 20),
               "78.0 MiB of memory (6.0 MiB for parameters, main gradients and optimizer state, 9.0 MiB for "
               "activations), but only 77.0 MiB are available; lower --micro-batch-size, or recompute");
    assert_err(
        memory_plan_check(&host, (size_t)45 << 20),
        "offloaded activations (11.0 MiB), offloaded optimizer state (12.0 MiB) and the copy of a checkpoint "
        "(1.0 EiB) together need 1.0 EiB of host memory, but only ");
}

static size_t copy_of(const char *words) {
    Setup *s = setup_new("--num-layers 4 --seq-length 8 --bf16 --micro-batch-size 1 %s", words);
    const MemoryPlan plan = memory_plan_new(&s->config, NULL, NULL);
    setup_free(s);
    return plan.part[MEMORY_snapshot];
}

TEST(only_an_asynchronous_save_copies_a_checkpoint) {
    assert_int_equal(copy_of("--save x --save-interval 1"), 0);
    assert_int_equal(copy_of("--async-save"), 0);
    assert_true(copy_of("--save x --save-interval 1 --async-save") > 0);
}
