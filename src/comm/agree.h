/* Decisions that all ranks of a world must make alike. */
#ifndef ISOTRON_COMM_AGREE_H
#define ISOTRON_COMM_AGREE_H

#include "base/err.h"
#include "comm/comm.h"

/* Every rank calls it and gets the error of the lowest rank that has one, so that all take the same branch.
 * NULL: one rank. */
Err comm_agree(Comm *, Err);

#endif
