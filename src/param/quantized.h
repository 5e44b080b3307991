/* Weights that generation stores in one byte per element (--quantization). Param.value contains the numbers
 * q, and Param.inverse contains a factor for each row, that is, for each output of a linear layer
 * (kernels/row_scale.h). The factor depends on the whole row, even if tensor-parallel ranks shard its
 * columns, so the numbers are equal in all layouts.
 *
 * No copy of a quantized weight is kept in the storage type. A caller reads or computes one weight's values
 * at a time, in memory of size quantized_stage_bytes, and then casts them. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

static inline bool param_is_quantized(const Param *p) { return p->spec.quantized != F64; }

/* Returns the size in bytes of the largest quantized weight's values in the storage type, or 0 if there are no
 * quantized weights. */
size_t quantized_stage_bytes(const Registry *);
/* Casts a weight's values [rows, columns], which are in device memory and have the storage type. All
 * tensor-parallel ranks must call this function for the same weights in the same order. comm: NULL if there
 * is only one rank. */
void quantized_cast(Registry *, Comm *, Param *, void *values);

/* Allocates the factors. registry_allocate calls this function. */
void quantized_allocate(Registry *);
