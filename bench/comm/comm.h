/* Measures the bandwidth of collectives and prints the columns of nccl-tests (see its doc/PERFORMANCE.md). `size` is
 * the size of a rank's larger buffer, and algbw is size / time. busbw is algbw times the number of bytes that the
 * busiest link carries per byte of `size`. Each result is compared with exact expected values. */
#pragma once

#include "base/err.h"
#include "config/config.h"
#include "tensor/device.h"

struct json_t; /* defined in jansson.h */

typedef struct BenchComm {
    const Config *config;        /* ranks, device and transport */
    TextList collectives, types; /* if empty, all are measured */
    int64_t least, most, factor; /* sizes in bytes: least, least * factor, ... up to most */
    /* number of ranks per group, or 0 for one group of all ranks; all groups run concurrently */
    int64_t group;
    double seconds;   /* time limit per row, but at least 3 rounds run */
    const char *json; /* file for the results, or NULL */
} BenchComm;

/* Prints the results and writes the file. Returns an error if an element is wrong. */
Err bench_comm(const BenchComm *);
/* The same without the file. The caller releases *result, which is NULL on all ranks except rank 0. */
Err bench_comm_measure(const BenchComm *, struct json_t **result);
