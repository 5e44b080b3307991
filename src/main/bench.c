#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "bench/comm/comm.h"
#include "bench/infer/infer.h"
#include "bench/ops/ops.h"
#include "bench/rates/rates.h"
#include "bench/scaling/scaling.h"
#include "bench/train/train.h"
#include "main/bench_gate.h"
#include "main/command.h"
#include "measure/exact.h"
#include "models/option_map.h"
#include "run/launch.h"
#include "train/trainer.h"

/* Checks --seconds for benchmarks that also accept 0. */
static void check_seconds(Args *args, double seconds) {
    if (!(seconds >= 0 && seconds <= COMMAND_MOST_S))
        args_problem(args, "--seconds must be from 0 to %d.", (int)COMMAND_MOST_S);
}

/* ---- isotron bench train ---- */

static const Arg TRAIN_ROWS[] = {
    ARG_ROW(BenchTrain, steps, "steps", ARG_I64, "20", "Number of steps to measure."),
    ARG_ROW(BenchTrain, warmup, "warmup", ARG_I64, "3",
            "Number of unmeasured steps, which run first, touch all memory and capture CUDA graphs."),
    ARG_ROW(BenchTrain, seconds, "seconds", ARG_F64, "0",
            "On a GPU, stop measuring after this many seconds, but not before 3 steps; 0 = no limit."),
    ARG_ROW(BenchTrain, profiled, "profiled", ARG_I64, "5",
            "Number of additional steps on a GPU in which every op is timed."),
    ARG_ROW(BenchTrain, alone, "no-alone", ARG_OFF, "on",
            "Do not measure individual GEMMs or roofline limits. With several ranks on a CPU, these are "
            "never measured."),
    ARG_ROW(BenchTrain, peak_tflops, "peak-tflops", ARG_F64, "none",
            "Peak TFLOP/s for MFU; none = the peak of the device if it is known, otherwise MFU is not "
            "printed."),
    ARG_ROW(BenchTrain, json, "json", ARG_TEXT, "none", "Write the results to this file."),
};

enum { MOST_STEPS = 1000000 }; /* limits memory, because each step needs a row in the report */

static void use_train(Config *c, BenchTrain *o, Args *args) {
    args_use(args, ARG_TABLE(TRAIN_ROWS, o));
    args_use(args, config_table(c, USE_BENCH_TRAIN));
}

static void check_train(const Config *c, const BenchTrain *o, Args *args) {
    const bool records = c->cuda_graph_impl == CUDA_GRAPH_LOCAL;
    if (o->steps < 1 || o->steps > MOST_STEPS)
        args_problem(args, "--steps must be from 1 to %d.", (int)MOST_STEPS);
    if (o->profiled < 1 || o->profiled > MOST_STEPS)
        args_problem(args, "--profiled must be from 1 to %d.", (int)MOST_STEPS);
    check_seconds(args, o->seconds);
    if (f64_is_set(o->peak_tflops) && o->peak_tflops <= 0)
        args_problem(args, "--peak-tflops must be above 0.");
    if (o->warmup < 1 + records)
        args_problem(args,
                     "--warmup must be at least 1, because the first step allocates memory, and at least 2 "
                     "with --cuda-graph-impl local, which captures the second step");
}

static Err read_train(Setup *s, BenchTrain *o, GateArgs *gate, Args *args, int argc, char **argv) {
    bench_use_gate(gate, args);
    use_train(&s->config, o, args);
    args_line(args, argc, argv);
    if (args->help) return ERR_OK;
    config_complete(&s->config, args);
    ERR_RETURN(world_size(&s->config));
    config_check(&s->config, CHECK_MODEL | CHECK_TRAIN, args);
    check_train(&s->config, o, args);
    bench_check_gate(gate, args);
    bench_refuse_same_files(args, o->json, &gate->words);
    if (gate->words.against && comm_processes() > 1)
        args_problem(args,
                     "--against starts processes itself: use --ranks without a launcher, or --baseline");
    return args_end(args);
}

typedef struct TrainArg {
    Setup *setup;
    const BenchTrain *options;
} TrainArg;

static Err measure_train(void *arg, const BenchGuard *guard, json_t **result) {
    const TrainArg *a = arg;
    ERR_RETURN(setup_finish(a->setup));
    return bench_train(&a->setup->config, a->options, guard, result);
}

static int bench_train_command(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    BenchTrain o;
    GateArgs gate;
    Args args;
    args_init(
        &args, s.arena,
        "isotron bench train --config FILE [run options]\n\n"
        "Measures a training step and the times of its parts, on one rank or several (--ranks, mpirun).\n\n"
        "example: isotron bench train --config bench/train/gpt2-124m.conf --no-alone",
        NULL);
    Err e = read_train(&s, &o, &gate, &args, argc, argv);
    int status;
    if (command_ready(&args, e, &status)) {
        TrainArg arg = {&s, &o};
        const Bench b = {"train", o.json, argv, o.alone ? "--no-alone" : NULL, measure_train, &arg};
        status = bench_run(&b, &gate.options);
    }
    args_free(&args);
    setup_free(&s);
    return status;
}

/* ---- isotron bench infer ---- */

static const Arg INFER_ROWS[] = {
    ARG_ROW(BenchInfer, requests, "requests", ARG_I64S, "none",
            "Numbers of simultaneous requests; each number is measured. none = 1 and 8, or no "
            "number if --clients is given."),
    ARG_ROW(
        BenchInfer, clients, "clients", ARG_I64S, "none",
        "Numbers of clients that send requests to the HTTP server, over connections to this machine; each "
        "number is measured."),
    ARG_ROW(
        BenchInfer, each, "requests-per-client", ARG_I64, "2",
        "Number of requests that each client sends in a round. A client sends a request when the previous "
        "answer has ended."),
    ARG_ROW(BenchInfer, prompt, "prompt-tokens", ARG_I64, "128", "Number of random tokens in each prompt."),
    ARG_ROW(BenchInfer, fresh, "new-tokens", ARG_I64, "64",
            "Number of tokens to generate for each request, at least 2."),
    ARG_ROW(BenchInfer, rounds, "rounds", ARG_I64, "9",
            "Number of measurements for each number of requests or clients."),
    ARG_ROW(BenchInfer, alone, "no-alone", ARG_OFF, "on",
            "Do not measure roofline limits. Without --requests, these are never measured."),
    ARG_ROW(BenchInfer, json, "json", ARG_TEXT, "none", "Write the results to this file."),
};

static void check_numbers(const I64List *numbers, const char *option, int most, Args *args) {
    for (int64_t i = 0; i < numbers->count; i++)
        if (numbers->at[i] < 1 || numbers->at[i] > most)
            args_problem(args, "--%s must contain only numbers from 1 to %d.", option, most);
}

static void check_infer(const BenchInfer *o, Args *args) {
    enum { MOST_ROUNDS = 1000, MOST_REQUESTS = 1 << 16, MOST_CLIENTS = 4096, MOST_EACH = 1000 };
    check_numbers(&o->requests, "requests", MOST_REQUESTS, args);
    check_numbers(&o->clients, "clients", MOST_CLIENTS, args);
    if (o->each < 1 || o->each > MOST_EACH)
        args_problem(args, "--requests-per-client must be from 1 to %d.", (int)MOST_EACH);
    if (o->prompt < 1) args_problem(args, "--prompt-tokens must be at least 1.");
    if (o->fresh < 2)
        args_problem(args, "--new-tokens must be at least 2, to measure the time between tokens.");
    if (o->rounds < 1 || o->rounds > MOST_ROUNDS)
        args_problem(args, "--rounds must be from 1 to %d.", (int)MOST_ROUNDS);
}

static void choose_numbers(BenchInfer *o, Arena *arena) {
    static const int64_t REQUESTS[] = {1, 8};
    if (!o->requests.count && !o->clients.count) {
        o->requests = (I64List){arena_alloc(arena, sizeof REQUESTS), sizeof REQUESTS / sizeof *REQUESTS};
        memcpy(o->requests.at, REQUESTS, sizeof REQUESTS);
    }
    o->alone = o->alone && o->requests.count;
}

static Err read_infer(Setup *s, BenchInfer *o, GateArgs *gate, Args *args, int argc, char **argv) {
    bench_use_gate(gate, args);
    args_use(args, ARG_TABLE(INFER_ROWS, o));
    args_use(args, config_table(&s->config, USE_BENCH_INFER));
    args_line(args, argc, argv);
    if (args->help) return ERR_OK;
    config_complete(&s->config, args);
    ERR_RETURN(world_size(&s->config));
    config_check(&s->config, CHECK_MODEL | CHECK_BENCH_INFER, args);
    check_infer(o, args);
    choose_numbers(o, args->arena);
    bench_check_gate(gate, args);
    bench_refuse_same_files(args, o->json, &gate->words);
    return args_end(args);
}

typedef struct InferArg {
    Setup *setup;
    const BenchInfer *options;
} InferArg;

static Err measure_infer(void *arg, const BenchGuard *guard, json_t **result) {
    const InferArg *a = arg;
    ERR_RETURN(setup_finish(a->setup));
    return bench_infer(&a->setup->config, a->options, guard, result);
}

static int bench_infer_command(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    BenchInfer o;
    GateArgs gate;
    Args args;
    int status;
    args_init(&args, s.arena,
              "isotron bench infer --config FILE [options of the model]\n\n"
              "Measures how fast a model with random parameters reads prompts and generates tokens, on one "
              "rank or several tensor-parallel ranks. With --clients, measures the HTTP server of isotron "
              "serve.\n\n"
              "example: isotron bench infer --config bench/train/gpt2-124m.conf --bf16",
              NULL);
    Err e = read_infer(&s, &o, &gate, &args, argc, argv);
    if (command_ready(&args, e, &status)) {
        InferArg arg = {&s, &o};
        const Bench b = {"infer", o.json, argv, o.alone ? "--no-alone" : NULL, measure_infer, &arg};
        status = bench_run(&b, &gate.options);
    }
    args_free(&args);
    setup_free(&s);
    return status;
}

/* ---- isotron bench scaling ---- */

typedef struct ScalingWords {
    BenchScaling bench;
    Config *point; /* [bench.points], the options for each run */
    bool weak;
    int64_t least;
} ScalingWords;

static const Arg SCALING_ROWS[] = {
    ARG_ROW(ScalingWords, weak, "weak", ARG_FLAG, "off",
            "Multiply the global batch size by the number of ranks (default). --global-batch-size sets the "
            "size for the smallest run."),
    ARG_ROW(ScalingWords, bench.strong, "strong", ARG_FLAG, "off", "Keep the global batch size constant."),
    ARG_ROW(ScalingWords, bench.axis, "over", ARG_ENUM, "data",
            "Kind of parallelism that uses the additional ranks.", .choices = SCALING_AXES),
    ARG_ROW(ScalingWords, least, "min-ranks", ARG_I64, "none",
            "Smallest number of ranks, which is the reference for the efficiency; none = the product of the "
            "tensor-, pipeline- and context-parallel sizes. The number of ranks is then doubled up to "
            "--ranks."),
    ARG_ROW(
        ScalingWords, bench.rounds, "rounds", ARG_I64, "7",
        "Number of runs for each number of ranks. A confidence interval needs 6 rounds for two numbers of "
        "ranks, and 7 for three."),
};

static void set_axis(Config *c, int axis, int64_t size) {
    int64_t *const sizes[] = {[SCALING_TENSOR] = &c->tensor_model_parallel_size,
                              [SCALING_CONTEXT] = &c->context_parallel_size,
                              [SCALING_PIPELINE] = &c->pipeline_model_parallel_size};
    if (axis != SCALING_DATA) *sizes[axis] = size;
}

static int64_t axis_size(const Config *c, int axis) {
    const int64_t sizes[] = {1, c->tensor_model_parallel_size, c->context_parallel_size,
                             c->pipeline_model_parallel_size};
    return sizes[axis];
}

static void choose_points(const Config *c, ScalingWords *w, Args *args) {
    enum { MOST_RANKS = 1024 }; /* limits the number of threads per process */
    BenchScaling *o = &w->bench;
    const int64_t problems = args->num_problems;
    config_check_ranges(c, args); /* otherwise, products could overflow */
    if (args->num_problems > problems) return;
    const int64_t each = config_model_ranks(c), least = i64_or(w->least, each), most = i64_or(c->ranks, 0);
    if (least < 1 || least % each) {
        args_problem(args, "--min-ranks must be a multiple of %lld, the product of the parallel sizes",
                     (long long)each);
    } else if (most <= least || most % least) {
        args_problem(args, "--ranks must be a multiple of --min-ranks (%lld) and larger", (long long)least);
    } else if (most > MOST_RANKS) {
        args_problem(args, "--ranks must be at most %d.", (int)MOST_RANKS);
    } else {
        for (int64_t n = least; n < most; n *= 2)
            if (most % n == 0) o->ranks[o->points++] = n;
        o->ranks[o->points++] = most;
        o->axis_size = axis_size(c, o->axis);
        o->threads = c->device == ON_CPU && c->cpu_threads == 0 ? "1" : NULL;
        o->batch = i64_or(c->global_batch_size, i64_or(c->micro_batch_size, 1) * (least / each));
    }
}

/* Checks each run's options against the rules. Stops after the first run with problems, because later runs would have
 * the same ones. Reports options without effect only for the largest run. */
static void check_points(const Config *c, ScalingWords *w, Args *args) {
    const BenchScaling *o = &w->bench;
    const int64_t problems = args->num_problems;
    w->point = arena_alloc(args->arena, (size_t)o->points * sizeof *w->point);
    for (int i = 0; i < o->points && args->num_problems == problems; i++) {
        Config *one = &w->point[i];
        const int64_t remarks = args->num_remarks;
        *one = *c;
        one->ranks = o->ranks[i];
        one->global_batch_size = scaling_batch(o, one->ranks);
        set_axis(one, o->axis, scaling_axis_size(o, one->ranks));
        config_check(one, CHECK_MODEL | CHECK_TRAIN, args);
        if (i < o->points - 1) args->num_remarks = remarks;
    }
}

/* Checks, before the first measurement, that each run can start. */
static Err check_runs(Setup *s, const ScalingWords *w) {
    const Config *c = &w->point[0];
    if (c->nccl_library) ERR_RETURN(comm_check_library(c->nccl_library, c->device == ON_CUDA));
    s->config = *c;
    ERR_RETURN(setup_finish(s));
    for (int i = 0; i < w->bench.points; i++) {
        config_finish(&w->point[i], s->arena, s->config.derived.vocab_size);
        const Err e = trainer_check(&w->point[i]);
        if (e.code) return err_user("%s: %.900s", amount(w->bench.ranks[i], "rank").s, e.msg);
    }
    return ERR_OK;
}

static Err read_scaling(Config *c, ScalingWords *w, BenchTrain *train, Args *args, int argc, char **argv) {
    enum { MOST_ROUNDS = 1000 };
    BenchScaling *o = &w->bench;
    args_use(args, ARG_TABLE(SCALING_ROWS, w));
    use_train(c, train, args);
    args_line(args, argc, argv);
    if (args->help) return ERR_OK;
    config_complete(c, args);
    o->json = train->json;
    check_train(c, train, args);
    if (o->rounds < 1 || o->rounds > MOST_ROUNDS)
        args_problem(args, "--rounds must be from 1 to %d.", (int)MOST_ROUNDS);
    bench_refuse_same_files(args, o->json, NULL);
    if (w->weak && o->strong)
        args_problem(args, "--weak and --strong are mutually exclusive: choose one.");
    else
        choose_points(c, w, args), check_points(c, w, args);
    return args_end(args);
}

static int bench_scaling_command(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    ScalingWords words = {.weak = false};
    BenchTrain train;
    Args args;
    int status;
    args_init(
        &args, s.arena,
        "isotron bench scaling --config FILE --ranks N [options of bench train]\n\n"
        "Measures a training step on 1, 2, 4, ... N ranks: weak scaling, or strong scaling with --strong.\n\n"
        "example: isotron bench scaling --config bench/train/gpt3-1.3b.conf --ranks 4 --device cuda --bf16",
        NULL);
    Err e = read_scaling(&s.config, &words, &train, &args, argc, argv);
    if (command_ready(&args, e, &status)) {
        e = check_runs(&s, &words);
        if (!e.code) e = bench_scaling(&words.bench, argv);
        status = e.code ? command_fail(e) : 0;
    }
    args_free(&args);
    setup_free(&s);
    return status;
}

/* ---- isotron bench ops ---- */

static const char *const DEVICES[] = {"cpu", "cuda", NULL};

static void check_threads(Args *args, int64_t threads) {
    enum { MOST_THREADS = 4096 };
    if (threads < 0 || threads > MOST_THREADS)
        args_problem(args, "--cpu-threads must be from 0 to %d.", (int)MOST_THREADS);
}

typedef struct OpsOptions {
    BenchOps ops;
    int device, tuning;
} OpsOptions;

static const Arg OPS_ROWS[] = {
    ARG_ROW(OpsOptions, device, "device", ARG_ENUM, "cpu",
            "Device that runs the ops; operands are larger on cuda.", .choices = DEVICES),
    ARG_ROW(OpsOptions, ops.filter, "filter", ARG_TEXT, "none",
            "Measure only ops whose names match this regular expression."),
    ARG_ROW(OpsOptions, ops.types, "dtype", ARG_TEXTS, "none",
            "Types to measure: fp64, fp32, bf16, fp16; "
            "none = all."),
    ARG_ROW(OpsOptions, ops.seconds, "seconds", ARG_F64, "0.07",
            "Seconds for each op, but at least 3 rounds; 0 = 21 rounds of at least 5 ms."),
    ARG_ROW(OpsOptions, ops.deterministic, "no-deterministic-mode", ARG_OFF, "on",
            "Allow sums in any order, as in pretrain."),
    ARG_ROW(OpsOptions, tuning, "gemm-tuning", ARG_ENUM, "same-bits",
            "How to choose algorithms for large 16-bit GEMMs on a GPU, as in pretrain; cuBLASLt chooses all "
            "other algorithms.",
            .choices = GemmTuningOption_spellings),
    ARG_ROW(OpsOptions, ops.threads, "cpu-threads", ARG_I64, "0",
            "Number of CPU threads; 0 = one for each core."),
    ARG_ROW(OpsOptions, ops.json, "json", ARG_TEXT, "none", "Write the results to this file."),
};

static Err measure_ops(void *arg, const BenchGuard *guard, json_t **result) {
    return bench_ops(arg, guard, result);
}

static int bench_ops_command(int argc, char **argv) {
    Arena *arena = arena_new();
    OpsOptions o;
    GateArgs gate;
    Args args;
    args_init(&args, arena,
              "isotron bench ops [options]\n\nMeasures each op separately, and compares its speed with its "
              "roofline limit.\n\n"
              "example: isotron bench ops --filter attention --dtype fp32",
              NULL);
    args_use(&args, ARG_TABLE(OPS_ROWS, &o));
    bench_use_gate(&gate, &args);
    args_line(&args, argc, argv);
    bench_check_gate(&gate, &args);
    bench_refuse_same_files(&args, o.ops.json, &gate.words);
    check_seconds(&args, o.ops.seconds);
    check_threads(&args, o.ops.threads);
    Err e = args_end(&args);
    int status;
    if (command_ready(&args, e, &status)) {
        o.ops.device = map_device((DeviceOption)o.device);
        o.ops.tuning = map_gemm_tuning((GemmTuningOption)o.tuning);
        const Bench b = {"ops", o.ops.json, argv, NULL, measure_ops, &o.ops};
        status = bench_run(&b, &gate.options);
    }
    args_free(&args);
    arena_free(arena);
    return status;
}

/* ---- isotron bench rates ---- */

typedef struct RatesOptions {
    BenchRates bench;
    int tuning;
} RatesOptions;

static const Arg RATES_ROWS[] = {
    ARG_ROW(RatesOptions, bench.filter, "filter", ARG_TEXT, "none",
            "Measure only ops whose names match this regular expression."),
    ARG_ROW(RatesOptions, bench.types, "dtype", ARG_TEXTS, "none",
            "Types to measure: bf16, fp32, fp16; none = bf16 and fp32."),
    ARG_ROW(RatesOptions, bench.seconds, "seconds", ARG_F64, "20",
            "Target for the total time of warm-ups and rounds; each call runs at least 3 rounds of 5 ms."),
    ARG_ROW(RatesOptions, bench.most, "most-seconds", ARG_F64, "140",
            "Time limit in seconds; later measurements are skipped. 0 = no limit."),
    ARG_ROW(RatesOptions, bench.deterministic, "no-deterministic-mode", ARG_OFF, "on",
            "Do not measure the ops of --deterministic-mode that take a different time."),
    ARG_ROW(RatesOptions, tuning, "gemm-tuning", ARG_ENUM, "off",
            "How to choose algorithms for large 16-bit GEMMs on a GPU, as in pretrain. Tuning takes 2 "
            "seconds per "
            "GEMM, so raise --most-seconds.",
            .choices = GemmTuningOption_spellings),
    ARG_ROW(RatesOptions, bench.threads, "cpu-threads", ARG_I64, "0",
            "Number of CPU threads; 0 = one for each core."),
    ARG_ROW(RatesOptions, bench.json, "json", ARG_TEXT, "none",
            "Write the rates to this file, for plan --rates."),
};

static Err measure_rates(void *o) { return bench_rates(o); }

static int bench_rates_command(int argc, char **argv) {
    Arena *arena = arena_new();
    Config config = {0};
    RatesOptions o;
    Args args;
    args_init(
        &args, arena,
        "isotron bench rates --json FILE [options]\n\n"
        "Measures a device's ops over a range of sizes and, with --ranks, collectives, for the prediction of "
        "step times (plan --rates).\n\n"
        "example: isotron bench rates --device cuda --dtype bf16 --json rates.json",
        NULL);
    args_use(&args, ARG_TABLE(RATES_ROWS, &o));
    args_use(&args, config_table(&config, USE_BENCH_RATES));
    args_line(&args, argc, argv);
    bench_refuse_same_files(&args, o.bench.json, NULL);
    check_seconds(&args, o.bench.seconds);
    if (!(o.bench.most >= 0 && o.bench.most <= COMMAND_MOST_S))
        args_problem(&args, "--most-seconds must be from 0 to %d.", (int)COMMAND_MOST_S);
    check_threads(&args, o.bench.threads);
    if (i64_or(config.ranks, 1) < 1 || i64_or(config.ranks, 1) > EXACT_RANKS)
        args_problem(&args, "--ranks must be from 1 to %d.", (int)EXACT_RANKS);
    const Err e = args_end(&args);
    o.bench.config = &config;
    o.bench.device = map_device(config.device);
    o.bench.tuning = map_gemm_tuning((GemmTuningOption)o.tuning);
    const int status = command_finish(&args, e, measure_rates, &o.bench);
    arena_free(arena);
    return status;
}

/* ---- isotron bench comm ---- */

typedef struct CommWords {
    BenchComm bench;
    const char *least, *most;
} CommWords;

static const Arg COMM_ROWS[] = {
    ARG_ROW(CommWords, bench.collectives, "collective", ARG_TEXTS, "none",
            "Collectives to measure: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, "
            "send_recv; none = all."),
    ARG_ROW(CommWords, bench.types, "dtype", ARG_TEXTS, "fp32",
            "Types to measure: fp64, fp32, bf16, fp16, "
            "int64, int32."),
    ARG_ROW(CommWords, least, "min-bytes", ARG_TEXT, "1K",
            "Smallest size to measure, with a suffix K, M or G (powers of 1024)."),
    ARG_ROW(CommWords, most, "max-bytes", ARG_TEXT, "64M", "Largest size to measure."),
    ARG_ROW(CommWords, bench.factor, "step-factor", ARG_I64, "4", "Ratio of one size to the previous size."),
    ARG_ROW(CommWords, bench.group, "group-size", ARG_I64, "0",
            "Number of ranks in a group. All groups communicate at the same time; 0 = one group of all "
            "ranks."),
    ARG_ROW(CommWords, bench.seconds, "seconds", ARG_F64, "0.1",
            "Seconds for each measurement, but at least 3 rounds."),
    ARG_ROW(CommWords, bench.json, "json", ARG_TEXT, "none", "Write the results to this file."),
};

/* Converts a size such as "64M" to bytes. Returns 0 if the text is not a size. */
static int64_t parse_bytes(const char *text) {
    static const char SUFFIXES[] = "KMG";
    char *end;
    const long long n = strtoll(text, &end, 10);
    const char *suffix = *end ? strchr(SUFFIXES, *end) : NULL;
    const int shift = suffix ? 10 * (int)(suffix - SUFFIXES + 1) : 0;
    if (n < 1 || n > 1 << 20 || (*end && (!suffix || end[1]))) return 0;
    return (int64_t)n << shift;
}

static Err read_comm(Config *c, CommWords *w, Args *args, int argc, char **argv) {
    BenchComm *o = &w->bench;
    args_use(args, ARG_TABLE(COMM_ROWS, w));
    args_use(args, config_table(c, USE_BENCH_COMM));
    args_line(args, argc, argv);
    if (args->help) return ERR_OK;
    o->config = c;
    o->least = parse_bytes(w->least), o->most = parse_bytes(w->most);
    if (*w->least && !o->least) /* the argument parser has already refused an empty value */
        args_problem(args, "--min-bytes expects a size such as 64, 4K or 1M, not '%s'", w->least);
    if (*w->most && !o->most)
        args_problem(args, "--max-bytes expects a size such as 64, 4K or 1M, not '%s'", w->most);
    if (o->most && o->least > o->most)
        args_problem(args, "--min-bytes is larger than --max-bytes: swap them");
    if (o->factor < 2) args_problem(args, "--step-factor must be at least 2.");
    if (!(o->seconds > 0 && o->seconds <= COMMAND_MOST_S))
        args_problem(args, "--seconds must be above 0 and at most %d.", (int)COMMAND_MOST_S);
    bench_refuse_same_files(args, o->json, NULL);
    const Err e = world_size(c);
    const int64_t ranks = i64_or(c->ranks, 1);
    if (e.code) args_problem(args, "%s", e.msg);
    if (ranks < 2 || ranks > EXACT_RANKS)
        args_problem(args, "bench comm needs at least 2 ranks: set --ranks N, from 2 to %d",
                     (int)EXACT_RANKS);
    else if (o->group < 0 || o->group == 1 || (o->group && ranks % o->group))
        args_problem(args,
                     "--group-size %lld does not divide %lld ranks into groups of several ranks: choose a "
                     "divisor",
                     (long long)o->group, (long long)ranks);
    return args_end(args);
}

static int bench_comm_command(int argc, char **argv) {
    Arena *arena = arena_new();
    Config config = {0};
    CommWords words;
    Args args;
    int status;
    args_init(&args, arena,
              "isotron bench comm --ranks N [options]\n\n"
              "Measures the bandwidth of collectives and checks each result, as nccl-tests does.\n\n"
              "example: isotron bench comm --ranks 4 --collective all_reduce --max-bytes 16M",
              NULL);
    Err e = read_comm(&config, &words, &args, argc, argv);
    if (command_ready(&args, e, &status)) {
        e = bench_comm(&words.bench);
        status = e.code ? command_fail(e) : 0;
    }
    args_free(&args);
    arena_free(arena);
    return status;
}

/* ---- selection ---- */

static const struct {
    const char *name, *what;
    bool on_ranks; /* whether the benchmark can run in several processes */
    int (*run)(int argc, char **argv);
} BENCHES[] = {
    {"train", "the time of a training step by op, compared with the peak of the device", true,
     bench_train_command},
    {"scaling", "a training step on 1, 2, 4, ... ranks, and the efficiency of each number", false,
     bench_scaling_command},
    {"infer", "the speed of reading prompts and generating tokens, compared with the memory bandwidth", true,
     bench_infer_command},
    {"ops", "each op separately, compared with its roofline limit", false, bench_ops_command},
    {"rates", "ops over a range of sizes, from which plan --rates predicts the time of a step", false,
     bench_rates_command},
    {"comm", "the bandwidth of collectives, and the correctness of each result", true, bench_comm_command},
};
enum { N_BENCHES = sizeof BENCHES / sizeof *BENCHES };

static void usage(FILE *to) {
    fprintf(to, "usage: isotron bench WHAT [options]      (isotron bench WHAT --help lists its options)\n\n"
                "example: isotron bench train --config bench/train/gpt2-124m.conf --no-alone\n\n");
    for (int i = 0; i < N_BENCHES; i++) fprintf(to, "  %-8s %s\n", BENCHES[i].name, BENCHES[i].what);
}

int command_bench(int argc, char **argv) {
    for (int i = 0; argc > 0 && i < N_BENCHES; i++)
        if (!strcmp(argv[0], BENCHES[i].name)) {
            if (!BENCHES[i].on_ranks && comm_processes() > 1)
                return command_fail(
                    err_user("bench %s runs as one process: start it without a launcher", BENCHES[i].name));
            return BENCHES[i].run(argc - 1, argv + 1);
        }
    const bool help = argc > 0 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"));
    for (int i = 0; help && argc == 2 && i < N_BENCHES; i++)
        if (!strcmp(argv[1], BENCHES[i].name)) return BENCHES[i].run(1, argv); /* for isotron help bench */
    usage(help ? stdout : stderr);
    return help ? 0 : ERR_USER;
}
