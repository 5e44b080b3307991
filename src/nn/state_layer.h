/* Parameters and views that Mamba-2 and Gated DeltaNet layers share. Tensor-parallel ranks split the parameters by heads.
 * For context parallelism, an all-to-all exchanges positions of all heads for all positions of some heads. */
#pragma once

#include "param/param.h"
#include "tape/tape.h"

/* Registers a vector that is split by heads. */
Param *head_param(Registry *, const char *scope, const char *name, int64_t rows, Init);
/* Registers the convolution's weight [channels, taps] or bias [channels]. Each of the three parts of the channels is
 * split by heads. */
Param *conv_weight(Registry *, const char *scope, int64_t taps, const ParamPart parts[3]);
Param *conv_bias(Registry *, const char *scope, int64_t taps, const ParamPart parts[3]);

/* Returns a view of columns [first, first + n) of x [s,b,...]. */
Tensor *columns_of(Tape *, Tensor *x, int64_t first, int64_t n);
/* Returns a view of contiguous x [s,b,...] as g heads, [s,b,g,1,d]; as_rows returns a view of heads as [s,b,n]. */
Tensor *as_heads(Tape *, Tensor *x, int64_t g);
Tensor *as_rows(Tape *, Tensor *x);
/* Returns a view of g heads of width d, which begin at column `first` of x [s,b,...]. */
Tensor *heads_at(Tape *, Tensor *x, int64_t first, int64_t g, int64_t d);
/* Returns all positions of this rank's share of these heads. */
Tensor *exchanged(Tape *, Tensor *x, Group ranks, int64_t first, int64_t g, int64_t d);
/* Returns rows [first, first + n) of the parameter. */
Tensor *param_share_of(Tape *, const Param *, int64_t first, int64_t n);
