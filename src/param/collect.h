/* The whole model in one place, from and to the shares that ranks hold: what validation compares. */
#ifndef ISOTRON_PARAM_COLLECT_H
#define ISOTRON_PARAM_COLLECT_H

#include "comm/comm.h"
#include "param/param.h"

/* Puts what the ranks hold in a flat buffer (masters, or main gradients that are sums) together: out
 * [whole->elements] is laid out like `whole`, an allocated registry of one rank (the null device will do)
 * with the same parameters. The same on all ranks; comm NULL: one rank. */
void registry_gather_whole(const Registry *, FlatBuffer, const void *flat, Comm *, const Registry *whole,
                           double *out);
/* The rank that registry_gather_whole takes each element from. */
void registry_gather_owners(const Registry *, Comm *, const Registry *whole, double *out);
/* Sets this rank's masters from the whole model's (F64 masters). Values are the caller's to round or gather. */
void registry_scatter_whole(const Registry *whole, Registry *);

#endif
