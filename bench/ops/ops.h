/* Each row of kernels/cases.def by itself, in every type, against the roof that limits it. */
#ifndef ISOTRON_BENCH_OPS_H
#define ISOTRON_BENCH_OPS_H

#include "base/err.h"
#include "config/args.h"
#include "tensor/device.h"

struct json_t; /* jansson.h */

typedef struct BenchOps {
    DeviceKind device;
    int64_t threads;    /* of the CPU; 0: one for each core */
    const char *filter; /* extended regular expression of names; NULL: all */
    TextList types;     /* "fp64" ...; none: all */
    bool deterministic; /* the same bits in every run */
    GemmTuning tuning;  /* of 16-bit GEMMs on a GPU */
    double seconds;     /* to measure a row for, but 3 rounds are taken; 0: 21 rounds */
    const char *json;   /* file that gets the results, row by row; NULL: none */
} BenchOps;

/* Prints the results. *result (may be NULL): what --json gets. */
Err bench_ops(const BenchOps *, struct json_t **result);

#endif
