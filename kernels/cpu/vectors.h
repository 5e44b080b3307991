/* Sums and products of vectors, for scans over positions. */
#pragma once

#include "kernels/cpu/real.h"

static inline real dot(const real *a, const real *b, int64_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static inline void add_scaled(real *to, real factor, const real *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] += factor * x[i];
}

/* Adds factor x y^T to the matrix [m,n]. */
static inline void add_product(real *to, real factor, const real *x, const real *y, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i++) add_scaled(to + i * n, factor * x[i], y, n);
}

/* Writes or accumulates element `at`. */
static inline void put(const Tensor *out, int64_t at, real value) {
    real *to = reals(out) + at;
    *to = accumulates(out) ? *to + value : value;
}
