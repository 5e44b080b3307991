/* The scan on tensor cores, for the ops in ssd_scan.cu and ssd_scan_grad.cu. */
#pragma once

#include "kernels/cuda/common.cuh"

/* Returns whether these kernels can compute a call, whose operands of the scan are at `in`. */
bool ssd_tiles_can(const Call *, Tensor *const *in);
/* Return the number of bytes of scratch memory. */
size_t ssd_tiles_bytes(const Call *);
size_t ssd_tiles_grad_bytes(const Call *);
void ssd_tiles(const Call *);
void ssd_tiles_grad(const Call *);
