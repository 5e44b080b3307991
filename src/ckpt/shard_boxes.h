/* Computes the boxes of a parameter's part that this rank stores. They are the rank's shard, limited to the ranges of
 * the item. */
#pragma once

#include "ckpt/ckpt.h"

/* Sets *boxes to an array of the boxes, which the caller must free. Returns the number of boxes. Every row of a box
 * is contiguous in item->flat. If a range begins or ends inside a row, that piece of the row is a separate box. */
int64_t held_boxes(const Param *, int part, const CkptItem *, Box **boxes);
/* Returns the index in item->flat of the part's element [row, column], which must be in one of the boxes. */
int64_t held_at(const Param *, int part, const CkptItem *, int64_t row, int64_t column);
/* Returns the number of rows of the box, starting at `row`, that are contiguous in item->flat. These rows have at
 * most VIEW_BYTES bytes, unless a single row has more. */
int64_t held_run(const Param *, int part, const CkptItem *, const Box *, int64_t row);
/* Returns whether the item has elements of this parameter. A parameter that is not trained has no optimizer state. */
bool held_is_stored(const Param *, const CkptItem *);
