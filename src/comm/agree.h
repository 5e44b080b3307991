/* Decisions that all ranks of a world must make alike. */
#pragma once

#include "base/err.h"
#include "comm/comm.h"

/* Every rank calls it and gets the error of the lowest rank that has one, so that all take the same branch.
 * NULL: one rank. */
Err comm_agree(Comm *, Err);

/* The first of n numbers that is not the same on all ranks; -1: none. Every rank calls it and gets the same result.
 * NULL: one rank. */
int comm_first_difference(Comm *, const int64_t *x, int n);
