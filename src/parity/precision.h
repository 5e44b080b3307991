/* Judges a low-precision run (16-bit storage, FP8, the exact lane) against fp64, and states the test's power.
 *
 * The case is run with several random draws. In each draw, every weight is multiplied by 1 + d xi, so that all values
 * round differently. For draw s, let x be the run under test, y the fp64 run on one rank, and z an fp64 run that rounds
 * the values that the lane stores (storage.h). Then z - y is the predicted rounding error. The fp64 runs use the
 * experts that x selected (choices.h). The correctness of y is judged separately, by the fp64 verdict against the
 * oracle (parity.h). Over S draws, each tensor must satisfy the following conditions:
 *
 *   `error`    R = median |x - y| / median |z - y| <= 1.5 exp(6 v), where v is the standard error of log R.
 *   `element`  e(x) <= max(4, 2 e(z)), where e(x) is the largest element of min |x - y| over the draws, in units
 *              of the rms of z - y in the element's row.
 *   `scale`    |mean a(x) - a(z)| <= 8 sqrt(2 / S) rms a(z), where a(x) = <x - y, y> / <y, y>. This condition
 *              detects a common factor. For updates, the weights are a second direction a, which detects a wrong
 *              weight decay.
 *
 * The power is the smallest |e| for which one of these tests rejects a tensor scaled by 1 + e. A fault is
 * assumed to scale all gradients or updates of a module together, so the power of a module is the power of its
 * most sensitive tensor. The modules are the layers and, outside layers, each linear layer, norm and embedding
 * table. The power must not exceed a threshold, which is called the gate. If a test fails or the power is too
 * low, the number of draws doubles, up to PRECISION_DRAWS. All draws count. A wrong learning rate, storage type
 * or expert selection fails without additional draws. */
#pragma once

#include "parity/case.h"
#include "parity/compare.h"

enum { PRECISION_DRAWS = 64 };

/* The name of the report's row for the power of the tests on gradients. */
#define PRECISION_POWER "power: gradient"

typedef struct Precision {
    int draws;     /* number of draws, or 0 if the run was not judged in this process */
    double dither; /* d */
    double ratio;  /* R for the gradient with the largest ratio of R to its bound */
} Precision;

/* The runs y and z for the first draws. All layouts of a case share these runs. The runs are stored in memory from
 * trace_new. Layouts of a model with experts cannot share y and z, because they follow the routing of each
 * x. */
enum { PRECISION_SHARED = 8 };
typedef struct PrecisionShared {
    Trace *y[PRECISION_SHARED], *z[PRECISION_SHARED];
} PrecisionShared;
bool precision_shares(const Case *);
Err precision_share(const Case *, Lane, const PrecisionShared *);

/* Returns whether precision_judge judges runs with the given options. */
bool precision_is_low(const Config *);
/* Runs the case in the lane and layout that the options set. Adds the verdict's rows to the report, except in
 * MPI processes other than rank 0. If `shared` is NULL, also runs y and z. */
Err precision_judge(const Case *, const Config *, const PrecisionShared *, Report *, Precision *);
