/* Measures each row of kernels/cases.def in every type, and compares the row's speed with the roofline limit
 * that applies. */
#pragma once

#include "base/err.h"
#include "bench/guard.h"
#include "config/args.h"
#include "tensor/device.h"

struct json_t; /* defined in jansson.h */

typedef struct BenchOps {
    DeviceKind device;
    int64_t threads;    /* number of CPU threads, or 0 for one per core */
    const char *filter; /* extended regular expression that selects cases by name; NULL for all cases */
    TextList types;     /* such as "fp64"; if empty, all types are measured */
    bool deterministic; /* if true, only deterministic ops are used */
    GemmTuning tuning;  /* how 16-bit GEMMs are tuned on a GPU */
    double seconds;     /* time limit per row, but at least 3 rounds run; 0 means 21 rounds */
    const char *json;   /* file for the results, written row by row, or NULL */
} BenchOps;

/* Prints the results. The guard may be NULL. If the result pointer is not NULL, *result receives the contents
 * of the --json file. */
Err bench_ops(const BenchOps *, const BenchGuard *, struct json_t **result);
