/* Describes which implementation computes attention on a CUDA device, and why, for logs, benches and
 * tests. */
#pragma once

#include "tensor/call.h"

/* The implementation of a call of attention or attention_grad: "cuDNN 9.19.0, ..." or "own kernels: why".
 * Valid until the next query about the device. */
const char *attention_path(const Call *);

/* The number of calls of both ops so far. */
typedef struct AttentionCounts {
    int64_t cudnn, own;
} AttentionCounts;
AttentionCounts attention_counts(const Device *);
