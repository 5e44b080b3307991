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

/* ---- fixed order ---- */

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
    if (g->fixed_order) {
        pool_for(device->pool, (g->n + TILE_WIDTH - 1) / TILE_WIDTH, grain_rows(g->m * g->k), run_tiles,
                 (void *)g);
        return;
    }
    openblas_set_num_threads(1); /* a single store to a process-wide variable, so it is cheap to repeat */
    pool_for(device->pool, panels(g->m > g->n ? g->m : g->n), 1, run_panels, (void *)g);
}
