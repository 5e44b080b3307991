/* Judges a run against a golden case. docs/reference/formats.md describes the format of golden cases. Runs the case's
 * steps in the lane and layout that the options set, and compares the results with an independent implementation's
 * float64 results.
 *
 * In fp64 and fp32, let u be the lane's unit roundoff, and K the number of terms in a step's longest sum (over
 * tokens, vocabulary or widths). The case is also run up to three times in fp64 with noise. Let xi be a
 * standard normal random number. Every weight w becomes w * (1 + u*xi), as if it were rounded once. Every
 * gradient g in every step becomes g + u*sqrt(K)*rms(g)*xi, as if it were rounded sqrt(K) times, unless g is
 * exactly 0. A tensor's amplification kappa is its largest change relative to the run without noise, divided by
 * u. Each step of a curve uses the largest kappa so far, because noise may leave a single number almost
 * unchanged by chance. The bound is 8 * u * max(kappa, sqrt(K)). Linearity is not assumed, because the noise is
 * as large as the rounding that it models. The bound does not depend on the oracle. A wrong formula changes all
 * runs equally and does not widen the bound.
 *
 * For lower precisions, the options must first pass the fp64 verdict on one rank, so that a wrong formula or option
 * fails in any precision. The low-precision run is then judged against fp64 (precision.h). */
#pragma once

#include "base/err.h"
#include "config/config.h"
#include "parity/case.h"
#include "parity/compare.h"
#include "parity/golden.h"
#include "parity/precision.h"

/* The maximum number of noise draws. A tensor's error is often the error of its most sensitive element, such as
 * an element with a nearly zero gradient in an Adam update. A single draw may barely change such an element.
 * The probability that a normal number exceeds 8 times another normal number is 8 %. The probability that it
 * exceeds 8 times the largest of three others is only 0.2 %. More draws can only widen a bound, so drawing
 * stops when all tensors pass. */
enum { PARITY_DRAWS = 3 };

typedef struct ParityReport {
    Report rows;
    int draws;                    /* number of noise draws */
    double roundoff, longest_sum; /* u and K for the lane that determines the bounds */
    Precision precision;
    bool pass,
        /* is_weak: whether all results are within their bounds, but the bounds are too wide to detect errors
         * (report_is_weak) */
        is_weak;
    bool is_heard; /* whether this process has the rows; false in MPI processes other than rank 0 */
} ParityReport;

/* Runs and judges a case. The options include the case's run.conf, and set the lane and the layout. fp16 uses the loss
 * scale 64 unless the options set another. */
Err parity_run(const Config *, const Golden *, ParityReport *);
/* The steps of parity_run, for callers that share runs. parity_report returns an empty report with u and K for
 * a lane (fp64, fp32). parity_noise returns the noise for a draw. parity_judge compares `ours` with
 * `reference`, or with the oracle if `reference` is NULL, and adds rows to the report. parity_judge needs the
 * one-rank fp64 run `exact`, and as many noisy runs as report->draws states. */
ParityReport parity_report(const Case *, Lane);
Noise parity_noise(const ParityReport *, int draw);
Err parity_judge(const Case *, const Trace *ours, const Trace *exact, Trace *const *noisy,
                 const Trace *reference, ParityReport *);
/* parity_print writes the report as a table, and parity_json as JSON. `threads` is the number of threads per
 * rank in Derived. */
void parity_print(const ParityReport *, const char *case_name, const Config *, int64_t threads, Str *out);
/* The first bytes of the reports that parity_run and a sweep (sweep.h) write. */
#define PARITY_JSON_HEAD "{\n  \"schema\": 2,\n  \"provenance\": "
#define SWEEP_JSON_HEAD  "{\n  \"schema\": 1,\n  \"passed\": "
#define SWEEP_JUNIT_HEAD                                                                                     \
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"parity sweep\" "
#define SWEEP_HTML_HEAD                                                                                      \
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Parity sweep</title>"
/* Returns whether the file begins like a report of parity_run or of a sweep. */
bool parity_is_report(const char *path);
void parity_json(const ParityReport *, const char *case_name, const Config *, int64_t threads, Str *out);
