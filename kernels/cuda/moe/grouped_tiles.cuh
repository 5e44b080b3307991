/* Grouped GEMMs on sm_90a tensor cores, for the ops in grouped.cu (grouped_tiles.cu) and grouped_fp8.cu
 * (grouped_fp8_tiles.cu). */
#pragma once

#include "kernels/cuda/common.cuh"

/* Orders tiles in bands of BAND rows of tiles, and column by column within a band. Concurrent blocks therefore read the
 * same few rows and columns, which stay in the L2 cache. */
template <typename Int>
static __device__ __forceinline__ void in_bands(Int i, Int down, Int across, Int *row, Int *column) {
    enum { BAND = 16 };
    const Int first = i / (BAND * across) * BAND, left = down - first, height = left < BAND ? left : BAND,
              within = i - first * across;
    *row = first + within % height;
    *column = within / height;
}

/* Returns true if these GEMMs can compute a call whose operands tensor cores can multiply. */
bool grouped_tiles_can(const Call *);
/* Computes grouped_linear if `along` is true, and otherwise grouped_linear_dgrad. */
void grouped_tiles_rows(const Call *, bool along);
/* Computes grouped_linear_wgrad. Sums are rounded before they are added to a 16-bit dw. */
void grouped_tiles_wgrad(const Call *);
/* Returns whether sums may be rounded to the type of dw before they are added. Only main gradients allow this. */
static inline bool rounds_sums(const Tensor *dw) {
    return !accumulates(dw) || dw->dtype == F32 || dw->flags & TENSOR_MAIN_GRAD;
}

/* Returns true if these GEMMs can compute fp8_grouped_wgrad or, if `wgrad` is false, fp8_grouped_linear. Scales of blocks
 * are read up to the next multiple of 16 bytes. */
bool grouped_fp8_tiles_can(const Call *, bool wgrad);
void grouped_fp8_tiles_rows(const Call *);
/* Sums are rounded before they are added to a 16-bit dw. */
void grouped_fp8_tiles_wgrad(const Call *);
