/* The speed gate of `isotron bench`: its options, and the function that runs a benchmark with or without the gate. */
#pragma once

#include "bench/gate/gate.h"
#include "bench/guard.h"
#include "config/args.h"

typedef struct GateWords {
    const char *baseline, *against, *allow, *junit;
    int64_t pairs;
} GateWords;

enum { GATE_OPTIONS = 5 };

/* The arguments of the gate, and the table of options that set them. */
typedef struct GateArgs {
    GateWords words;
    unsigned char given[GATE_OPTIONS];
    GateOptions options;
} GateArgs;

void bench_use_gate(GateArgs *, Args *);
void bench_check_gate(GateArgs *, Args *);
/* Reports a problem for each output that is the same file as another output, an input, or a --config file. GateWords
 * may be NULL. */
void bench_refuse_same_files(Args *, const char *json, const GateWords *);

/* A benchmark and its arguments. */
typedef struct Bench {
    const char *name, *json;
    char **argv;
    /* an additional option for runs that are needed only for their times, or NULL if there is none */
    const char *more;
    Err (*measure)(void *arg, const BenchGuard *guard, json_t **result);
    void *arg;
} Bench;

/* Runs a benchmark, with the gate if it is requested. Returns the exit status. */
int bench_run(const Bench *, const GateOptions *);
