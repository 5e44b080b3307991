/* Attention through cuDNN, or with Isotron's kernels (attention.cu) for calls that cuDNN does not support. */
#pragma once

#include "kernels/cuda/common.cuh"

/* attention_cudnn.cu. If cuDNN supports the call, starts the computation and returns true; otherwise returns
 * false. */
bool attention_cudnn(const Call *);
bool attention_grad_cudnn(const Call *);

/* attention.cu. Returns how many bytes of cuda_scratch a call needs if cuDNN does not support the call. */
size_t attention_scratch(const Call *);
size_t attention_grad_scratch(const Call *);
