/* One cell of a sweep: a case in a lane and a layout, judged by
 *
 *   fp64, fp32   the oracle, and the one-rank run in the lane, both within parity's bounds (parity.h)
 *   exact        the one-rank run, bit by bit: a hash of all losses and all final parameters; and the verdict
 *                of that run against the oracle
 *   lower        the verdict of precision.h for this layout, and that of the same options in fp64
 *
 * A number that is not finite fails in every lane. */
#ifndef ISOTRON_VALIDATE_CELL_H
#define ISOTRON_VALIDATE_CELL_H

#include "validate/case.h"
#include "validate/localise.h"
#include "validate/parity.h"

enum { LANES = LANE_EXACT + 1, CELL_LAYERS = 32 };

/* The runs on one rank that the cells of a case share. */
typedef struct Shared {
    Trace *alone[LANES];               /* [LANE_FP64] always, the others if a cell has the lane */
    Trace *noisy[LANES][PARITY_DRAWS]; /* of fp64 and fp32 */
    Report *exact;                     /* of the one-rank run in the exact lane */
    PrecisionShared precision[LANES];  /* of the lanes below fp32, if the case shares */
} Shared;

typedef struct CellResult {
    bool pass;
    ParityReport oracle;
    Report one_rank;                     /* against the one-rank run */
    double ratio;                        /* R of gradients (precision.h); NaN: a lane without */
    double layer_error[CELL_LAYERS + 1]; /* largest relative error of a gradient of the layer against one
                                            rank; the last is for what belongs to no layer */
    Finding finding;                     /* of a cell that fails in fp64 or exact */
} CellResult;

/* Judges `ours`, the cell's run by its options; the result's memory may be shared. */
Err cell_judge(const Case *, const Config *, const Derived *, const Trace *ours, const Shared *,
               CellResult *);
/* The row that is nearest to or furthest beyond its bound; NULL: there is none. */
const Row *cell_worst(const CellResult *);

/* What the options say about ranks and schedules, without what is default: "tp2 sp pp2 zero1"; "one rank". */
void cell_layout(const Config *, const Derived *, Str *out);

#endif
