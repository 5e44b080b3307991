/* Decisions that must be equal on all ranks in a world. */
#pragma once

#include "base/err.h"
#include "comm/comm.h"

/* Returns, on every rank, the error from the lowest rank that has an error, so that all ranks take the same
 * branch. Every rank must call this function. A NULL Comm means that there is only one rank. */
Err comm_agree(Comm *, Err);

/* Returns the index of the first of n numbers that differs between ranks, or -1 if all ranks have equal numbers. Every
 * rank must call this function, and all ranks get the same result. A NULL Comm means that there is only one rank. */
int comm_first_difference(Comm *, const int64_t *x, int n);
