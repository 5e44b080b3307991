/* Gathers the full model from all ranks' shards, and scatters a full model to the ranks, for validation. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

/* Assembles a flat buffer (masters, or summed main gradients) from the ranks' parts. out [whole->elements] has the
 * layout of `whole`, which is a one-rank registry with the same parameters on any device, even the null device. All
 * ranks receive the same result. A NULL comm means that there is only one rank. */
void registry_gather_whole(const Registry *, FlatBuffer, const void *flat, Comm *, const Registry *whole,
                           double *out);
/* Sets each element of `out` to the rank from which registry_gather_whole receives that element. */
void registry_gather_owners(const Registry *, Comm *, const Registry *whole, double *out);
/* Sets this rank's masters from the full model's masters, which are F64. Afterwards, the caller must round or
 * gather the parameter values. */
void registry_scatter_whole(const Registry *whole, Registry *);
