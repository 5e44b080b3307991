/* One cell of a sweep: a case in a lane and a layout, judged by
 *
 *   all lanes but exact  the oracle, within parity's bound (parity.h)
 *   fp64    the one-rank run: loss, gradient norm, clip factor and every gradient of step 1 within 1e-12,
 * every parameter after the last step within 1e-9 of the oracle exact   the one-rank run, bit by bit: a hash
 * of all losses and all final parameters others  R = |x - x64| / |x1 - x64| <= 1.5 of the gradients of step
 * 1: x in this layout, x1 on one rank, x64 on one rank in fp64. Sums over ranks are taken in fp32, so R of
 * about 1 is what a right layout gives.
 *
 * A number that is not finite fails in every lane. */
#ifndef ISOTRON_VALIDATE_CELL_H
#define ISOTRON_VALIDATE_CELL_H

#include "validate/case.h"
#include "validate/localise.h"
#include "validate/parity.h"

enum { LANES = LANE_EXACT + 1, CELL_ROWS = 8, CELL_LAYERS = 32 };

/* The runs on one rank that the cells of a case share. */
typedef struct Shared {
    Trace *alone[LANES]; /* [LANE_FP64] always, the others if a cell has the lane */
    Trace *noisy[LANES][PARITY_DRAWS];
} Shared;

typedef struct CellResult {
    bool pass;
    Err error;
    ParityReport oracle; /* rows: 0 in the exact lane */
    Row rank[CELL_ROWS]; /* against the one-rank run */
    int rank_rows;
    double ratio;                        /* R; NaN: a lane without */
    double layer_error[CELL_LAYERS + 1]; /* largest relative error of a gradient of the layer against one
                                            rank; the last is for what belongs to no layer */
    Finding finding;                     /* of a cell that fails in fp64 or exact */
} CellResult;

/* Judges `ours`, the cell's run; the result's memory may be shared. */
void cell_judge(const Case *, Lane, const Trace *ours, const Shared *, CellResult *);
/* The row that is nearest to or furthest beyond its bound; NULL: there is none. */
const Row *cell_worst(const CellResult *);
double row_excess(const Row *); /* error over bound; > 1 or NaN fails */

/* What the options say about ranks and schedules, without what is default: "tp2 sp pp2 zero1"; "one rank". */
void cell_layout(const Config *, const Derived *, Str *out);

#endif
