/* Collects the full model from the shards of all ranks and distributes it, for validation. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

/* Assembles a flat buffer (masters, or main gradients that are sums) from the ranks' parts. out [whole->elements] is
 * laid out like `whole`, an allocated registry of one rank (the null device will do) with the same parameters. All
 * ranks get the same result; comm NULL: one rank. */
void registry_gather_whole(const Registry *, FlatBuffer, const void *flat, Comm *, const Registry *whole,
                           double *out);
/* For each element, the rank from which registry_gather_whole gets it. */
void registry_gather_owners(const Registry *, Comm *, const Registry *whole, double *out);
/* Sets this rank's masters from the whole model's (F64 masters). The caller rounds or gathers the values. */
void registry_scatter_whole(const Registry *whole, Registry *);
