/* Grouped GEMMs on sm_90a tensor cores (grouped_tiles.cu), for the ops in grouped.cu. */
#pragma once

#include "kernels/cuda/common.cuh"

/* Returns true if these GEMMs can compute a call whose operands tensor cores can multiply. */
bool grouped_tiles_can(const Call *);
/* Computes grouped_linear if `along` is true, and otherwise grouped_linear_dgrad. */
void grouped_tiles_rows(const Call *, bool along);
/* Computes grouped_linear_wgrad. Sums are rounded before they are added to a 16-bit dw. */
void grouped_tiles_wgrad(const Call *);
