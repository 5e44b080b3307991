/* Judges a run against a golden case (format: docs/reference/formats.md). The steps of the case run in the lane and
 * layout of the options and are compared with the float64 results of an independent implementation.
 *
 * fp64 and fp32. Let u be the lane's unit roundoff; the longest sum of a step (over tokens, vocabulary or
 * widths) has K terms. The case is also run up to three times in fp64 with noise; xi is a standard normal
 * random number. Every weight becomes w * (1 + u*xi), as if it were rounded once. Every gradient of every
 * step becomes g + u*sqrt(K)*rms(g)*xi, as if it were rounded sqrt(K) times, unless g is exactly 0. The
 * amplification kappa of a tensor is its largest movement from the run without noise, divided by u. A step of
 * a curve uses the largest kappa of the steps so far, because a single number may happen not to move. The
 * bound is 8 * u * max(kappa, sqrt(K)). The noise is as large as the rounding it models, so no linearity is
 * assumed. The bound does not depend on the oracle: a wrong formula moves all runs equally and does not widen
 * the bound.
 *
 * Lower precision. The options, run in fp64 on one rank, must match the oracle as above. A wrong formula or
 * option therefore fails in any precision. The run in low precision is then judged against fp64
 * (precision.h). */
#pragma once

#include "base/err.h"
#include "config/config.h"
#include "parity/case.h"
#include "parity/compare.h"
#include "parity/golden.h"
#include "parity/precision.h"

/* The maximum number of draws of the noise. A tensor's error is often that of its most sensitive element (Adam's step
 * where the gradient is nearly 0), and a single draw may barely move that element. A normal number exceeds 8 times a
 * second one with a probability of 8 %, but 8 times the largest of three with only 0.2 %. More draws can only widen a
 * bound, so drawing stops once all tensors pass. */
enum { PARITY_DRAWS = 3 };

typedef struct ParityReport {
    Report rows;
    int draws;                    /* draws of the noise */
    double roundoff, longest_sum; /* u and K of the lane that sets the bounds */
    Precision precision;
    bool pass,
        /* is_weak: all results are within their bounds, but the bounds are too wide to detect errors
         * (report_is_weak) */
        is_weak;
    bool is_heard; /* whether this process has the rows; false in MPI processes other than rank 0 */
} ParityReport;

/* The options include the case's run.conf, and set the lane and the layout. fp16 uses the loss scale 64
 * unless they set one. */
Err parity_run(const Config *, const Golden *, ParityReport *);
/* Parts of parity_run, for callers that share runs. parity_report returns an empty report with u and K of a lane
 * (fp64, fp32). parity_noise returns the noise of a draw. parity_judge compares `ours` with `reference`, or with the
 * oracle if `reference` is NULL, and adds rows to the report. It needs the one-rank fp64 run `exact` and report->draws
 * noisy runs. */
ParityReport parity_report(const Case *, Lane);
Noise parity_noise(const ParityReport *, int draw);
Err parity_judge(const Case *, const Trace *ours, const Trace *exact, Trace *const *noisy,
                 const Trace *reference, ParityReport *);
/* Write the report as a table and as JSON. `threads` is the number of threads per rank, from Derived. */
void parity_print(const ParityReport *, const char *case_name, const Config *, int64_t threads, Str *out);
/* The first bytes of each kind of report that parity_run or a sweep (sweep.h) writes. */
#define PARITY_JSON_HEAD "{\n  \"schema\": 2,\n  \"provenance\": "
#define SWEEP_JSON_HEAD  "{\n  \"schema\": 1,\n  \"passed\": "
#define SWEEP_JUNIT_HEAD                                                                                     \
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"parity sweep\" "
#define SWEEP_HTML_HEAD                                                                                      \
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Parity sweep</title>"
/* Whether the file begins like one of these reports. */
bool parity_is_report(const char *path);
void parity_json(const ParityReport *, const char *case_name, const Config *, int64_t threads, Str *out);
