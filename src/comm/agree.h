/* Decisions that must be equal on all ranks in a world. */
#pragma once

#include "base/err.h"
#include "comm/comm.h"

/* Returns, on every rank, the lowest failing rank's error, so that all ranks take the same branch. Every rank must call
 * this function. A NULL Comm means that there is only one rank. */
Err comm_agree(Comm *, Err);

/* Compares n numbers across ranks. Returns the index of the first one that differs, or -1 if all are equal. Every rank
 * must call this function, and all get the same result. A NULL Comm means that there is only one rank. */
int comm_first_difference(Comm *, const int64_t *x, int n);
