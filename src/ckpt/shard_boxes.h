/* Computes which boxes of a parameter part this rank stores: the rank's shard, limited to the item's ranges. */
#pragma once

#include "ckpt/ckpt.h"

/* Sets *boxes to an array of these boxes, which the caller must free. Returns the number of boxes. Every row in a box
 * is contiguous in memory. If a range starts or ends inside a row, that piece of the row is a separate box. */
int64_t held_boxes(const Param *, int part, const CkptItem *, Box **boxes);
/* Returns the address of the part's element [row, column], which must be in one of the boxes. */
char *held_at(const Param *, int part, const CkptItem *, int64_t row, int64_t column);
/* Returns how many of the box's rows from `row` on are contiguous in memory. The result is at least 1, and otherwise at
 * most the number of rows that fit into VIEW_BYTES bytes. */
int64_t held_run(const Param *, int part, const CkptItem *, const Box *, int64_t row);
/* Returns whether the item contains elements of this parameter. A parameter that is not trained has no optimizer
 * state. */
bool held_is_stored(const Param *, const CkptItem *);
