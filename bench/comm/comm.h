/* Measures the bandwidth of collectives and prints the columns of nccl-tests (see its doc/PERFORMANCE.md):
 * algbw is size / time; busbw is algbw times the number of bytes that the busiest link carries per byte of
 * `size`. `size` is the size of a rank's larger buffer. Each result is compared with exact expected
 * values. */
#pragma once

#include "base/err.h"
#include "config/config.h"
#include "tensor/device.h"

struct json_t; /* jansson.h */

typedef struct BenchComm {
    const Config *config;        /* ranks, device, transport */
    TextList collectives, types; /* none: all */
    int64_t least, most, factor; /* sizes in bytes: least, least * factor, ... up to most */
    int64_t group;               /* ranks per group; all groups run concurrently. 0: one group */
    double seconds;              /* time limit per row; at least 3 rounds run */
    const char *json;            /* file for the results; NULL: none */
} BenchComm;

/* Prints the results. *wrong: number of wrong elements, summed over ranks. */
Err bench_comm(const BenchComm *, int64_t *wrong);
