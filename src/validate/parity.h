/* Judges a run against a golden case (the case's format is in docs/formats.md): the steps of the case in the
 * lane and layout of the options, against what an independent implementation computed in float64.
 *
 * fp64 and fp32. Let u be the lane's unit roundoff and K the longest sum of a step (tokens, vocabulary,
 * widths). The case is also run up to three times in fp64 with one rounding put into every weight
 * (w * (1 + u*xi)) and sqrt(K) roundings into every gradient of every step (g + u*sqrt(K)*rms(g)*xi where g
 * is not exactly 0), xi standard normal. How far a tensor then moves at most from the same run without noise,
 * over u, is its measured amplification kappa; a step of a curve takes the largest of the steps up to it,
 * since one number may by chance not move at all. The bound is 8 * u * max(kappa, sqrt(K)). The noise is as
 * large as what it stands for, so nothing need be linear. The oracle has no part in the bound: a wrong
 * formula moves all runs alike and does not widen it.
 *
 * Lower precision. The same options in fp64 on one rank must meet the oracle as above, so a wrong formula or
 * option fails whatever the rounding hides; then the run is judged against fp64 by precision.h. */
#ifndef ISOTRON_VALIDATE_PARITY_H
#define ISOTRON_VALIDATE_PARITY_H

#include "base/err.h"
#include "config/config.h"
#include "validate/case.h"
#include "validate/compare.h"
#include "validate/golden.h"
#include "validate/precision.h"

/* Draws: how often the noise is drawn at most. A tensor's error is often that of its one most sensitive
 * element (Adam's step where the gradient is nearly 0), and a single draw can spare that element: of two
 * normal numbers one exceeds 8 times the other in 8 % of all pairs, but 8 times the largest of three others
 * in 0.2 %. A bound only grows with another draw, so none is needed once all pass. */
enum { PARITY_DRAWS = 3 };

typedef struct ParityReport {
    Report rows;
    int draws;                    /* of the noise */
    double roundoff, longest_sum; /* u, K of the lane whose bounds these are */
    Precision precision;
    bool pass, is_heard; /* heard: false in the MPI processes that are not rank 0 */
} ParityReport;

/* The options decide lane and layout (fp16 takes the loss scale 64 unless they name one); the case's
 * run.conf has been read into them. */
Err parity_run(const Config *, const Derived *, const Golden *, ParityReport *);
/* The parts of it, for callers that share runs: u and K of a lane (fp64, fp32); what a noisy run is; judging
 * `ours` with report->draws noisy runs of the one-rank fp64 run `exact`: adds rows to the report, against the
 * oracle or, if `reference` is given, against that run. */
ParityReport parity_report(const Case *, Lane);
Noise parity_noise(const ParityReport *, int draw);
Err parity_judge(const Case *, const Trace *ours, const Trace *exact, Trace *const *noisy,
                 const Trace *reference, ParityReport *);
/* A table for people, and the same as JSON. */
void parity_print(const ParityReport *, const char *case_name, const Config *, Str *out);
void parity_json(const ParityReport *, const char *case_name, const Config *, Str *out);

#endif
