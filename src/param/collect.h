/* Gathers the full model from the shards of all ranks, and scatters it to them, for validation. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

/* Assembles a flat buffer (masters, or main gradients that are sums) from the ranks' parts. out
 * [whole->elements] is laid out like `whole`, a registry of one rank with the same parameters, allocated on
 * any device (including the null device). All ranks receive the same result. If comm is NULL, there is one rank. */
void registry_gather_whole(const Registry *, FlatBuffer, const void *flat, Comm *, const Registry *whole,
                           double *out);
/* Sets each element to the rank from which registry_gather_whole receives it. */
void registry_gather_owners(const Registry *, Comm *, const Registry *whole, double *out);
/* Sets this rank's masters from the masters of the full model, which are F64. The caller must then round or gather
 * the values. */
void registry_scatter_whole(const Registry *whole, Registry *);
