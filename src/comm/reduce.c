#include <string.h>

#include "base/fault.h"
#include "comm/transport.h"

enum { BLOCK = 512 }; /* number of elements; the accumulators of a block fit into the L1 cache */

/* Reduces x into a. A sum is a left fold. Comparisons with a NaN are false, so the first NaN remains. */
static void fold_f64(CommReduction r, double *a, const double *x, int64_t n) {
    if (r == COMM_SUM)
        for (int64_t i = 0; i < n; i++) a[i] += x[i];
    else if (r == COMM_MAX)
        for (int64_t i = 0; i < n; i++) a[i] = a[i] >= x[i] || a[i] != a[i] ? a[i] : x[i];
    else
        for (int64_t i = 0; i < n; i++) a[i] = a[i] <= x[i] || a[i] != a[i] ? a[i] : x[i];
}

static void fold_f32(CommReduction r, float *a, const float *x, int64_t n) {
    if (r == COMM_SUM)
        for (int64_t i = 0; i < n; i++) a[i] += x[i];
    else if (r == COMM_MAX)
        for (int64_t i = 0; i < n; i++) a[i] = a[i] >= x[i] || a[i] != a[i] ? a[i] : x[i];
    else
        for (int64_t i = 0; i < n; i++) a[i] = a[i] <= x[i] || a[i] != a[i] ? a[i] : x[i];
}

static void fold_i64(CommReduction r, int64_t *a, const int64_t *x, int64_t n) {
    if (r == COMM_SUM) /* overflow wraps around, as in sums of narrower types */
        for (int64_t i = 0; i < n; i++) a[i] = (int64_t)((uint64_t)a[i] + (uint64_t)x[i]);
    else if (r == COMM_MAX)
        for (int64_t i = 0; i < n; i++) a[i] = a[i] >= x[i] ? a[i] : x[i];
    else
        for (int64_t i = 0; i < n; i++) a[i] = a[i] <= x[i] ? a[i] : x[i];
}

/* Converts integers to 64 bits. Integers of all widths are added in 64 bits, because the low bits of a sum do not
 * depend on the high bits. */
static void widen(int64_t *to, DType t, const char *from, int64_t n) {
    if (t == I64)
        memcpy(to, from, (size_t)n * sizeof *to);
    else if (t == I32)
        for (int64_t i = 0; i < n; i++) to[i] = ((const int32_t *)(const void *)from)[i];
    else
        for (int64_t i = 0; i < n; i++) to[i] = ((const uint8_t *)from)[i];
}

static void narrow(char *to, DType t, const int64_t *from, int64_t n) {
    if (t == I64)
        memcpy(to, from, (size_t)n * sizeof *from);
    else if (t == I32)
        for (int64_t i = 0; i < n; i++) ((int32_t *)(void *)to)[i] = (int32_t)from[i];
    else
        for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = (uint8_t)from[i];
}

static void reduce_floats(CommReduction r, DType t, const void *const *in, int members, size_t at, int64_t n,
                          char *out) {
    const DType real = t == F64 ? F64 : F32;
    union {
        double f64[BLOCK];
        float f32[BLOCK];
    } sum, next;
    dtype_convert(&sum, real, (const char *)in[0] + at, t, (size_t)n);
    for (int m = 1; m < members; m++) {
        const void *x = (const char *)in[m] + at;
        if (t != real) dtype_convert(&next, real, x, t, (size_t)n), x = &next;
        if (real == F64)
            fold_f64(r, sum.f64, x, n);
        else
            fold_f32(r, sum.f32, x, n);
    }
    dtype_convert(out, t, &sum, real, (size_t)n);
}

static void reduce_ints(CommReduction r, DType t, const void *const *in, int members, size_t at, int64_t n,
                        char *out) {
    int64_t sum[BLOCK], next[BLOCK];
    widen(sum, t, (const char *)in[0] + at, n);
    for (int m = 1; m < members; m++) {
        widen(next, t, (const char *)in[m] + at, n);
        fold_i64(r, sum, next, n);
    }
    narrow(out, t, sum, n);
}

void comm_reduce(CommReduction r, DType t, const void *const *in, int members, int64_t at, int64_t n,
                 void *out) {
    const size_t size = dtype_size(t);
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t part = n - i < BLOCK ? n - i : BLOCK;
        const size_t from = (size_t)(at + i) * size;
        char *to = (char *)out + (size_t)i * size;
        if (dtype_is_float(t))
            reduce_floats(r, t, in, members, from, part, to);
        else
            reduce_ints(r, t, in, members, from, part, to);
    }
}
