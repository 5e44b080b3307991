/* Decisions that must be equal on all ranks of a world. */
#pragma once

#include "base/err.h"
#include "comm/comm.h"

/* Every rank calls it and gets the error of the lowest rank that has one, so that all take the same branch.
 * NULL: one rank. */
Err comm_agree(Comm *, Err);

/* The index of the first of n numbers that differs between ranks; -1: none differs. Every rank calls it and gets the
 * same result. NULL: one rank. */
int comm_first_difference(Comm *, const int64_t *x, int n);
