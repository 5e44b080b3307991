/* What a rank holds of a part, as boxes: its share of the parameter, within the ranges of the item. */
#ifndef ISOTRON_CKPT_SHARD_BOXES_H
#define ISOTRON_CKPT_SHARD_BOXES_H

#include "ckpt/ckpt.h"

/* *boxes [n], to release with free(). Every row of a box is one run of elements in item->flat. A range that
 * begins or ends inside a row makes a box of that piece of it. */
int64_t held_boxes(const Param *, int part, const CkptItem *, Box **boxes);
/* The number in item->flat of an element (row and column of the part) that a box holds. */
int64_t held_at(const Param *, int part, const CkptItem *, int64_t row, int64_t column);
/* How many rows of the box lie one behind the other in item->flat, from `row` of the box on: at least one,
 * and no more than VIEW_BYTES have. */
int64_t held_run(const Param *, int part, const CkptItem *, const Box *, int64_t row);
/* Whether the item has elements of this parameter: a buffer has no optimizer state. */
bool held_is_stored(const Param *, const CkptItem *);

#endif
