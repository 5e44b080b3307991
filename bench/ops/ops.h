/* Each row of kernels/cases.def alone, in every type, compared with the roof that limits it. */
#pragma once

#include "base/err.h"
#include "bench/guard.h"
#include "config/args.h"
#include "tensor/device.h"

struct json_t; /* jansson.h */

typedef struct BenchOps {
    DeviceKind device;
    int64_t threads;    /* threads of the CPU; 0: one for each core */
    const char *filter; /* extended regular expression of names; NULL: all */
    TextList types;     /* "fp64" ...; none: all */
    bool deterministic; /* deterministic ops only */
    GemmTuning tuning;  /* tuning of 16-bit GEMMs on a GPU */
    double seconds;     /* per row, but at least 3 rounds; 0: 21 rounds */
    const char *json;   /* file for the results, written row by row; NULL: none */
} BenchOps;

/* Prints the results. The guard may be NULL. *result (may be NULL): the content for --json. */
Err bench_ops(const BenchOps *, const BenchGuard *, struct json_t **result);
