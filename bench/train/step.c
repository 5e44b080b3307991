/* Where the time of a training step goes: bench_step --config bench/train/gpt2-124m.conf [--steps N] [--json
 * FILE]
 *
 * Builds a run on random tokens, takes steps, and prints the time of each op family. Families and "other"
 * (the tape, the loop, making the batch) sum to the step by construction; what is claimed is that "other" is
 * small. Each step is followed by a replay of the step's matrix products through BLAS alone, so that both see
 * the same machine. Times are means over the middle half of the steps: neighbours on the machine disturb
 * single steps, and means of a set of steps still add up. */
#include <cblas.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/philox.h"
#include "bench/provenance.h"
#include "bench/train/roof.h"
#include "kernels/ops.h"
#include "train/flops.h"
#include "train/run.h"

typedef struct Options {
    int64_t steps, warmup;
    bool roof;
    const char *json;
} Options;

static const Arg ROWS[] = {
    {"steps", ARG_I64, offsetof(Options, steps), "20", NULL, "Steps to measure.", false},
    {"warmup", ARG_I64, offsetof(Options, warmup), "3", NULL, "Steps before that: first touch of memory.",
     false},
    {"no-roof", ARG_OFF, offsetof(Options, roof), "on", NULL, "No replay of the matrix products.", false},
    {"json", ARG_TEXT, offsetof(Options, json), "none", NULL, "File that gets the results.", false},
};

/* What no line below claims is "other". */
#define FAMILIES                                                                                             \
    FAMILY(OTHER, "other")                                                                                   \
    FAMILY(GEMM, "gemm")                                                                                     \
    FAMILY(ATTENTION, "attention")                                                                           \
    FAMILY(NORM, "norm")                                                                                     \
    FAMILY(ACTIVATION, "activation")                                                                         \
    FAMILY(LOSS, "loss")                                                                                     \
    FAMILY(ELEMENTWISE, "elementwise")                                                                       \
    FAMILY(EMBEDDING, "embedding")                                                                           \
    FAMILY(OPTIMIZER, "optimizer")

typedef enum Family {
#define FAMILY(constant, name) FAMILY_##constant,
    FAMILIES
#undef FAMILY
        FAMILY_COUNT
} Family;

static const char *const FAMILY_NAMES[] = {
#define FAMILY(constant, name) name,
    FAMILIES
#undef FAMILY
};

static const Family FAMILY_OF[OP_COUNT] = {
    [OP_linear] = FAMILY_GEMM,
    [OP_linear_dgrad] = FAMILY_GEMM,
    [OP_linear_wgrad] = FAMILY_GEMM,
    [OP_norm] = FAMILY_NORM,
    [OP_norm_grad] = FAMILY_NORM,
    [OP_activation] = FAMILY_ACTIVATION,
    [OP_activation_grad] = FAMILY_ACTIVATION,
    [OP_rope] = FAMILY_ATTENTION,
    [OP_embedding] = FAMILY_EMBEDDING,
    [OP_embedding_grad] = FAMILY_EMBEDDING,
    [OP_dropout] = FAMILY_ELEMENTWISE,
    [OP_attention] = FAMILY_ATTENTION,
    [OP_attention_grad] = FAMILY_ATTENTION,
    [OP_attention_unfused] = FAMILY_ATTENTION,
    [OP_attention_unfused_grad] = FAMILY_ATTENTION,
    [OP_cross_entropy] = FAMILY_LOSS,
    [OP_cross_entropy_grad] = FAMILY_LOSS,
    [OP_weighted_sum] = FAMILY_LOSS,
    [OP_copy] = FAMILY_ELEMENTWISE,
    [OP_add] = FAMILY_ELEMENTWISE,
    [OP_fill] = FAMILY_ELEMENTWISE,
    [OP_adamw] = FAMILY_OPTIMIZER,
    [OP_sgd] = FAMILY_OPTIMIZER,
    [OP_sum_squares] = FAMILY_OPTIMIZER,
    [OP_count_zeros] = FAMILY_OPTIMIZER,
};

typedef struct Step {
    int64_t wall_ns, roof_ns;
    int64_t op_ns[OP_COUNT];
} Step;

typedef struct Bench {
    Config config;
    Derived derived;
    Options options;
    Run *run;
    Device *device; /* the run's */
    Batch batch;
    Roof roof;
    OpProfile profile[OP_COUNT];
    int64_t calls[OP_COUNT]; /* of one step */
    Step *steps;             /* [options.steps] */
    MemoryPlan plan;
    double start_bytes, peak_bytes; /* resident, before the run's memory is taken and after the steps */
    double init_seconds;
    double loss;
} Bench;

/* ---- measuring ---- */

static double resident_peak(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024;
}

/* Uniform tokens: no row of the embedding is hot. */
static void draw_tokens(Bench *b, uint64_t step) {
    const int64_t n = b->batch.b * b->batch.s;
    for (int64_t i = 0; i < n; i++) {
        b->batch.tokens[i] = philox_u32(1, step, (uint64_t)i) % (uint64_t)b->derived.vocab_size;
        b->batch.labels[i] = philox_u32(2, step, (uint64_t)i) % (uint64_t)b->derived.vocab_size;
    }
}

static void one_step(Bench *b, uint64_t number) {
    const int64_t n = b->derived.global_batch_size / b->derived.micro_batch_size;
    StepReport report = run_begin(b->run);
    for (int64_t i = 0; i < n; i++) {
        draw_tokens(b, number * (uint64_t)n + (uint64_t)i);
        run_microbatch(b->run, &b->batch, n, &report);
    }
    run_update(b->run, &report);
    b->loss = report.loss;
}

static void measure_step(Bench *b, int64_t number, Step *s) {
    memset(b->profile, 0, sizeof b->profile);
    memset(b->roof.seen_ns, 0, sizeof b->roof.seen_ns);
    const int64_t start = clock_ns();
    one_step(b, (uint64_t)number);
    s->wall_ns = clock_ns() - start;
    for (int i = 0; i < OP_COUNT; i++) s->op_ns[i] = b->profile[i].ns, b->calls[i] = b->profile[i].calls;
}

static void open_run(Bench *b) {
    Err e = device_open(b->config.device == ON_CUDA, 0, (int)b->derived.cpu_threads, &b->device);
    CHECK(!e.code, "%s", e.msg);
    b->plan = run_plan_memory(&b->config, &b->derived, NULL, b->device);
    b->start_bytes = resident_peak();
    b->run = run_new(&b->config, &b->derived, &b->plan, NULL, b->device);
    const int64_t start = clock_ns();
    registry_init(b->run->model->registry, b->run->context.seed);
    b->init_seconds = (double)(clock_ns() - start) * 1e-9;
    b->run->device->profile = b->profile;
    b->roof.profile = b->profile;
    executor_trace(b->run->executor, roof_trace, &b->roof);
    b->batch = batch_new(b->derived.micro_batch_size, b->config.seq_length);
    b->batch.b = b->derived.micro_batch_size;
    for (int64_t i = 0; i < b->batch.b * b->batch.s; i++) {
        b->batch.position_ids[i] = i % b->batch.s;
        b->batch.loss_mask[i] = 1;
    }
}

static void measure(Bench *b) {
    const Options *o = &b->options;
    open_run(b);
    for (int64_t i = 0; i < o->warmup; i++) {
        Step s;
        b->roof.counting = i == 0;
        measure_step(b, i, &s);
        printf("warm-up %lld: %.1f ms\n", (long long)i, (double)s.wall_ns * 1e-6);
    }
    b->roof.counting = false;
    roof_restart(&b->roof);
    b->peak_bytes = resident_peak(); /* before the replay takes memory of its own */
    b->steps = mem_zero((size_t)o->steps, sizeof *b->steps);
    for (int64_t i = 0; i < o->steps; i++) {
        Step *s = &b->steps[i];
        measure_step(b, o->warmup + i, s);
        if (o->roof) s->roof_ns = roof_replay(&b->roof, pool_threads(b->run->device->pool));
        printf("step %lld: %.1f ms\n", (long long)i, (double)s->wall_ns * 1e-6);
        fflush(stdout);
    }
}

/* ---- reporting ---- */

static int by_wall(const void *a, const void *b) {
    const int64_t x = ((const Step *)a)->wall_ns, y = ((const Step *)b)->wall_ns;
    return (x > y) - (x < y);
}

typedef struct Range {
    double median, min, max;
} Range;

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts x. */
static Range range(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return (Range){(x[(n - 1) / 2] + x[n / 2]) / 2, x[0], x[n - 1]};
}

typedef struct Summary {
    double step, fastest, slowest, op[OP_COUNT], family[FAMILY_COUNT]; /* seconds */
    double roof;                                                       /* seconds of a replay, the median */
    Range of_roof; /* replay over the step's matrix products, step by step */
} Summary;

static double gemm_ns(const Step *s) {
    return (double)(s->op_ns[OP_linear] + s->op_ns[OP_linear_dgrad] + s->op_ns[OP_linear_wgrad]);
}

static void summarise_roof(const Bench *b, Summary *s) {
    const int64_t n = b->options.steps;
    double *value = mem_alloc((size_t)n * sizeof *value);
    for (int64_t i = 0; i < n; i++) value[i] = (double)b->steps[i].roof_ns * 1e-9;
    s->roof = range(value, n).median;
    for (int64_t i = 0; i < n; i++) value[i] = (double)b->steps[i].roof_ns / gemm_ns(&b->steps[i]);
    s->of_roof = range(value, n);
    free(value);
}

static Summary summarise(Bench *b) {
    const int64_t n = b->options.steps, first = n / 4, count = n - 2 * first;
    const double each = 1e-9 / (double)count;
    qsort(b->steps, (size_t)n, sizeof *b->steps, by_wall);
    Summary s = {.fastest = (double)b->steps[0].wall_ns * 1e-9,
                 .slowest = (double)b->steps[n - 1].wall_ns * 1e-9};
    summarise_roof(b, &s);
    for (int64_t i = first; i < first + count; i++) {
        s.step += (double)b->steps[i].wall_ns * each;
        for (int op = 0; op < OP_COUNT; op++) s.op[op] += (double)b->steps[i].op_ns[op] * each;
    }
    s.family[FAMILY_OTHER] = s.step;
    for (int op = 0; op < OP_COUNT; op++) {
        s.family[FAMILY_OTHER] -= s.op[op];
        s.family[FAMILY_OF[op]] += s.op[op];
    }
    return s;
}

static json_t *ops_json(const Bench *b, const Summary *s) {
    json_t *ops = json_object();
    for (int i = 0; i < OP_COUNT; i++)
        if (b->calls[i])
            json_object_set_new(ops, OPS[i].name,
                                json_pack("{s:I, s:f, s:s}", "calls", (json_int_t)b->calls[i], "ms",
                                          s->op[i] * 1e3, "family", FAMILY_NAMES[FAMILY_OF[i]]));
    return ops;
}

static double gflops(const Product *p, const Bench *b, int64_t ns) {
    return 2.0 * p->m * p->n * p->k * p->calls * (double)b->options.steps / (double)ns;
}

static json_t *products_json(const Bench *b) {
    json_t *list = json_array();
    for (int i = 0; i < b->roof.count; i++) {
        const Product *p = &b->roof.product[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f}", "op", OPS[p->op].name, "m",
                                        p->m, "n", p->n, "k", p->k, "calls", p->calls, "gflops",
                                        gflops(p, b, p->ours_ns), "blas_gflops", gflops(p, b, p->roof_ns)));
    }
    return list;
}

static json_t *provenance_json(void) {
    const Provenance p = provenance_read();
    json_t *facts = json_object();
    for (int i = 0; i < FACTS; i++) json_object_set_new(facts, PROVENANCE_NAMES[i], json_string(p.text[i]));
    return facts;
}

static json_t *gemm_json(const Bench *b, const Summary *s) {
    const double gflop = roof_flops(&b->roof) * 1e-9;
    json_t *gemm = json_pack("{s:f, s:f}", "gflop", gflop, "gflops", gflop / s->family[FAMILY_GEMM]);
    if (b->options.roof)
        json_object_update_new(gemm,
                               json_pack("{s:f, s:{s:f, s:f, s:f}, s:o}", "blas_gflops", gflop / s->roof,
                                         "of_blas", "median", s->of_roof.median, "min", s->of_roof.min, "max",
                                         s->of_roof.max, "products", products_json(b)));
    return gemm;
}

static json_t *memory_json(const Bench *b) {
    const double planned = (double)memory_plan_total(&b->plan), mb = 1 << 20;
    return json_pack("{s:f, s:f, s:f, s:f}", "planned", planned / mb, "resident_before", b->start_bytes / mb,
                     "resident_peak", b->peak_bytes / mb, "peak_over_plan", b->peak_bytes / planned);
}

static json_t *result_json(const Bench *b, const Summary *s) {
    const int64_t tokens = b->derived.global_batch_size * b->config.seq_length;
    const double flops = flops_per_step(&b->config, &b->derived, b->derived.global_batch_size);
    json_t *families = json_object();
    for (int i = 0; i < FAMILY_COUNT; i++)
        json_object_set_new(families, FAMILY_NAMES[i], json_real(s->family[i] * 1e3));
    return json_pack("{s:o, s:i, s:I, s:I, s:{s:f, s:f, s:f}, s:f, s:f, s:o, s:o, s:o, s:o, s:f, s:f}",
                     "provenance", provenance_json(), "threads", pool_threads(b->run->device->pool), "steps",
                     (json_int_t)b->options.steps, "tokens", (json_int_t)tokens, "step_ms", "mean",
                     s->step * 1e3, "min", s->fastest * 1e3, "max", s->slowest * 1e3, "tokens_per_second",
                     (double)tokens / s->step, "model_gflops", flops / s->step * 1e-9, "family_ms", families,
                     "op_ms", ops_json(b, s), "gemm", gemm_json(b, s), "memory_mb", memory_json(b),
                     "init_seconds", b->init_seconds, "loss", b->loss);
}

static void print_ops(const Bench *b, const Summary *s) {
    printf("\n%-26s %6s %10s %7s\n", "op", "calls", "ms/step", "share");
    for (int f = 1; f <= FAMILY_COUNT; f++) {
        const int family = f % FAMILY_COUNT;
        printf("%-33s %10.2f %6.1f%%\n", FAMILY_NAMES[family], s->family[family] * 1e3,
               s->family[family] / s->step * 100);
        for (int i = 0; i < OP_COUNT; i++)
            if (b->calls[i] && (int)FAMILY_OF[i] == family)
                printf("  %-24s %6lld %10.2f %6.1f%%\n", OPS[i].name, (long long)b->calls[i], s->op[i] * 1e3,
                       s->op[i] / s->step * 100);
    }
    printf("%-33s %10.2f   (%.2f to %.2f over %lld steps)\n", "step", s->step * 1e3, s->fastest * 1e3,
           s->slowest * 1e3, (long long)b->options.steps);
}

static void print_products(const Bench *b, const Summary *s) {
    const double gflop = roof_flops(&b->roof) * 1e-9;
    printf("\n%-15s %6s %6s %6s %6s %9s %9s\n", "GFLOP/s", "m", "n", "k", "calls", "ours", "BLAS");
    for (int i = 0; i < b->roof.count; i++) {
        const Product *p = &b->roof.product[i];
        printf("%-15s %6d %6d %6d %6d %9.1f %9.1f\n", OPS[p->op].name, p->m, p->n, p->k, p->calls,
               gflops(p, b, p->ours_ns), gflops(p, b, p->roof_ns));
    }
    printf("%-43s %9.1f %9.1f  ratio %.3f (%.3f to %.3f)\n", "all", gflop / s->family[FAMILY_GEMM],
           gflop / s->roof, s->of_roof.median, s->of_roof.min, s->of_roof.max);
}

static void print(const Bench *b, const Summary *s) {
    const double planned = (double)memory_plan_total(&b->plan), mb = 1 << 20;
    print_ops(b, s);
    if (b->options.roof) print_products(b, s);
    printf("\nBLAS core %s, %d threads\n", openblas_get_corename(), pool_threads(b->run->device->pool));
    printf("memory: planned %.1f MB, resident peak %.1f MB (%+.1f %%), %.1f MB of them before the run\n",
           planned / mb, b->peak_bytes / mb, (b->peak_bytes / planned - 1) * 100, b->start_bytes / mb);
    printf("init %.2f s, loss %.4f\n", b->init_seconds, b->loss);
}

static Err report(Bench *b) {
    const Summary s = summarise(b);
    print(b, &s);
    if (!b->options.json) return ERR_OK;
    json_t *result = result_json(b, &s);
    char *text = json_dumps(result, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(result);
    Err e = file_write_atomic(b->options.json, text, strlen(text));
    free(text);
    return e;
}

/* ---- start and end ---- */

static Err read_options(Bench *b, Args *args, int argc, char **argv) {
    args_use(args, (ArgTable){.rows = ROWS, .count = sizeof ROWS / sizeof *ROWS, .target = &b->options});
    args_use(args, config_table(&b->config, CONFIG_ALL_GROUPS));
    args_line(args, argc, argv);
    config_check(&b->config, CHECK_MODEL | CHECK_TRAIN, args);
    if (b->options.steps < 1) args_problem(args, "--steps: at least 1");
    if (b->options.warmup < 1) args_problem(args, "--warmup: at least 1, the first step touches the memory");
    return args_end(args);
}

static int fail(Err e, const Args *args) {
    fprintf(stderr, "bench_step: %s\n%s", e.msg, args->problems.s ? args->problems.s : "");
    return e.code;
}

int main(int argc, char **argv) {
    Arena *arena = arena_new();
    Bench b = {0};
    Args args;
    args_init(&args, arena, "bench_step --config FILE [options]", NULL);
    Err e = read_options(&b, &args, argc - 1, argv + 1);
    if (!e.code) {
        config_finish(&b.config, arena, 0, &b.derived);
        measure(&b);
        e = report(&b);
    }
    const int status = e.code ? fail(e, &args) : 0;
    if (b.run) run_free(b.run), batch_free(&b.batch), roof_free(&b.roof), free(b.steps);
    args_free(&args);
    arena_free(arena);
    return status;
}
