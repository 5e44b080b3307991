/* This rank's part of a parameter's part as boxes: its shard, limited to the ranges of the item. */
#pragma once

#include "ckpt/ckpt.h"

/* Sets *boxes to [n]; release with free(). Every row of a box is contiguous in item->flat. A range that
 * begins or ends inside a row makes a box of that piece of the row. */
int64_t held_boxes(const Param *, int part, const CkptItem *, Box **boxes);
/* The index in item->flat of an element (row and column of the part) that a box holds. */
int64_t held_at(const Param *, int part, const CkptItem *, int64_t row, int64_t column);
/* How many rows of the box, starting at `row`, are contiguous in item->flat: at least one, and at most
 * VIEW_BYTES. */
int64_t held_run(const Param *, int part, const CkptItem *, const Box *, int64_t row);
/* Whether the item has elements of this parameter: one that is not trained has no optimizer state. */
bool held_is_stored(const Param *, const CkptItem *);
