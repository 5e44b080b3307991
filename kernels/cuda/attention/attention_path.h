/* Describes which implementation computes attention on a CUDA device, and why. Logs, benchmarks and tests use
 * this description. */
#pragma once

#include "tensor/call.h"

/* Describes the implementation that runs a call to attention or attention_grad: "cuDNN 9.19.0, ..." or "own
 * kernels: (reason)". The string is valid until the next call for the device. */
const char *attention_path(const Call *);

/* The numbers of calls to attention and attention_grad since the device was opened. */
typedef struct AttentionCounts {
    int64_t cudnn, own;
} AttentionCounts;
AttentionCounts attention_counts(const Device *);
