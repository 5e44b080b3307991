/* One cell of a sweep: a case in a lane and a layout. The criteria are
 *
 *   fp64, fp32   within the bounds of parity.h, from both the oracle and the lane's one-rank run
 *   exact        bitwise equal to the one-rank run (a hash of all losses and all final parameters), which
 *                must pass its verdict against the oracle
 *   lower        the verdict of precision.h for this layout, and that of the same options in fp64
 *
 * A non-finite number fails in every lane. */
#pragma once

#include "parity/case.h"
#include "parity/localise.h"
#include "parity/parity.h"

enum { LANES = LANE_EXACT + 1 };

/* The one-rank runs that all cells of a case share. */
typedef struct Shared {
    Trace *alone[LANES];               /* [LANE_FP64] is always set, other elements if a cell uses the lane */
    Trace *noisy[LANES][PARITY_DRAWS]; /* for fp64 and fp32 */
    Report *exact;                     /* the report of the one-rank run in the exact lane */
    PrecisionShared precision[LANES];  /* set for lanes with less precision than fp32, if precision_shares()
                                          is true */
} Shared;

typedef struct CellResult {
    bool pass;
    ParityReport oracle;
    Report one_rank; /* errors relative to the one-rank run */
    double ratio;    /* R of gradients (precision.h); NaN if it does not exist in this lane */
    Finding finding; /* set if a cell fails in fp64 or exact */
} CellResult;

/* Judges `ours`, the run of the cell. `result` may be in shared memory. */
Err cell_judge(const Case *, const Config *, const Trace *ours, const Shared *, CellResult *);
/* The row with the largest ratio of error to bound, or NULL if there are no rows. */
const Row *cell_worst(const CellResult *);
/* The largest ratio of error to bound in a layer, an index of Row.layer. */
double cell_layer(const CellResult *, int layer);
/* The smallest relative error of a layer's gradients that the verdict would reject (precision.h), or NaN if
 * it was not measured. */
double cell_power(const CellResult *);

/* The non-default options for ranks and schedules, such as "tp2 sp pp2 zero1"; "one rank" if there are none. */
void cell_layout(const Config *, Str *out);
