/* Computes small GEMMs inside a kernel. Each element of c is a single chain of multiply-adds in the order of
 * k, so the element does not depend on the number of rows and columns. The loop over n is vectorized. */
#pragma once

#include "kernels/cpu/real.h"

/* The n of a Tile must be TILE_HALF or a multiple of TILE_WIDTH. The accumulators of TILE_ROWS x TILE_WIDTH
 * elements fit into registers. */
enum { TILE_WIDTH = 64 / (int)sizeof(real), TILE_HALF = TILE_WIDTH / 2, TILE_ROWS = 8 };

static inline int64_t tile_round_up(int64_t n) { return (n + TILE_WIDTH - 1) / TILE_WIDTH * TILE_WIDTH; }

static inline real multiply_add(real a, real b, real c) {
#if defined __FMA__ || defined __ARM_FEATURE_FMA
    return REAL_MATH(__builtin_fma)(a, b, c);
#else
    return a * b + c;
#endif
}

/* Computes c[m,n] += a b. Element (i, p) of a is at i * a_row + p * a_col; ldb and ldc are the leading dimensions of b
 * [k,n] and c. */
typedef struct Tile {
    int64_t m, n, k;
    const real *a;
    int64_t a_row, a_col;
    const real *b;
    int64_t ldb;
    real *c;
    int64_t ldc;
} Tile;

/* This function is inlined, so that `rows` and `width` are compile-time constants. */
static inline __attribute__((always_inline)) void tile_block(const Tile *t, int rows, int width, int64_t i,
                                                             int64_t j) {
    const real *a = t->a + i * t->a_row, *b = t->b + j;
    real *c = t->c + i * t->ldc + j, sum[TILE_ROWS][TILE_WIDTH];
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < width; l++) sum[r][l] = c[r * t->ldc + l];
    for (int64_t p = 0; p < t->k; p++)
        for (int r = 0; r < rows; r++) {
            const real x = a[r * t->a_row + p * t->a_col];
#pragma omp simd
            for (int l = 0; l < width; l++) sum[r][l] = multiply_add(x, b[p * t->ldb + l], sum[r][l]);
        }
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < width; l++) c[r * t->ldc + l] = sum[r][l];
}

static inline __attribute__((always_inline)) void tile_columns(const Tile *t, int width, int64_t j) {
    int64_t i = 0;
    for (; i + TILE_ROWS <= t->m; i += TILE_ROWS) tile_block(t, TILE_ROWS, width, i, j);
    for (; i + 2 <= t->m; i += 2) tile_block(t, 2, width, i, j);
    for (; i < t->m; i++) tile_block(t, 1, width, i, j);
}

static inline void tile_gemm(Tile t) {
    if (t.n == TILE_HALF) tile_columns(&t, TILE_HALF, 0);
    for (int64_t j = 0; j + TILE_WIDTH <= t.n; j += TILE_WIDTH) tile_columns(&t, TILE_WIDTH, j);
}
