/* Weights that generation stores in one byte per element (--quantization). Param.value has the numbers q, and
 * Param.inverse a factor for each row, that is, for each output of a linear layer (kernels/row_scale.h). The factor
 * depends on the whole row, also if tensor-parallel ranks shard its columns. So layouts have equal numbers.
 *
 * No copy in the storage type is kept. A caller reads or computes the values of one weight at a time in memory of
 * quantized_stage_bytes, and then casts them. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

static inline bool param_is_quantized(const Param *p) { return p->spec.quantized != F64; }

/* The size of the values of the largest quantized weight in the storage type; 0 if there are none. */
size_t quantized_stage_bytes(const Registry *);
/* Casts the values [rows, columns] of a weight, which are in device memory and have the storage type. All
 * tensor-parallel ranks must call it for the same weights in the same order. comm: NULL if there is one rank. */
void quantized_cast(Registry *, Comm *, Param *, void *values);

/* For registry_allocate: allocates the factors. */
void quantized_allocate(Registry *);
