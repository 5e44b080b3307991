/* Selects one of cuBLASLt's algorithms for the GEMMs of linear layers: for tests. */
#pragma once

#include "tensor/call.h"

/* From now on calls of linear, linear_dgrad and linear_wgrad like this one use algorithm n, as if it had been
 * measured to be the fastest. Returns the fused epilogues: a sum of 1 (the bias), 2 (the activation), 4
 * (dbias), 8 (the activation's derivative); -1: there is no algorithm n. */
int linear_take_algo(const OpDef *, const Call *, int n);
