/* The rotation of the op rope, shared by all kernels that rotate. */
#pragma once

#include "kernels/cuda/vectors.cuh"

/* The pairs of a run in a head. `low` contains the first elements of the pairs, and `high` contains the
 * second elements. If pairs are interleaved, `low` contains the first N of the run's 2N elements, and `high`
 * contains the last N. */
template <typename T> struct Turned { Run<T, VEC<T>> low, high; };

/* Uses fma explicitly, so that rounding does not depend on which operations the compiler contracts. */
template <typename R> __device__ __forceinline__ void turn(R *first, R *second, R cos, R sin) {
    const R a = *first, b = *second;
    *first = fma(a, cos, -(b * sin));
    *second = fma(b, cos, a * sin);
}

/* Rotates a run. v receives the elements of `low`, then those of `high`. */
template <typename T>
__device__ __forceinline__ void turn_pairs(const Turned<T> &p, bool interleaved,
                                           const Run<Real<T>, VEC<T>> &cos, const Run<Real<T>, VEC<T>> &sin,
                                           Real<T> (&v)[2 * VEC<T>]) {
    constexpr int N = VEC<T>;
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = p.low.get(k), v[N + k] = p.high.get(k);
    if (interleaved) {
#pragma unroll
        for (int k = 0; k < N; k++) turn(&v[2 * k], &v[2 * k + 1], cos.get(k), sin.get(k));
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) turn(&v[k], &v[N + k], cos.get(k), sin.get(k));
    }
}

/* rope.cu. The error message for a position outside the table. */
extern const char *const rope_message;
/* rope.cu. Computes the part of rope_paged_attention that precedes attention: writes rotated queries to y,
 * and stores new keys and values. */
void rope_store(const Call *);
