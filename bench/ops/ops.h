/* Measures each row of kernels/cases.def separately, in every type, and compares it with the roof that limits it. */
#pragma once

#include "base/err.h"
#include "bench/guard.h"
#include "config/args.h"
#include "tensor/device.h"

struct json_t; /* jansson.h */

typedef struct BenchOps {
    DeviceKind device;
    int64_t threads;    /* number of CPU threads; 0: one per core */
    const char *filter; /* extended regular expression that selects names; NULL: all */
    TextList types;     /* "fp64" ...; none: all */
    bool deterministic; /* deterministic ops only */
    GemmTuning tuning;  /* tuning of 16-bit GEMMs on a GPU */
    double seconds;     /* per row, with at least 3 rounds; 0: 21 rounds */
    const char *json;   /* file for the results, written row by row; NULL: none */
} BenchOps;

/* Prints the results. The guard may be NULL. *result receives the content of the --json file; `result` may be NULL. */
Err bench_ops(const BenchOps *, const BenchGuard *, struct json_t **result);
