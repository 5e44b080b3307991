/* GEMMs through CBLAS, or in a fixed order of summation. BLAS runs single-threaded, and each thread of the
 * pool computes whole panels of the output. BLAS chooses its order of summation by the shape of a GEMM, so
 * the panels must depend only on the shape and not on the number of threads. */
#include "kernels/cpu/gemm.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/tile.h"

#ifdef REAL_IS_DOUBLE
#define CBLAS_GEMM cblas_dgemm
#else
#define CBLAS_GEMM cblas_sgemm
#endif

/* If panels were narrower, packing the other operand for each of them would cost more than a tenth of the
 * speed. */
enum { PANEL_MIN = 384, PANELS_MAX = 64 };

/* The number of panels. It is a power of two so that threads get equal shares, because their number is
 * usually one as well. */
static int64_t panels(int64_t n) {
    int64_t p = 1;
    while (p < PANELS_MAX && n / (2 * p) >= PANEL_MIN) p *= 2;
    return p;
}

/* Computes rows [i, i+m) and columns [j, j+n) of the output. */
static void part(const Gemm *g, int64_t i, int64_t m, int64_t j, int64_t n) {
    const real *a = g->a + (g->transpose_a ? i : i * g->lda), *b = g->b + (g->transpose_b ? j * g->ldb : j);
    real *c = g->c + i * g->ldc + j;
    CBLAS_GEMM(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
               g->transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)g->k, 1, a, (int)g->lda, b,
               (int)g->ldb, g->accumulate ? 1 : 0, c, (int)g->ldc);
    if (!g->bias) return;
    for (int64_t r = 0; r < m; r++) {
        real *row = c + r * g->ldc;
#pragma omp simd
        for (int64_t q = 0; q < n; q++) row[q] += g->bias[j + q];
    }
}

static void run_panels(void *arg, int64_t begin, int64_t end) {
    const Gemm *g = arg;
    int64_t larger = g->m > g->n ? g->m : g->n, count = panels(larger);
    for (int64_t p = begin; p < end; p++) {
        int64_t first = larger * p / count, width = larger * (p + 1) / count - first;
        if (g->m > g->n)
            part(g, first, width, 0, g->n);
        else
            part(g, 0, g->m, first, width);
    }
}

/* ---- fixed order, for rows that are contiguous along k ---- */

/* A sum has DOT_LANES chains of multiply-adds: chain l adds the products of k = l, l + DOT_LANES, ... in order.
 * Then a tree adds the chains. It does not depend on other rows and columns. */
enum {
    DOT_LANES = 64 / (int)sizeof(real),
    DOT_COLUMNS = 4,
    DOT_ROWS = 3,
    DOT_UNIT = 16 /* columns of a unit of work */
};

/* sums [rows,DOT_COLUMNS]. Inlined so that `rows` and `columns` are compile-time constants. */
static inline __attribute__((always_inline)) void dot_block(const Gemm *g, int64_t i, int rows,
                                                            const real *const *b, int columns, real *sums) {
    real sum[DOT_ROWS][DOT_COLUMNS][DOT_LANES];
    const real *a[DOT_ROWS];
    for (int r = 0; r < rows; r++) {
        a[r] = g->a + (i + r) * g->lda;
        for (int c = 0; c < columns; c++)
            for (int l = 0; l < DOT_LANES; l++) sum[r][c][l] = 0;
    }
    int64_t p = 0;
    for (; p + DOT_LANES <= g->k; p += DOT_LANES)
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
#pragma omp simd
                for (int l = 0; l < DOT_LANES; l++)
                    sum[r][c][l] = multiply_add(a[r][p + l], b[c][p + l], sum[r][c][l]);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            real *x = sum[r][c];
            for (int64_t q = p; q < g->k; q++) x[q - p] = multiply_add(a[r][q], b[c][q], x[q - p]);
            for (int half = DOT_LANES / 2; half > 0; half /= 2)
                for (int l = 0; l < half; l++) x[l] += x[l + half];
            sums[r * DOT_COLUMNS + c] = *x;
        }
}

static void put_dots(const Gemm *g, int64_t i, int m, int64_t j, int n, const real *sums) {
    for (int r = 0; r < m; r++)
        for (int q = 0; q < n; q++) {
            real *c = &g->c[(i + r) * g->ldc + j + q], sum = sums[r * DOT_COLUMNS + q];
            *c = (g->accumulate ? *c : g->bias ? g->bias[j + q] : 0) + sum;
        }
}

/* The rows of op(b)^T from j on. */
static void dot_columns(const Gemm *g, int64_t j, int n, real *widened) {
    const real *b[DOT_COLUMNS];
    real sums[DOT_ROWS * DOT_COLUMNS];
    for (int c = 0; c < n; c++) {
        b[c] = g->b ? g->b + (j + c) * g->ldb : widened + c * g->k;
        if (!g->b)
            dtype_convert(widened + c * g->k, REAL_TYPE, g->b_16 + (j + c) * g->ldb, g->b_type, (size_t)g->k);
    }
    for (int64_t i = 0; i < g->m;) {
        const int m = g->m - i >= DOT_ROWS ? DOT_ROWS : 1;
        if (n == DOT_COLUMNS && m == DOT_ROWS)
            dot_block(g, i, DOT_ROWS, b, DOT_COLUMNS, sums);
        else if (n == DOT_COLUMNS)
            dot_block(g, i, 1, b, DOT_COLUMNS, sums);
        else
            for (int r = 0; r < m; r++)
                for (int c = 0; c < n; c++) dot_block(g, i + r, 1, b + c, 1, sums + r * DOT_COLUMNS + c);
        put_dots(g, i, m, j, n, sums);
        i += m;
    }
}

static void run_dots(void *arg, int64_t begin, int64_t end) {
    const Gemm *g = arg;
    real *widened = g->b ? NULL : mem_aligned((size_t)(DOT_COLUMNS * g->k) * sizeof(real));
    for (int64_t j = begin * DOT_UNIT; j < end * DOT_UNIT && j < g->n; j += DOT_COLUMNS)
        dot_columns(g, j, (int)(g->n - j < DOT_COLUMNS ? g->n - j : DOT_COLUMNS), widened);
    free(widened);
}

/* ---- fixed order, for other operands ---- */

/* Packs columns [j, j + n) of op(b) as [k, TILE_WIDTH], padded with zeros. */
static void pack_columns(const Gemm *g, int64_t j, int64_t n, real *packed) {
    memset(packed, 0, (size_t)(g->k * TILE_WIDTH) * sizeof *packed);
    for (int64_t p = 0; p < g->k; p++)
        for (int64_t q = 0; q < n; q++)
            packed[p * TILE_WIDTH + q] =
                g->transpose_b ? g->b[(j + q) * g->ldb + p] : g->b[p * g->ldb + j + q];
}

static void put_rows(const Gemm *g, int64_t i, int64_t m, int64_t j, int64_t n, const real *sums) {
    for (int64_t r = 0; r < m; r++)
        for (int64_t q = 0; q < n; q++) {
            real *c = &g->c[(i + r) * g->ldc + j + q], sum = sums[r * TILE_WIDTH + q];
            if (g->accumulate)
                *c += sum;
            else
                *c = g->bias ? sum + g->bias[j + q] : sum;
        }
}

static void run_tiles(void *arg, int64_t begin, int64_t end) {
    const Gemm *g = arg;
    real *packed = mem_aligned((size_t)(g->k * TILE_WIDTH) * sizeof *packed);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t j = tile * TILE_WIDTH, n = g->n - j < TILE_WIDTH ? g->n - j : TILE_WIDTH;
        pack_columns(g, j, n, packed);
        for (int64_t i = 0; i < g->m; i += TILE_ROWS) {
            int64_t m = g->m - i < TILE_ROWS ? g->m - i : TILE_ROWS;
            real sums[TILE_ROWS * TILE_WIDTH] = {0};
            tile_gemm((Tile){.m = m,
                             .n = TILE_WIDTH,
                             .k = g->k,
                             .a = g->a + (g->transpose_a ? i : i * g->lda),
                             .a_row = g->transpose_a ? 1 : g->lda,
                             .a_col = g->transpose_a ? g->lda : 1,
                             .b = packed,
                             .ldb = TILE_WIDTH,
                             .c = sums,
                             .ldc = TILE_WIDTH});
            put_rows(g, i, m, j, n, sums);
        }
    }
    free(packed);
}

void KERNEL(gemm)(const Device *device, const Gemm *g) {
    if (g->fixed_order && g->transpose_b && !g->transpose_a) {
        pool_for(device->pool, (g->n + DOT_UNIT - 1) / DOT_UNIT, grain_rows(g->m * g->k * DOT_UNIT), run_dots,
                 (void *)g);
        return;
    }
    if (g->fixed_order) {
        pool_for(device->pool, (g->n + TILE_WIDTH - 1) / TILE_WIDTH, grain_rows(g->m * g->k), run_tiles,
                 (void *)g);
        return;
    }
    openblas_set_num_threads(1); /* a single store to a process-wide variable, so it is cheap to repeat */
    pool_for(device->pool, panels(g->m > g->n ? g->m : g->n), 1, run_panels, (void *)g);
}
