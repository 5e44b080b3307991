/* Attention by cuDNN and, where it cannot, by our own kernels (attention.cu). */
#ifndef ISOTRON_KERNELS_CUDA_ATTENTION_ATTENTION_CUH
#define ISOTRON_KERNELS_CUDA_ATTENTION_ATTENTION_CUH

#include "kernels/cuda/common.cuh"

/* attention_cudnn.cu. False: it does not do this call, and nothing has been started. */
bool attention_cudnn(const Call *);
bool attention_grad_cudnn(const Call *);

/* attention.cu: the bytes of cuda_scratch that attention_grad takes where cuDNN does not do it. */
size_t attention_grad_scratch(const Call *);

#endif
