/* Weights that generation stores in one byte per element (--quantization). Param.value contains the numbers q,
 * and Param.inverse contains a factor for each row, that is, for each output of a linear layer
 * (kernels/row_scale.h). A row's factor depends on all columns, even if tensor-parallel ranks shard the
 * columns, so factors and numbers are equal in all layouts.
 *
 * No copy of a quantized weight is kept in the storage type. A caller reads or computes the values of one
 * weight at a time, in memory of size quantized_stage_bytes, and casts them with quantized_cast. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

static inline bool param_is_quantized(const Param *p) { return p->spec.quantized != F64; }

/* Returns the size in bytes of the largest quantized weight's values in the storage type, or 0 if there are no
 * quantized weights. */
size_t quantized_stage_bytes(const Registry *);
/* Casts a weight's values [rows, columns], which are in device memory and have the storage type. All
 * tensor-parallel ranks must call this function for the same weights in the same order. The Comm is NULL if
 * there is only one rank. */
void quantized_cast(Registry *, Comm *, Param *, void *values);

/* Allocates the factors. registry_allocate calls this function. */
void quantized_allocate(Registry *);
