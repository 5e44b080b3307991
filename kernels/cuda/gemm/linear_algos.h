/* The algorithms that cuBLASLt has for the GEMMs of linear layers, one by one: for tests. */
#ifndef ISOTRON_KERNELS_CUDA_GEMM_LINEAR_ALGOS_H
#define ISOTRON_KERNELS_CUDA_GEMM_LINEAR_ALGOS_H

#include "tensor/call.h"

/* Calls of linear, linear_dgrad and linear_wgrad like this one use algorithm n from now on, as if that had
 * been measured to be the fastest. Returns which epilogues are fused: a sum of 1 (the bias), 2 (the
 * activation), 4 (dbias), 8 (the activation's derivative); -1: there are not so many algorithms. */
int linear_take_algo(const OpDef *, const Call *, int n);

#endif
