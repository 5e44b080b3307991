/* The code that is shared by two measurements: requests that arrive together (infer.c), and clients of the
 * server (clients.c). */
#pragma once

#include <jansson.h>

#include "bench/head.h"
#include "bench/infer/infer.h"
#include "infer/engine.h"
#include "run/model_run.h"

enum { SESSION_PAGE = 64 };

typedef struct Session {
    const BenchInfer *options;
    const Config *config;
    Comm *comm; /* NULL if there is only one rank */
    ModelRun run;
    char device[200], transport[BENCH_TRANSPORT];
    int threads;
    bool prints;
    json_t *clients; /* the rows of --clients, on rank 0 */
    /* Members that only infer.c uses: */
    struct Row *rows;
    double read, gemm; /* roofline limits in GB/s and GFLOP/s, or 0 if not measured */
    double token_bytes, expert_bytes, other_bytes, multiplied;
} Session;

/* Returns the sampling options. Sampling is greedy unless --temperature is given. */
Sampling session_sampling(const Session *);
/* Returns limits with enough pages and tokens for `requests` concurrent requests. */
EngineLimits session_limits(const Session *, int64_t requests);
/* Writes prompt `number`. Different numbers result in different prompts. */
void session_prompt(const Session *, int64_t number, int32_t *prompt);
/* Returns {"name": "WHAT/LOADxPROMPT+NEW", "type", "of": n}. */
json_t *session_row(const Session *, const char *what, const char *load, const char *of, int64_t n);
/* Adds the n times as "samples_us", and their median as "us". */
void session_add_times(json_t *row, const double *ns, int64_t n);
/* Returns the 99 % quantile of n sorted numbers. */
double session_slowest(const double *sorted, int64_t n);
