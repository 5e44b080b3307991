/* Measures the engine (infer/engine.h) with random parameters and prompts. Each row measures a different number of
 * requests that arrive together. The roof of generation is the rate at which a rank reads memory, because each pass
 * reads all weights, and the keys and values of all requests. */
#pragma once

#include "bench/guard.h"
#include "config/config.h"

struct json_t; /* defined in jansson.h */

typedef struct BenchInfer {
    I64List requests;      /* number of requests that arrive together, for each row */
    int64_t prompt, fresh; /* number of tokens in a prompt, and number of tokens to generate */
    int64_t rounds;        /* number of rounds per row; results are medians over the rounds */
    bool alone;            /* the roofs are also measured */
    const char *json;      /* file for the results, or NULL */
} BenchInfer;

/* Prints the results. Runs all ranks of this process. Each process of a run must call it. The guard may be NULL, and
 * is called on rank 0. In the process of rank 0, *result receives the content of the --json file unless there is an
 * error. The result pointer may be NULL. */
Err bench_infer(const Config *, const BenchInfer *, const BenchGuard *, struct json_t **result);
