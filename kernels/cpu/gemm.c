/* Computes GEMMs through CBLAS, or in a fixed order of summation. The kernels with a fixed order are also
 * faster than BLAS if there are few rows. BLAS runs single-threaded, and each thread of the pool computes
 * entire panels of the output. BLAS's order of summation depends on the shape of a panel's GEMM, so panels
 * must depend only on the shape of the full GEMM, not on the number of threads. */
#include "kernels/cpu/gemm.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/tile.h"
#include "tensor/float_bits.h"

#ifdef REAL_IS_DOUBLE
#define CBLAS_GEMM cblas_dgemm
#else
#define CBLAS_GEMM cblas_sgemm
#endif

/* For each panel, BLAS packs the undivided operand again. With narrower panels, the repeated packing would cost
 * more than a tenth of the speed. */
enum { PANEL_MIN = 384, PANELS_MAX = 64 };

/* Returns the number of panels, a power of two. The number of threads is usually a power of two as well, so
 * all threads get equal shares. */
static int64_t panels(int64_t n) {
    int64_t p = 1;
    while (p < PANELS_MAX && n / (2 * p) >= PANEL_MIN) p *= 2;
    return p;
}

static inline real scaled(const Gemm *g, int64_t i, int64_t j, real sum) {
    if (!g->column_scale) return sum;
    return (g->row_scale ? sum * g->row_scale[i] : sum) * g->column_scale[j];
}

/* Computes rows [i, i+m) and columns [j, j+n) of the output. */
static void part(const Gemm *g, int64_t i, int64_t m, int64_t j, int64_t n) {
    const real *a = g->a + (g->transpose_a ? i : i * g->lda), *b = g->b + (g->transpose_b ? j * g->ldb : j);
    real *c = g->c + i * g->ldc + j;
    CBLAS_GEMM(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
               g->transpose_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)g->k, 1, a, (int)g->lda, b,
               (int)g->ldb, g->accumulate ? 1 : 0, c, (int)g->ldc);
    for (int64_t r = 0; r < m; r++) {
        real *row = c + r * g->ldc;
        if (g->column_scale)
            for (int64_t q = 0; q < n; q++) row[q] = scaled(g, i + r, j + q, row[q]);
        if (!g->bias) continue;
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

/* A dot product has DOT_LANES chains of multiply-adds: chain l adds the products with k = l, l + DOT_LANES,
 * ... in order. A tree reduction then adds the chains. The result does not depend on other rows and columns.
 *
 * With few rows, the bandwidth for reading op(b) limits the GEMM. The columns of op(b) are then read one at a
 * time, because reading several streams is slower. */
enum {
    DOT_LANES = 64 / (int)sizeof(real),
    DOT_SUMS = 12, /* number of dot products in a block; their chains fit into registers */
    DOT_COLUMNS = 4,
    /* prefetch distance in bytes; with several rows and no prefetching, a core would issue its loads too
     * late */
    DOT_AHEAD = 2048,
    DOT_ROWS = 3,
    DOT_UNIT = 16,    /* number of columns per unit of work */
    DOT_FEW_ROWS = 16 /* if there are more rows, BLAS is faster although it copies op(b) */
};

/* Functions with the argument `type` are inlined, so that `type` is a compile-time constant. */
static inline __attribute__((always_inline)) real element(const void *x, DType type, int64_t i) {
    return type == BF16     ? (real)float_of_bf16(((const uint16_t *)x)[i])
           : type == F16    ? (real)float_of_f16(((const uint16_t *)x)[i])
           : type == I8     ? (real)((const int8_t *)x)[i]
           : type == F8E4M3 ? (real)float_of_e4m3(((const uint8_t *)x)[i])
                            : ((const real *)x)[i];
}

/* Adds the remaining products [begin, k), which do not fill all chains, to the first chains. */
static void add_last(const real *a, const void *b, DType type, int64_t begin, int64_t k, real *x) {
    for (int64_t p = begin; p < k; p++) x[p - begin] = multiply_add(a[p], element(b, type, p), x[p - begin]);
}

/* Adds the upper half of the chains to the lower half until one chain is left. */
static inline __attribute__((always_inline)) real add_chains(const real *x) {
    real half[DOT_LANES / 2], quarter[DOT_LANES / 4], eighth[DOT_LANES / 8];
#pragma omp simd
    for (int l = 0; l < DOT_LANES / 2; l++) half[l] = x[l] + x[l + DOT_LANES / 2];
#pragma omp simd
    for (int l = 0; l < DOT_LANES / 4; l++) quarter[l] = half[l] + half[l + DOT_LANES / 4];
    for (int l = 0; l < DOT_LANES / 8; l++) eighth[l] = quarter[l] + quarter[l + DOT_LANES / 8];
    return DOT_LANES == 8 ? eighth[0] : eighth[0] + eighth[DOT_LANES / 16];
}

/* Computes rows [i, i + rows) of `columns` columns, beginning at column j. `rows` and `columns` are
 * compile-time constants, because this function is inlined. */
static inline __attribute__((always_inline)) void dot_block(const Gemm *g, int64_t i, int rows, int64_t j,
                                                            const void *const *b, int columns, DType type) {
    real sum[DOT_SUMS][DOT_LANES];
    const real *a = g->a + i * g->lda;
    for (int s = 0; s < rows * columns; s++)
        for (int l = 0; l < DOT_LANES; l++) sum[s][l] = 0;
    const size_t size = type == REAL_TYPE ? sizeof(real) : dtype_is_16bit(type) ? sizeof(uint16_t) : 1;
    int64_t p = 0;
    for (; p + DOT_LANES <= g->k; p += DOT_LANES) {
        if (columns == 1 && rows > 1) __builtin_prefetch((const char *)b[0] + (size_t)p * size + DOT_AHEAD);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
#pragma omp simd
                for (int l = 0; l < DOT_LANES; l++)
                    sum[r * columns + c][l] = multiply_add(a[r * g->lda + p + l], element(b[c], type, p + l),
                                                           sum[r * columns + c][l]);
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            real *x = sum[r * columns + c], *out = &g->c[(i + r) * g->ldc + j + c];
            if (p < g->k) add_last(a + r * g->lda, b[c], type, p, g->k, x);
            *out = (g->accumulate ? *out
                    : g->bias     ? g->bias[j + c]
                                  : 0) +
                   scaled(g, i + r, j + c, add_chains(x));
        }
}

static inline __attribute__((always_inline)) void dot_column(const Gemm *g, int64_t j, const void *b,
                                                             DType type) {
    int64_t i = 0;
    for (; i + 8 <= g->m; i += 8) dot_block(g, i, 8, j, &b, 1, type);
    for (; i + 4 <= g->m; i += 4) dot_block(g, i, 4, j, &b, 1, type);
    for (; i + 2 <= g->m; i += 2) dot_block(g, i, 2, j, &b, 1, type);
    for (; i < g->m; i++) dot_block(g, i, 1, j, &b, 1, type);
}

static const void *narrow_at(const Gemm *g, int64_t i) {
    return (const char *)g->b_narrow + (size_t)i * dtype_size(g->b_type);
}

static void dot_few_rows(const Gemm *g, int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; j++) {
        const void *b = g->b ? (const void *)(g->b + j * g->ldb) : narrow_at(g, j * g->ldb);
        if (g->b)
            dot_column(g, j, b, REAL_TYPE);
        else if (g->b_type == BF16)
            dot_column(g, j, b, BF16);
        else if (g->b_type == F16)
            dot_column(g, j, b, F16);
        else if (g->b_type == I8)
            dot_column(g, j, b, I8);
        else
            dot_column(g, j, b, F8E4M3);
    }
}

/* Computes the columns [j, j + n). */
static void dot_columns(const Gemm *g, int64_t j, int n, real *widened) {
    const void *b[DOT_COLUMNS];
    for (int c = 0; c < n; c++) {
        b[c] = g->b ? g->b + (j + c) * g->ldb : widened + c * g->k;
        if (!g->b)
            dtype_convert(widened + c * g->k, REAL_TYPE, narrow_at(g, (j + c) * g->ldb), g->b_type,
                          (size_t)g->k);
    }
    int64_t i = 0;
    for (; n == DOT_COLUMNS && i + DOT_ROWS <= g->m; i += DOT_ROWS)
        dot_block(g, i, DOT_ROWS, j, b, DOT_COLUMNS, REAL_TYPE);
    for (; n == DOT_COLUMNS && i < g->m; i++) dot_block(g, i, 1, j, b, DOT_COLUMNS, REAL_TYPE);
    for (; i < g->m; i++)
        for (int c = 0; c < n; c++) dot_block(g, i, 1, j + c, b + c, 1, REAL_TYPE);
}

static void run_dots(void *arg, int64_t begin, int64_t end) {
    const Gemm *g = arg;
    const int64_t first = begin * DOT_UNIT, last = end * DOT_UNIT < g->n ? end * DOT_UNIT : g->n;
    if (g->m <= DOT_FEW_ROWS) {
        dot_few_rows(g, first, last);
        return;
    }
    real *widened = g->b ? NULL : mem_aligned((size_t)(DOT_COLUMNS * g->k) * sizeof(real));
    for (int64_t j = first; j < last; j += DOT_COLUMNS)
        dot_columns(g, j, (int)(last - j < DOT_COLUMNS ? last - j : DOT_COLUMNS), widened);
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

/* ---- 16 or 8 bits ---- */

typedef struct Widening {
    const Gemm *g;
    real *b;
    int64_t rows, columns;
} Widening;

static void widen_rows(void *arg, int64_t begin, int64_t end) {
    const Widening *w = arg;
    for (int64_t i = begin; i < end; i++)
        dtype_convert(w->b + i * w->columns, REAL_TYPE, narrow_at(w->g, i * w->g->ldb), w->g->b_type,
                      (size_t)w->columns);
}

/* Converts b to `real`, and runs the GEMM on the copy. */
static void run_widened(const Device *device, const Gemm *g) {
    Widening w = {.g = g, .rows = g->transpose_b ? g->n : g->k, .columns = g->transpose_b ? g->k : g->n};
    w.b = mem_aligned((size_t)(w.rows * w.columns) * sizeof(real));
    pool_for(device->pool, w.rows, grain_rows(w.columns), widen_rows, &w);
    Gemm wide = *g;
    wide.b = w.b, wide.b_narrow = NULL, wide.ldb = w.columns;
    KERNEL(gemm)(device, &wide);
    free(w.b);
}

void KERNEL(gemm)(const Device *device, const Gemm *g) {
    if ((g->fixed_order || g->m <= DOT_FEW_ROWS) && g->transpose_b && !g->transpose_a) {
        pool_for(device->pool, (g->n + DOT_UNIT - 1) / DOT_UNIT, grain_rows(g->m * g->k * DOT_UNIT), run_dots,
                 (void *)g);
        return;
    }
    if (g->b_narrow) {
        run_widened(device, g);
        return;
    }
    if (g->fixed_order) {
        pool_for(device->pool, (g->n + TILE_WIDTH - 1) / TILE_WIDTH, grain_rows(g->m * g->k), run_tiles,
                 (void *)g);
        return;
    }
    openblas_set_num_threads(1); /* sets one process-wide variable, so repeating this call is cheap */
    pool_for(device->pool, panels(g->m > g->n ? g->m : g->n), 1, run_panels, (void *)g);
}
