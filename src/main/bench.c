#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bench/ops/ops.h"
#include "bench/train/train.h"
#include "main/command.h"
#include "models/option_map.h"

#define ROW(type_, field, name, kind, otherwise, text)                                                       \
    { .names = name, .type = kind, .offset = offsetof(type_, field), .fallback = otherwise, .help = text }

/* ---- isotron bench train ---- */

static const Arg TRAIN_ROWS[] = {
    ROW(BenchTrain, steps, "steps", ARG_I64, "20", "Steps to measure."),
    ROW(BenchTrain, warmup, "warmup", ARG_I64, "3", "Steps before that: first touch of memory, CUDA graphs."),
    ROW(BenchTrain, seconds, "seconds", ARG_F64, "0",
        "On a GPU, stop measuring after this time, but not before 3 steps; 0 = no limit."),
    ROW(BenchTrain, profiled, "profiled", ARG_I64, "5", "Further steps on a GPU in which every op is timed."),
    ROW(BenchTrain, alone, "no-alone", ARG_OFF, "on", "Do not measure GEMMs alone, nor the roofs."),
    ROW(BenchTrain, peak_tflops, "peak-tflops", ARG_F64, "none",
        "Peak TFLOP/s for MFU; none = that of a known device, else no MFU."),
    ROW(BenchTrain, json, "json", ARG_TEXT, "none", "File that gets the results."),
};

enum { MOST_STEPS = 1000000 }; /* each has a row in memory */

static Err read_train(Setup *s, BenchTrain *o, Args *args, int argc, char **argv) {
    args_use(args,
             (ArgTable){.rows = TRAIN_ROWS, .count = sizeof TRAIN_ROWS / sizeof *TRAIN_ROWS, .target = o});
    args_use(args, config_table(&s->config, CONFIG_ALL_GROUPS));
    args_line(args, argc, argv);
    config_check(&s->config, CHECK_MODEL | CHECK_TRAIN, args);
    const bool records = s->config.cuda_graph_impl == CUDA_GRAPH_LOCAL;
    if (o->steps < 1 || o->steps > MOST_STEPS) args_problem(args, "--steps: from 1 to %d", (int)MOST_STEPS);
    if (o->profiled < 1 || o->profiled > MOST_STEPS)
        args_problem(args, "--profiled: from 1 to %d", (int)MOST_STEPS);
    if (o->seconds < 0) args_problem(args, "--seconds: at least 0");
    if (o->warmup < 1 + records)
        args_problem(args, "--warmup: at least 1, the first step touches the memory, and 2 with "
                           "--cuda-graph-impl local, which records the second");
    if (config_ranks(&s->config) > 1) args_problem(args, "bench train measures one rank: leave out --ranks");
    return args_end(args);
}

static int bench_train_command(int argc, char **argv) {
    Setup s = {.arena = arena_new()};
    BenchTrain o;
    Args args;
    args_init(&args, s.arena, "isotron bench train --config FILE [run options]", NULL);
    Err e = read_train(&s, &o, &args, argc, argv);
    int status;
    if (command_ready(&args, e, &status)) {
        e = setup_finish(&s);
        if (!e.code) e = bench_train(&s.config, &s.derived, &o);
        status = e.code ? command_fail(e) : 0;
    }
    args_free(&args);
    setup_free(&s);
    return status;
}

/* ---- isotron bench ops ---- */

static const char *const DEVICES[] = {"cpu", "cuda", NULL};

enum { MOST_THREADS = 4096 }; /* as in pretrain */

typedef struct OpsOptions {
    BenchOps ops;
    int device, tuning;
} OpsOptions;

static const Arg OPS_ROWS[] = {
    {.names = "device",
     .type = ARG_ENUM,
     .offset = offsetof(OpsOptions, device),
     .fallback = "cpu",
     .choices = DEVICES,
     .help = "Where the ops run: operands are larger for cuda."},
    ROW(OpsOptions, ops.filter, "filter", ARG_TEXT, "none", "Only names that match this regular expression."),
    ROW(OpsOptions, ops.types, "dtype", ARG_TEXTS, "none", "fp64, fp32, bf16, fp16; none = all."),
    ROW(OpsOptions, ops.seconds, "seconds", ARG_F64, "0.07",
        "Time to measure each op, at least 3 rounds; 0 = 21 rounds of at least 5 ms."),
    ROW(OpsOptions, ops.deterministic, "no-deterministic-mode", ARG_OFF, "on",
        "Sums may be taken in any order, as in pretrain."),
    {.names = "gemm-tuning",
     .type = ARG_ENUM,
     .offset = offsetof(OpsOptions, tuning),
     .fallback = "same-bits",
     .choices = GemmTuningOption_spellings,
     .help = "How algorithms of a GPU's large 16-bit GEMMs are chosen, as in pretrain; cuBLASLt chooses the "
             "others."},
    ROW(OpsOptions, ops.threads, "cpu-threads", ARG_I64, "0", "Threads of the CPU; 0 = one for each core."),
    ROW(OpsOptions, ops.json, "json", ARG_TEXT, "none", "File that gets the results."),
};

static int bench_ops_command(int argc, char **argv) {
    Arena *arena = arena_new();
    OpsOptions o;
    Args args;
    args_init(&args, arena, "isotron bench ops [options]", NULL);
    args_use(&args, (ArgTable){.rows = OPS_ROWS, .count = sizeof OPS_ROWS / sizeof *OPS_ROWS, .target = &o});
    args_line(&args, argc, argv);
    if (o.ops.seconds < 0) args_problem(&args, "--seconds: at least 0");
    if (o.ops.threads < 0 || o.ops.threads > MOST_THREADS)
        args_problem(&args, "--cpu-threads: from 0 to %d", (int)MOST_THREADS);
    Err e = args_end(&args);
    int status;
    if (command_ready(&args, e, &status)) {
        o.ops.device = map_device((DeviceOption)o.device);
        o.ops.tuning = map_gemm_tuning((GemmTuningOption)o.tuning);
        e = bench_ops(&o.ops);
        status = e.code ? command_fail(e) : 0;
    }
    args_free(&args);
    arena_free(arena);
    return status;
}

/* ---- which ---- */

static const struct {
    const char *name, *what;
    int (*run)(int argc, char **argv);
} BENCHES[] = {
    {"train", "the time of a training step by op, compared with the peak of the device", bench_train_command},
    {"ops", "each op by itself, compared with the roof that limits it", bench_ops_command},
};
enum { N_BENCHES = sizeof BENCHES / sizeof *BENCHES };

static void usage(FILE *to) {
    fprintf(to, "usage: isotron bench WHAT [options]      (isotron bench WHAT --help lists its options)\n\n");
    for (int i = 0; i < N_BENCHES; i++) fprintf(to, "  %-6s %s\n", BENCHES[i].name, BENCHES[i].what);
}

int command_bench(int argc, char **argv) {
    for (int i = 0; argc > 0 && i < N_BENCHES; i++)
        if (!strcmp(argv[0], BENCHES[i].name)) return BENCHES[i].run(argc - 1, argv + 1);
    const bool help = argc > 0 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"));
    usage(help ? stdout : stderr);
    return help ? 0 : ERR_USER;
}
