/* Attention with cuDNN, or with our own kernels (attention.cu) for calls that cuDNN does not support. */
#pragma once

#include "kernels/cuda/common.cuh"

/* attention_cudnn.cu. Returns false if cuDNN does not support this call; no work has then been started. */
bool attention_cudnn(const Call *);
bool attention_grad_cudnn(const Call *);

/* attention.cu: the number of bytes of cuda_scratch that calls need if cuDNN does not support them. */
size_t attention_scratch(const Call *);
size_t attention_grad_scratch(const Call *);
