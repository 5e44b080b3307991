/* Measures generation with random parameters and prompts: the engine (infer/engine.h), with various numbers
 * of requests that arrive together, and the HTTP server (server/http.h), with various numbers of clients that
 * wait for their answers. The roofline limit of generation is the rate at which a rank reads memory, because
 * each pass reads all weights, and the keys and values of all requests. */
#pragma once

#include "bench/guard.h"
#include "config/config.h"

struct json_t; /* defined in jansson.h */

typedef struct BenchInfer {
    /* one measurement for each number of requests that arrive together; may be empty */
    I64List requests;
    I64List clients;       /* one measurement for each number of clients of the server; may be empty */
    int64_t each;          /* number of requests that each client sends in a round */
    int64_t prompt, fresh; /* number of tokens in a prompt, and number of tokens to generate */
    int64_t rounds;        /* number of rounds per row; results are medians over the rounds */
    bool alone;            /* if true, also measures the roofline limits for the rows of `requests` */
    const char *json;      /* file for the results, or NULL */
} BenchInfer;

/* Prints the results. Runs all ranks of this process. Every process of a run must call this function. The
 * guard is called on rank 0, and may be NULL. In rank 0's process, *result receives the contents of the
 * --json file unless there is an error. The result pointer may be NULL. */
Err bench_infer(const Config *, const BenchInfer *, const BenchGuard *, struct json_t **result);
