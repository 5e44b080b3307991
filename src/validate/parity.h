/* Judges a run against a golden case (the case's format is in docs/formats.md): the steps of the case in the
 * lane and layout of the options, against what an independent implementation computed in float64.
 *
 * Bounds. Let u be the lane's unit roundoff and K the longest sum of a step (tokens, vocabulary, widths);
 * with 16-bit storage, whose sums are fp32, the number of stages that round. The case is also run up to
 * three times in fp64 with one rounding put into every weight (w * (1 + u*xi)) and sqrt(K) roundings into
 * every gradient of every step (g + u*sqrt(K)*rms(g)*xi where g is not exactly 0), xi standard normal. How
 * far a tensor then moves at most from the same run without noise, over u, is its measured amplification
 * kappa; a step of a curve takes the largest of the steps up to it, since one number may by chance not move
 * at all. The bound is 8 * u * max(kappa, sqrt(K)). The noise is as large as what it stands for, so nothing
 * need be linear. The oracle has no part in the bound: a wrong formula moves all runs alike and does not
 * widen it. */
#ifndef ISOTRON_VALIDATE_PARITY_H
#define ISOTRON_VALIDATE_PARITY_H

#include "base/err.h"
#include "config/config.h"
#include "validate/compare.h"
#include "validate/golden.h"

enum { PARITY_ROWS = 8 };

typedef struct ParityReport {
    Row row[PARITY_ROWS];
    int rows, draws;              /* draws: of the noise */
    double roundoff, longest_sum; /* u, K */
    bool pass, is_heard; /* heard: false in the MPI processes that are not rank 0 */
} ParityReport;

/* The options decide lane and layout (fp16 takes the loss scale 1024 unless they name one); the case's
 * run.conf has been read into them. */
Err parity_run(const Config *, const Derived *, const Golden *, ParityReport *);
/* A table for people, and the same as JSON. */
void parity_print(const ParityReport *, const char *case_name, const Config *, Str *out);
void parity_json(const ParityReport *, const char *case_name, const Config *, Str *out);

#endif
