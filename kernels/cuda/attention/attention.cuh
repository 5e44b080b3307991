/* Attention with cuDNN, or with our own kernels (attention.cu) for calls that cuDNN does not support. */
#pragma once

#include "kernels/cuda/common.cuh"

/* attention_cudnn.cu. False: cuDNN does not support this call, and no work has been started. */
bool attention_cudnn(const Call *);
bool attention_grad_cudnn(const Call *);

/* attention.cu: the bytes of cuda_scratch for calls that cuDNN does not support. */
size_t attention_scratch(const Call *);
size_t attention_grad_scratch(const Call *);
