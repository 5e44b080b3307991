/* Gathers values that ranks share out, for sync.h: each rank rounds its part from the masters, and all have
 * the whole before an op reads it. Below stage 3 the whole has its place in the registry; at stage 3 a bucket
 * is gathered into a slot when it is used and dropped when the slot is needed: the layer in use and, with
 * overlap_values, the one that comes next. */
#ifndef ISOTRON_PARAM_GATHER_H
#define ISOTRON_PARAM_GATHER_H

#include "comm/comm.h"
#include "param/param.h"

typedef struct Gather Gather;

Gather *gather_new(Registry *, Comm *); /* comm NULL: nothing moves */
void gather_free(Gather *);
size_t gather_bytes(const Gather *);
/* What sync_publish and sync_use say. */
void gather_publish(Gather *);
void gather_use(Gather *, Param *const *, int n);

#endif
