/* Describes, for logs, benchmarks and tests, which implementation computes attention on a CUDA device, and why. */
#pragma once

#include "tensor/call.h"

/* Returns the implementation that runs a call of attention or attention_grad: "cuDNN 9.19.0, ..." or "own kernels:
 * why". The string is valid until the next call for the device. */
const char *attention_path(const Call *);

/* The numbers of calls of both ops since the device was opened. */
typedef struct AttentionCounts {
    int64_t cudnn, own;
} AttentionCounts;
AttentionCounts attention_counts(const Device *);
