/* One cell in a sweep: a case in a lane and a layout. The criterion depends on the lane:
 *
 *   `fp64`, `fp32`  pass if the results agree with the oracle and with the lane's one-rank run, within the bounds of
 *                   parity.h.
 *   `exact`         passes if the results are bitwise equal to the one-rank run's, according to a hash of all losses
 *                   and all final parameters, and if the one-rank run passes its verdict against the oracle.
 *   Lower lanes     pass if the layout passes the verdict of precision.h, and the same options pass in fp64.
 *
 * A non-finite number fails in every lane. */
#pragma once

#include "parity/case.h"
#include "parity/localise.h"
#include "parity/parity.h"

enum { LANES = LANE_EXACT + 1 };

/* The one-rank runs that all cells of a case share. */
typedef struct Shared {
    Trace *alone[LANES]; /* [LANE_FP64] is always set; other elements are set if a cell uses the lane */
    Trace *noisy[LANES][PARITY_DRAWS]; /* noisy runs for fp64 and fp32 */
    Report *exact;                     /* the report on the one-rank run in the exact lane */
    /* set for lanes below fp32 precision if precision_shares() is true */
    PrecisionShared precision[LANES];
} Shared;

typedef struct CellResult {
    bool pass;
    ParityReport oracle;
    Report one_rank; /* the errors relative to the one-rank run */
    /* the ratio R for the gradients (precision.h), or NaN if R is not computed in the lane */
    double ratio;
    Finding finding; /* set if the cell fails in lane fp64 or exact */
} CellResult;

/* Judges `ours`, a cell's run. `result` may be in shared memory. */
Err cell_judge(const Case *, const Config *, const Trace *ours, const Shared *, CellResult *);
/* Returns the row with the largest ratio of error to bound, or NULL if there are no rows. */
const Row *cell_worst(const CellResult *);
/* Returns the largest ratio of error to bound in the layer whose index in Row.layer is `layer`. */
double cell_layer(const CellResult *, int layer);
/* Returns the power of the verdict (precision.h): the smallest relative error of a layer's gradients that the
 * verdict would reject. Returns NaN if the power was not measured. */
double cell_power(const CellResult *);

/* Appends the non-default options for ranks and schedules, such as "tp2 sp pp2 zero1", or "one rank" if all are
 * defaults. */
void cell_layout(const Config *, Str *out);
