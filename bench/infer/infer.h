/* Measures the engine (infer/engine.h) with random parameters and prompts. Some numbers of requests arrive together;
 * each number is a row. The roof of generation is the rate at which a rank reads memory, because each pass reads all
 * weights, and the keys and values of all requests. */
#pragma once

#include "bench/guard.h"
#include "config/config.h"

struct json_t; /* jansson.h */

typedef struct BenchInfer {
    I64List requests;      /* that arrive together, in each row */
    int64_t prompt, fresh; /* tokens of a prompt, and tokens to generate */
    int64_t rounds;        /* rounds of each row; the results are medians */
    bool alone;            /* also measure the roofs */
    const char *json;      /* file for the results; NULL: none */
} BenchInfer;

/* Prints the results. Runs all ranks of this process; each process of a run must call it. The guard may be NULL and is
 * called on rank 0. In rank 0's process, *result receives the content of the --json file unless there is an error;
 * `result` may be NULL. */
Err bench_infer(const Config *, const BenchInfer *, const BenchGuard *, struct json_t **result);
