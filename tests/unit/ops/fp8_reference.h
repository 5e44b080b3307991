/* Quantized tensors and GEMMs by definition, in double. */
#pragma once

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/philox.h"
#include "tensor/fp8.h"
#include "unit/err.h"

enum { BLOCK = 128 };

/* The FP8 number nearest to x, by definition. */
static inline double nearest(Fp8Type t, float x) {
    const int digits = t == E4M3 ? 4 : 3, least = t == E4M3 ? -6 : -14;
    const double most = t == E4M3 ? 448 : 57344;
    if (x == 0) return (double)x;
    const int q = (ilogbf(x) > least ? ilogbf(x) : least) - (digits - 1);
    const double y = ldexp(nearbyint(ldexp((double)x, -q)), q);
    return fabs(y) > most ? copysign(most, y) : y;
}

static inline double amax_of(const double *x, int64_t rows, int64_t columns, int64_t width) {
    double most = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++) most = fmax(most, fabs(x[r * width + i]));
    return most;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Sets y to x after quantization and dequantization in blocks of `high` x `wide`. If `powers`, scales are powers of
 * two. */
static inline void quantised(Fp8Type t, const double *x, int64_t rows, int64_t width, int64_t high,
                             int64_t wide, bool powers, double *y) {
    const float most = t == E4M3 ? 448 : 57344;
    for (int64_t r = 0; r < rows; r += high)
        for (int64_t i = 0; i < width; i += wide) {
            const int64_t n = least(high, rows - r), m = least(wide, width - i);
            const float amax = (float)amax_of(x + r * width + i, n, m, width);
            float scale = amax > 0 ? most / amax : 1;
            if (powers) scale = ldexpf(1, ilogbf(scale));
            for (int64_t a = r; a < r + n; a++)
                for (int64_t b = i; b < i + m; b++)
                    y[a * width + b] = nearest(t, (float)x[a * width + b] * scale) * (double)(1 / scale);
        }
}

static inline double *numbers(int64_t n, uint64_t site, double spread) {
    double *x = mem_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = philox_normal(5, site, (uint64_t)i) * exp(spread * philox_normal(5, site + 100, (uint64_t)i));
    return x;
}

typedef struct ExpectedGemm {
    const double *a, *b;
    int64_t m, n, k;
    bool a_by_k, b_by_k; /* true: a[m][k], b[n][k]; false: a[k][m], b[k][n] */
} ExpectedGemm;

/* For a sum of k terms in any order, the bound is k u sum |a b|. */
static inline void expect_gemm(const char *what, const double *got, ExpectedGemm p) {
    for (int64_t i = 0; i < p.m; i++)
        for (int64_t j = 0; j < p.n; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < p.k; k++) {
                const double term =
                    p.a[p.a_by_k ? i * p.k + k : k * p.m + i] * p.b[p.b_by_k ? j * p.k + k : k * p.n + j];
                sum += term, size += fabs(term);
            }
            if (!(fabs(got[i * p.n + j] - sum) <= 2 * (double)p.k * 0x1p-53 * size))
                fail_msg("%s: element %lld, %lld is %g, not %g", what, (long long)i, (long long)j,
                         got[i * p.n + j], sum);
        }
}

/* A CPU device that claims to support these GEMMs of FP8 values. */
static inline Device *fp8_cpu(unsigned gemms) {
    Device *d;
    assert_ok(device_open(&(DeviceSpec){.threads = 2, .fp8_gemms = gemms}, &d));
    return d;
}
