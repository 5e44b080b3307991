/* What the ranks of a world decide together. */
#ifndef ISOTRON_COMM_AGREE_H
#define ISOTRON_COMM_AGREE_H

#include "base/err.h"
#include "comm/comm.h"

/* Every rank calls it and gets the error of the lowest rank that has one, so that all go the same way. NULL:
 * one rank. */
Err comm_agree(Comm *, Err);

#endif
