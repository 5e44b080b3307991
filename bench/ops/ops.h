/* Measures each row of kernels/cases.def in every type, and compares it with the roof that limits it. */
#pragma once

#include "base/err.h"
#include "bench/guard.h"
#include "config/args.h"
#include "tensor/device.h"

struct json_t; /* jansson.h */

typedef struct BenchOps {
    DeviceKind device;
    int64_t threads;    /* number of CPU threads; 0: one per core */
    const char *filter; /* extended regular expression that selects cases by name; NULL: all */
    TextList types;     /* "fp64" ...; none: all */
    bool deterministic; /* use only deterministic ops */
    GemmTuning tuning;  /* tuning of 16-bit GEMMs on a GPU */
    double seconds;     /* time limit per row; at least 3 rounds run. 0: 21 rounds */
    const char *json;   /* file for the results, written row by row; NULL: none */
} BenchOps;

/* Prints the results. The guard may be NULL. If `result` is not NULL, *result receives the content of the
 * --json file. */
Err bench_ops(const BenchOps *, const BenchGuard *, struct json_t **result);
