/* Judges a run against a golden case (the case's format is in docs/formats.md): the steps of the case in the
 * lane and layout of the options, against what an independent implementation computed in float64.
 *
 * Bounds. Let u be the lane's unit roundoff and K the longest sum of a step (tokens, vocabulary, widths);
 * with 16-bit storage, whose sums are fp32, the number of stages that round. The case is also run in fp64
 * with one rounding put into every weight (w * (1 + d*xi)) and sqrt(K) roundings into every gradient of every
 * step (g + d*sqrt(K)*rms(g)*xi where g is not exactly 0), xi standard normal: how far each tensor then moves
 * from the oracle, over d, is its measured amplification kappa. The bound is 8
 * * u * max(kappa, sqrt(K)). d is u, but at least 2^-33, so that the movement stands above fp64's own
 * rounding. */
#ifndef ISOTRON_VALIDATE_PARITY_H
#define ISOTRON_VALIDATE_PARITY_H

#include "base/err.h"
#include "config/config.h"
#include "validate/compare.h"
#include "validate/golden.h"

enum { PARITY_ROWS = 8 };

typedef struct ParityReport {
    Row row[PARITY_ROWS];
    int rows;
    double roundoff, longest_sum, injected; /* u, K, d */
    bool pass;
} ParityReport;

/* The options decide lane and layout (fp16 takes the loss scale 1024 unless they name one); the case's
 * run.conf has been read into them. */
Err parity_run(const Config *, const Derived *, const Golden *, ParityReport *);
/* A table for people, and the same as JSON. */
void parity_print(const ParityReport *, const char *case_name, const Config *, Str *out);
void parity_json(const ParityReport *, const char *case_name, const Config *, Str *out);

#endif
