/* Gathers the parameter values that ranks shard, for sync.h. Each rank rounds its part from the masters;
 * all ranks have all values before an op reads them. Below stage 3 the gathered values have their place in
 * the registry. At stage 3 a bucket is gathered into a slot when it is used and dropped when the slot is
 * needed again. Slots hold the layer in use and, with overlap_values, the next one. Below stage 3, all gathers
 * start together after an update. With overlap_values and with_attention, only the first one does, and each
 * later one starts one bucket ahead. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

typedef struct Gather Gather;

Gather *gather_new(Registry *, Comm *); /* comm NULL: nothing moves */
void gather_free(Gather *);
size_t gather_bytes(const Gather *);
/* Implement sync_publish and sync_use. */
void gather_publish(Gather *);
void gather_use(Gather *, Param *const *, int n);
/* Starts the gather that waits for the next attention. */
void gather_attention(Gather *);
/* Parts of the functions of sync.h that run a step as a graph: before and after the work, and its begin and
 * end. */
void gather_before_graph(Gather *);
void gather_begin_graph(Gather *);
void gather_end_graph(Gather *);
void gather_after_graph(Gather *);
