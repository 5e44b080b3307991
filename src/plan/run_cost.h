/* Predicts how long a run takes and what it costs, from the step's time and the rate of failures.
 *
 * Failures of the run are independent, and the mean time between them is M = gpu_failure_hours / ranks. A checkpoint
 * takes d = save_seconds, a restart R = restart_seconds, and a checkpoint is written after every t seconds of training.
 * Daly's model (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, 2006, equation
 * 20) includes lost steps, and failures during saves and restarts. The fraction of the time that adds steps is
 *
 *     goodput = t / (M exp(R / M) (exp((t + d) / M) - 1))
 *
 * It is largest if 1 - t/M = exp(-(t + d) / M). For d << M, this is Young's interval, sqrt(2 d M). */
#pragma once

#include <stdint.h>

#include "base/str.h"

/* Amounts that are not known are NaN. */
typedef struct RunTerms {
    double tokens;
    double price; /* of a rank for an hour */
    double gpu_failure_hours;
    double save_seconds, restart_seconds;
    int64_t save_interval; /* steps; I64_UNSET: the best */
} RunTerms;

/* Intervals are in steps. Without gpu_failure_hours, `goodput` is 1. If an amount does not follow from the terms, it is
 * NaN. */
typedef struct RunCost {
    double failure_hours; /* mean time between failures of the run */
    int64_t best_interval, interval;
    double best_goodput, goodput;
    double days, cost, per_million_tokens;
} RunCost;

/* Parses an amount such as "15T", "300B", "10M" or "1e9". Returns NaN unless it is positive and finite. */
double tokens_parse(const char *);
RunCost run_cost(const RunTerms *, int64_t ranks, double step_ns, double tokens_per_second);
void run_cost_print(const RunCost *, const RunTerms *, int64_t ranks, double step_ns, Str *out);
