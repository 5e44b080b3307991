extern "C" {
#include "kernels/cuda/attention/attention_path.h"

const char *cuda_path_attention(const Call *);
const char *cuda_path_attention_grad(const Call *);
}

const char *cuda_path_attention(const Call *c) { return attention_path(c); }
const char *cuda_path_attention_grad(const Call *c) { return attention_path(c); }
