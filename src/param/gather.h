/* For sync.h, gathers the parameter values that data-parallel ranks shard. Each rank rounds its part of the values from
 * its masters, or casts its masters to FP8 (fp8_weights.h). Values are gathered before an op reads them. Below stage 3,
 * the gathered values are in the registry's buffer. At stage 3, a bucket is gathered into a slot when it is used, and
 * dropped when another bucket needs the slot. A layer's FP8 weights and its other dense parameters share a slot. The
 * slots contain the layer in use and, with overlap_values, the next layer.
 *
 * Below stage 3, all gathers start together after an update. With overlap_values and with_attention, but without a
 * pipeline, only the first gather starts after the update. Each later gather starts at an attention op, while the
 * preceding bucket is in use. In a pipeline, later stages wait for their first microbatch, and have time to gather. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

typedef struct Gather Gather;

Gather *gather_new(Registry *, Comm *); /* if the Comm is NULL, no data is transferred */
void gather_free(Gather *);
size_t gather_bytes(const Gather *);
/* gather_publish and gather_use implement sync_publish and sync_use. */
void gather_publish(Gather *);
void gather_use(Gather *, Param *const *, int n);
/* Starts the gather that has been postponed until the next attention op. */
void gather_attention(Gather *);
/* sync_replay calls gather_before_graph and gather_after_graph before and after the graph, and
 * gather_begin_graph and gather_end_graph at the start and end of the graph's work. */
void gather_before_graph(Gather *);
void gather_begin_graph(Gather *);
void gather_end_graph(Gather *);
void gather_after_graph(Gather *);
