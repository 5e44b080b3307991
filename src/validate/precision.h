/* Judges a run in low precision (16-bit storage, FP8, the exact lane) against fp64, with stated power.
 *
 * The same case is run from several draws of its weights: each weight times 1 + d xi, which makes all
 * roundings others. For draw s let x be the run that is judged, y the run in fp64 on one rank, and z the run
 * in fp64 that stores what the lane stores (storage.h): z - y is what rounding is predicted to do. Runs in
 * fp64 follow the experts that x chose (choices.h). That y is right is not judged here but by the fp64
 * verdict of the same options against the oracle (parity.h). Over S draws, each tensor must meet
 *
 *   error    R = median |x - y| / median |z - y| <= 1.5 exp(6 v), v the standard error of log R
 *   element  max of min |x - y| over the draws, over rms (z - y) of its row, <= max(4, twice the same of z)
 *   scale    |mean a(x) - a(z)| <= 8 sqrt(2 / S) rms a(z), where a(x) = <x - y, y> / <y, y>: a factor that
 * all of it has in common; of updates also along the weights, as a decay would be
 *
 * The power is the smallest factor 1 + e of a tensor that one of these would have refused, whatever its sign;
 * of a layer, whose gradients a mistake scales together, that of its most sensitive tensor. It must reach a
 * gate. If anything fails, or the power does not suffice, draws are added, twice as many each time, up to
 * PRECISION_DRAWS; all of them count. */
#ifndef ISOTRON_VALIDATE_PRECISION_H
#define ISOTRON_VALIDATE_PRECISION_H

#include "validate/case.h"
#include "validate/compare.h"

enum { PRECISION_DRAWS = 64 };

typedef struct Precision {
    int draws;     /* that there were; 0: the verdict is another */
    double dither; /* d */
    double ratio;  /* R of the gradient nearest to or furthest beyond its bound */
} Precision;

/* The runs y and z of the first draws, which layouts of a case have in common; memory from trace_new. Not of
 * a case with experts, where they follow each run's choices. */
enum { PRECISION_SHARED = 8 };
typedef struct PrecisionShared {
    Trace *y[PRECISION_SHARED], *z[PRECISION_SHARED];
} PrecisionShared;
bool precision_shares(const Case *);
Err precision_share(const Case *, Lane, const PrecisionShared *);

/* Whether the options ask for a precision that is judged this way. */
bool precision_is_low(const Config *);
/* Runs the case in lane and layout of the options and adds the rows of the verdict to the report; on an MPI
 * process that is not rank 0 it adds none. shared NULL: nothing has run. */
Err precision_judge(const Case *, const Config *, const Derived *, const PrecisionShared *, Report *,
                    Precision *);

#endif
