/* Code that the kernels of MoE layers share: the distribution of work to warps, and the scores of a router.
 * Functions for scores process one token per warp, and keep the values of the token's experts in shared
 * memory. All lanes must call these functions. Every lane computes the full sums over experts, in the order
 * of kernels/cpu/router.h. */
#pragma once

#include "kernels/cuda/vector_math.cuh"

#define ROUTER_EPSILON 1e-20 /* as in kernels/cpu/router.h */

enum { WARPS = 8, SHARED = 40 << 10 };

#define WARP_LOOP(i, n)                                                                                      \
    for (int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < (n);                    \
         i += (int64_t)gridDim.x * (blockDim.x / 32))

/* Returns the number of warps per block. A block needs `whole` bytes of shared memory, plus `bytes` for the
 * experts of each warp. */
static inline int warps_that_fit(int64_t experts, size_t whole, size_t bytes) {
    CHECK(whole + bytes <= SHARED, "%lld experts need %zu bytes of shared memory, but at most %d can be used",
          (long long)experts, whole + bytes, SHARED);
    const size_t fit = (SHARED - whole) / bytes;
    return (int)(fit < WARPS ? fit : WARPS);
}
static inline size_t router_bytes(size_t n) { return (n + 15) / 16 * 16; }

/* Returns the calling warp's part of the shared memory. */
template <typename R> __device__ __forceinline__ R *router_room(size_t bytes) {
    extern __shared__ __align__(16) unsigned char router_shared[];
    return (R *)(router_shared + threadIdx.x / 32 * bytes);
}
/* Replaces each element of x with exp(element - max), and returns the sum of the results. *max becomes the
 * maximum of x. */
template <typename R> __device__ __forceinline__ R router_exp_sum(R *x, int n, R *max) {
    const int lane = threadIdx.x % 32;
    R most = (R)-INFINITY, sum = 0;
    for (int i = lane; i < n; i += 32) most = x[i] > most ? x[i] : most;
    *max = most = warp_max(most);
    for (int i = lane; i < n; i += 32) x[i] = vector_exp(x[i] - most);
    __syncwarp();
#pragma unroll 8
    for (int i = 0; i < n; i++) sum += x[i];
    __syncwarp();
    return sum;
}

template <typename R> __device__ __forceinline__ void router_softmax(R *x, int n) {
    R max;
    const R sum = router_exp_sum(x, n, &max);
    for (int i = threadIdx.x % 32; i < n; i += 32) x[i] /= sum;
    __syncwarp();
}

/* Loads n elements, beginning at `at`, into x. */
template <typename R>
__device__ __forceinline__ void router_load(const Cells &logits, int64_t at, int n, R *x) {
    for (int i = threadIdx.x % 32; i < n; i += 32) x[i] = logits.get<R>(at + i);
    __syncwarp();
}

/* Replaces the logits x with the scores by which experts are selected. */
template <typename R> __device__ __forceinline__ void router_scores(RouterScore kind, R *x, int n) {
    if (kind == ROUTER_SOFTMAX) return router_softmax(x, n);
    if (kind == ROUTER_TOPK_SOFTMAX || kind == ROUTER_SPARSEMIXER) return;
    for (int i = threadIdx.x % 32; i < n; i += 32)
        x[i] = kind == ROUTER_SIGMOID ? vector_sigmoid(x[i]) : sqrt(vector_softplus(x[i]));
    __syncwarp();
}

/* Returns true if the selected experts' scores are divided by their sum. */
__device__ __forceinline__ bool router_normalises(RouterScore kind) {
    return kind == ROUTER_SIGMOID || kind == ROUTER_SQRTSOFTPLUS;
}

/* Returns (d score / d logit) * weight / s (kernels/cpu/router.h). */
template <typename R> __device__ __forceinline__ R router_slope(RouterScore kind, R s, R weight) {
    if (kind == ROUTER_SIGMOID) return weight * (1 - s);
    const R u = s * s;
    return weight * (u > 0 ? -expm1(-u) / (2 * u) : (R)0.5);
}
