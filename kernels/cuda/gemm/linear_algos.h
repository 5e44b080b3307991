/* Selects one of cuBLASLt's algorithms for the GEMMs of linear layers. Only tests use this function. */
#pragma once

#include "tensor/call.h"

/* Selects algorithm n, as if it had been measured as the fastest, for all later calls to linear, linear_dgrad
 * or linear_wgrad that run the same GEMM as this call. Returns the fused epilogues as a sum of 1 (bias), 2
 * (activation), 4 (dbias) and 8 (derivative of the activation), or -1 if there is no algorithm n. */
int linear_take_algo(const OpDef *, const Call *, int n);
