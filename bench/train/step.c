#include "bench/train/step.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/file.h"
#include "bench/head.h"
#include "comm/agree.h"
#include "measure/peaks.h"
#include "models/option_map.h"
#include "pipeline/simulate.h"
#include "run/launch.h"

/* ---- batches ---- */

/* Draws tokens uniformly, so that all embedding rows are read equally often. Returns this rank's part of the
 * batches. */
static Batch *draw_tokens(Steps *b, uint64_t step) {
    const Mesh *mesh = &b->trainer->run.layout.mesh;
    const int64_t before = (int64_t)step * mesh->size[AXIS_DP] + mesh->coordinate[AXIS_DP];
    arena_reset(b->step);
    Batch *own = arena_alloc(b->step, (size_t)b->microbatches * sizeof *own);
    for (int64_t k = 0; k < b->microbatches; k++) {
        const uint64_t number = (uint64_t)(before * b->microbatches + k);
        const Batch *x = &b->batches[k];
        batch_draw(x, 1, number, b->config.derived.vocab_size);
        own[k] = batch_slice(x, mesh->size[AXIS_CP], mesh->coordinate[AXIS_CP], b->step);
    }
    return own;
}

static void take_batches(Steps *b) {
    const int64_t ranks = b->trainer->run.layout.mesh.size[AXIS_DP];
    b->microbatches = b->config.derived.global_batch_size / (b->config.derived.micro_batch_size * ranks);
    b->batches = mem_zero((size_t)b->microbatches, sizeof *b->batches);
    for (int64_t k = 0; k < b->microbatches; k++)
        b->batches[k] = batch_new(b->config.derived.micro_batch_size, b->trainer->run.model->plan.sample);
}

static void free_batches(Steps *b) {
    for (int64_t k = 0; b->batches && k < b->microbatches; k++) batch_free(&b->batches[k]);
    free(b->batches);
}

/* ---- steps ---- */

static void one_step(Steps *b, const Batch *batches) {
    StepReport report = trainer_begin_step(b->trainer);
    trainer_microbatches(b->trainer, batches, b->microbatches, b->microbatches, &report);
    trainer_update(b->trainer, &report);
    b->loss = report.loss;
}

/* Returns the slowest rank's time in ns. All ranks start simultaneously. The measured time excludes drawing
 * tokens, because training loads data in a separate thread. */
static int64_t timed_step(Steps *b, int64_t number) {
    const Batch *batches = draw_tokens(b, (uint64_t)number);
    device_wait(b->device);
    steps_over_ranks(b, COMM_MAX, 0);
    const int64_t start = clock_ns();
    if (b->comm) comm_profile(b->comm, b->comm_profile, b->device);
    one_step(b, batches);
    device_wait(b->device);
    if (b->comm) comm_profile(b->comm, NULL, NULL);
    return (int64_t)steps_over_ranks(b, COMM_MAX, (double)(clock_ns() - start));
}

static void say(const Steps *b, const char *what, int64_t number, int64_t ns) {
    if (!b->prints) return;
    printf("%s %lld: %.1f ms\n", what, (long long)number, (double)ns * 1e-6);
    fflush(stdout);
}

static bool enough(const Steps *b, int64_t steps, int64_t since) {
    enum { LEAST = 3 };
    const BenchTrain *o = b->options;
    if (steps >= o->steps || o->seconds <= 0 || steps < LEAST) return steps >= o->steps;
    return steps_over_ranks(b, COMM_MAX, (double)(clock_ns() - since)) > o->seconds * 1e9;
}

/* Measures steps with a synchronization after each step, then the same number of steps without synchronization, as in
 * training. */
static void measure_plain(Steps *b) {
    const BenchTrain *o = b->options;
    b->wall = mem_alloc((size_t)o->steps * sizeof *b->wall);
    for (int64_t i = 0; i < o->warmup; i++) say(b, "warm-up", i, timed_step(b, i));
    NvmlWatch *watch = nvml_watch(b->device->id, 100);
    const int64_t before = b->device->graph_replays;
    for (const int64_t start = clock_ns(); !enough(b, b->n_plain, start); b->n_plain++) {
        const int64_t ns = timed_step(b, o->warmup + b->n_plain);
        b->wall[b->n_plain] = (double)ns;
        say(b, "step", b->n_plain, ns);
    }
    const Batch *batches = draw_tokens(b, (uint64_t)(o->warmup + b->n_plain));
    steps_over_ranks(b, COMM_MAX, 0);
    const int64_t start = clock_ns();
    for (int64_t i = 0; i < b->n_plain; i++) one_step(b, batches);
    device_wait(b->device);
    b->back_to_back = steps_over_ranks(b, COMM_MAX, (double)(clock_ns() - start)) / (double)b->n_plain;
    b->graph_replays = (double)(b->device->graph_replays - before) / (2 * (double)b->n_plain);
    b->load = nvml_watch_end(watch);
}

/* ---- memory ---- */

/* Returns how many bytes of memory are in use: on a CPU, the peak of the process; on a GPU, the memory in use up to an
 * additive constant. */
static double taken(const Steps *b) {
    if (b->gpu) return -(double)device_memory_available(b->device);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024;
}

/* ---- with the time of every op ---- */

/* This function is a TapeTrace. */
static void record(void *arg, const OpDef *op, const Call *c) {
    Recorder *r = arg;
    if (r->counting) {
        gemms_count(r->gemms, op, c);
        r->calls++;
        return;
    }
    /* most ops were missing from the counted step, because its experts received no tokens */
    if (r->at == r->room) return;
    r->gemm[r->at++] = gemms_find(r->gemms, op, c);
    r->device->profile = r->profile[r->at];
}

static void count_ops(Steps *b, int64_t number) {
    Recorder *r = &b->recorder;
    *r = (Recorder){.device = b->device, .gemms = &b->gemms, .counting = true};
    executor_trace(b->trainer->executor, record, r);
    b->comm_profile = mem_zero(COMM_PROFILE, sizeof *b->comm_profile);
    const int64_t ns = timed_step(b, number);
    if (b->comm) steps_find_groups(b, b->comm_profile);
    if (!b->gpu) say(b, "warm-up", 0, ns);
    r->counting = false;
    r->room = 2 * r->calls;
    r->profile = mem_zero((size_t)r->room + 1, sizeof *r->profile);
    r->gemm = mem_zero((size_t)r->room, sizeof *r->gemm);
}

static void take_comm(Steps *b, Step *s) {
    for (int i = 0; i < b->groups; i++) {
        const CommProfile *p = &b->comm_profile[b->group[i]];
        s->comm[i] = (StepComm){(double)p->exposed.ns, (double)p->flight.ns, p->bytes};
        b->comm_calls[i] = p->exposed.calls;
    }
}

static void profiled_step(Steps *b, int64_t number, Step *s) {
    Recorder *r = &b->recorder;
    memset(b->comm_profile, 0, COMM_PROFILE * sizeof *b->comm_profile);
    memset(r->profile, 0, (size_t)(r->room + 1) * sizeof *r->profile);
    r->at = 0;
    b->device->profile = r->profile[0];
    *s = (Step){.wall_ns = timed_step(b, number)};
    b->device->profile = NULL;
    take_comm(b, s);
    memset(b->op_calls, 0, sizeof b->op_calls);
    for (int64_t i = 0; i <= r->at; i++)
        for (int op = 0; op < OP_KERNELS; op++) {
            s->op_ns[op] += r->profile[i][op].ns;
            b->op_calls[op] += r->profile[i][op].calls;
        }
    for (int64_t i = 0; i < r->at; i++)
        if (r->gemm[i] >= 0) {
            StepGemm *p = &b->gemms.at[r->gemm[i]];
            p->ours_ns += (double)r->profile[i][p->op].ns;
        }
}

static void measure_ops(Steps *b) {
    const BenchTrain *o = b->options;
    int64_t number = b->gpu ? o->warmup + b->n_plain : 0;
    const CudaGraph graphs = b->config.cuda_graph_impl;
    b->config.cuda_graph_impl = CUDA_GRAPH_NONE; /* ops in a CUDA graph cannot be timed */
    count_ops(b, number++);
    for (Step s; !b->gpu && number < o->warmup; number++) {
        profiled_step(b, number, &s);
        say(b, "warm-up", number, s.wall_ns);
    }
    for (int i = 0; i < b->gemms.count; i++) b->gemms.at[i].ours_ns = 0;
    /* memory is measured before the replay in BLAS, because the replay allocates memory */
    b->peak = taken(b);
    b->n_profiled = b->gpu ? o->profiled : o->steps;
    b->profiled = mem_zero((size_t)b->n_profiled, sizeof *b->profiled);
    for (int64_t i = 0; i < b->n_profiled; i++) {
        Step *s = &b->profiled[i];
        profiled_step(b, number++, s);
        if (!b->gpu && steps_alone(b)) s->blas_ns = gemms_through_blas(&b->gemms, b->threads);
        say(b, b->gpu ? "profiled step" : "step", i, s->wall_ns);
    }
    executor_trace(b->trainer->executor, NULL, NULL);
    b->config.cuda_graph_impl = graphs;
}

/* ---- start and end ---- */

static Err plan_memory(Steps *b) {
    b->plan = memory_plan_new(&b->config, b->comm, b->device);
    const MemoryPlan together = memory_plan_together(&b->plan, b->device, b->comm);
    b->planned = (double)memory_plan_total(&together);
    return memory_plan_fits(&b->plan, b->device, b->comm);
}

/* Returns the bubble, or NaN if it is not known. */
static double bubble_of(const Steps *b) {
    static const PassTimes EQUAL = {1, 1, 1};
    PipelineSpec spec;
    const int64_t microbatches =
        b->microbatches * (b->config.batch_invariant_mode ? b->config.derived.micro_batch_size : 1);
    const int64_t units = pipeline_units(&b->config, microbatches);
    if (pipeline_spec(&b->config, &b->trainer->run.pipeline, units, false, &spec).code) return NAN;
    return pipeline_bubble(&spec, EQUAL) / (double)(3 * spec.microbatches * spec.chunks);
}

static Err open_run(Steps *b) {
    const Config *c = &b->config;
    char transport[200];
    ERR_RETURN(rank_open_device(c, b->comm, &b->device, transport));
    device_describe(b->device, b->name, sizeof b->name);
    bench_transport(b->comm, transport, b->transport);
    if (b->prints) printf("device: %s\n", b->name);
    if (b->prints && b->comm) printf("ranks: %d, transport: %s\n", b->ranks, b->transport);
    const Err e = plan_memory(b);
    if (e.code) {
        rank_free_device(b->comm, b->device);
        return e;
    }
    b->before = taken(b);
    steps_over_ranks(
        b, COMM_MAX,
        0); /* all ranks must read `before` before any rank allocates memory on a shared device */
    b->trainer = trainer_new(c, &b->plan, b->comm, b->device);
    b->type = b->trainer->run.context.dtype;
    b->flops = trainer_flops(b->trainer, b->config.derived.global_batch_size);
    const int64_t start = clock_ns();
    registry_init(b->trainer->run.model->registry, b->trainer->run.context.seed);
    trainer_publish(b->trainer);
    device_wait(b->device);
    b->init_seconds = (double)(clock_ns() - start) * 1e-9;
    if (b->device->pool) b->threads = pool_threads(b->device->pool);
    take_batches(b);
    b->bubble = bubble_of(b);
    return ERR_OK;
}

/* Measures the GEMMs alone on a newly opened device, after the run's memory has been freed. */
static Err measure_alone(Steps *b) {
    trainer_free(b->trainer);
    b->trainer = NULL;
    const DeviceSpec spec = rank_device_spec(&b->config, b->comm);
    ERR_RETURN(comm_agree(b->comm, device_open(&spec, &b->device)));
    b->roof_copy = bench_roof_copy(b->device);
    b->roof_gemm = bench_roof_gemm(b->device, b->type);
    gemms_on_device(&b->gemms, b->device, b->n_profiled);
    device_free(b->device);
    return ERR_OK;
}

static void free_steps(Steps *b) {
    trainer_free(b->trainer);
    free_batches(b);
    gemms_free(&b->gemms);
    arena_free(b->step);
    free(b->recorder.profile), free(b->recorder.gemm);
    free(b->wall), free(b->profiled), free(b->rank), free(b->comm_profile);
}

static Err ask(const BenchGuard *guard, const Steps *b) {
    if (!b->prints) return ERR_OK;
    json_t *facts = report_facts(b);
    const Err e = guard->check(guard->arg, facts);
    json_decref(facts);
    return e;
}

static Err measure(Steps *b) {
    if (b->gpu) measure_plain(b);
    measure_ops(b);
    steps_describe_rank(b);
    if (b->gpu && steps_alone(b)) ERR_RETURN(measure_alone(b));
    steps_gather(b);
    return ERR_OK;
}

typedef struct Run {
    const Config *config;
    const BenchTrain *options;
    const BenchGuard *guard;
    json_t **result;
} Run;

static Err run_rank(void *arg, Comm *comm) {
    const Run *r = arg;
    Steps b = {.options = r->options,
               .config = *r->config,
               .comm = comm,
               .ranks = comm ? comm_world(comm) : 1,
               .prints = rank_is_printer(comm),
               .gpu = r->config->device == ON_CUDA,
               .step = arena_new()};
    Err e = r->options->json && b.prints ? file_check_target(r->options->json) : ERR_OK;
    e = comm_agree(comm, e);
    if (!e.code) e = open_run(&b);
    if (!e.code && r->guard) e = comm_agree(comm, ask(r->guard, &b));
    if (!e.code) e = measure(&b);
    if (!e.code) e = comm_agree(comm, b.prints ? report_steps(&b, r->result) : ERR_OK);
    free_steps(&b);
    return e;
}

Err bench_train(const Config *c, const BenchTrain *o, const BenchGuard *guard, json_t **result) {
    Run run = {c, o, guard, result};
    ERR_RETURN(trainer_check(c));
    return world_run(c, run_rank, &run);
}
