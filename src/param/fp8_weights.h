/* Weights that are themselves stored in FP8, for FP8 GEMMs (--fp8-param-gather; Megatron-LM core/fp8_utils.py,
 * Transformer Engine pytorch/tensor/utils.py quantize_master_weights). Param.value contains the FP8 values. No
 * copy of an FP8 weight is kept in the storage type, and data-parallel ranks gather one byte per element.
 *
 * Whenever masters have changed, each rank casts the part that it updates. Each rank first rounds the masters
 * to the storage type, as Transformer Engine does. The FP8 values and scales are therefore bitwise equal to
 * those from casting the entire weight in the storage type. The amaxes of a weight's parts are combined over
 * the ranks that hold the parts. */
#pragma once

#include "comm/comm.h"
#include "kernels/fp8_blocks.h"
#include "param/param.h"

typedef struct Fp8Weight {
    Fp8Blocks blocks;
    int64_t matrices; /* 1, or the number of experts on this rank, each of which has a scale or blocks */
    /* With delayed scaling, the scale of matrix g is the first number in row `row` + g of the buffer `history`. With
     * other recipes, `history` is NULL, and scales are computed from the amaxes. */
    const Param *history;
    int64_t row;
    /* The blocks' amaxes or, if `history` is not NULL, the amaxes of this rank's part. */
    Tensor amaxes;
    Tensor inverse, inverse_turned; /* 1 / scale for each block of the weight, and of its transpose */
} Fp8Weight;

/* Requests that the weight be stored in FP8; the caller sets the first four members of Fp8Weight. Call this function
 * before registry_allocate. The request is dropped (Param.fp8 becomes NULL) if the registry does not train, or if the
 * weight is frozen. If the function is called again for a weight, the members must be the same. */
void fp8_weight_add(Registry *, Param *, Fp8Weight);
/* Returns n rows of the buffer's masters from row `row` on. */
Tensor fp8_weight_rows(const Param *buffer, int64_t row, int64_t n);
/* Casts this rank's part of each FP8 weight. The Comm is NULL if there is only one rank. */
void fp8_weights_cast(Registry *, Comm *);

/* Allocates the amaxes and the scales. registry_allocate calls this function. */
void fp8_weights_allocate(Registry *);
