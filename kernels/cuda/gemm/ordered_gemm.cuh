/* Runs GEMMs in which every element is a single chain of multiply-adds in the order of its terms, as in
 * kernels/cpu/tile.h. An element therefore does not depend on the shape of the GEMM, and is bitwise equal to
 * the CPU's result. Operands may have any types. */
#pragma once

#include "kernels/cuda/common.cuh"

/* Describes c [m,n] = a b, plus c or a bias if requested. Element (i,p) of a is at a_at + i * a_row + p *
 * a_col, and element (p,j) of b is at b_at + p * b_row + j * b_col. For each of a and b, one of the two
 * strides must be 1. The bias begins at element bias_at of `bias`; in row i, the bias is multiplied by element
 * scale_at + i of `scale`. */
struct OrderedGemm {
    /* bias.data is NULL if there is no bias; scale.data is NULL if the factors are 1 */
    Cells a, b, c, bias, scale;
    int64_t a_at, a_row, a_col, b_at, b_row, b_col, c_at, c_row, c_col, bias_at, scale_at;
    int64_t m, n, k;
    /* bias_of_rows: true if the bias has one element per row of c, false if the bias has one element per
     * column */
    bool add, bias_of_rows;
};

enum { ORDERED_THREADS = 256, ORDERED_DEPTH = 16, ORDERED_PAD = 4 };

/* A thread's share of an operand tile. The tile has `height` lines (rows of a, or columns of b) of
 * ORDERED_DEPTH terms. Elements outside the operand are 0. Adjacent threads load adjacent elements: from one
 * line if its terms are contiguous, otherwise from adjacent lines. */
template <int height> struct Share {
    static constexpr int COUNT = height * ORDERED_DEPTH / ORDERED_THREADS;
    bool along;
    __device__ __forceinline__ int line(int q) const {
        const int i = threadIdx.x + q * ORDERED_THREADS;
        return along ? i / ORDERED_DEPTH : i % height;
    }
    __device__ __forceinline__ int term(int q) const {
        const int i = threadIdx.x + q * ORDERED_THREADS;
        return along ? i % ORDERED_DEPTH : i / height;
    }
    /* get(i, p) returns term p of line i. */
    template <typename R, typename Get>
    __device__ __forceinline__ void load(R *to, const Get &get, int64_t first, int64_t lines,
                                         int64_t terms) const {
#pragma unroll
        for (int q = 0; q < COUNT; q++) {
            const int64_t i = line(q), p = first + term(q);
            to[q] = i < lines && p < terms ? get(i, p) : (R)0;
        }
    }
    template <typename R>
    __device__ __forceinline__ void keep(const R *from, R (*to)[height + ORDERED_PAD]) const {
#pragma unroll
        for (int q = 0; q < COUNT; q++) to[term(q)][line(q)] = from[q];
    }
};

/* Computes the HEIGHT x WIDTH tile of c at (i0, j0) with a block of ORDERED_THREADS threads, each of which
 * computes ROWS x COLUMNS elements. a_of(i, p) and b_of(j, p) return term p of row i0 + i of a and of column j0 + j of
 * b. */
template <typename R, int HEIGHT, int WIDTH, int ROWS, int COLUMNS, typename A, typename B>
__device__ __forceinline__ void ordered_tile_of(const OrderedGemm &g, int64_t i0, int64_t j0, const A &a_of,
                                                const B &b_of) {
    static_assert(HEIGHT / ROWS * (WIDTH / COLUMNS) == ORDERED_THREADS,
                  "every thread must have the same number of elements");
    __shared__ alignas(32) R a[ORDERED_DEPTH][HEIGHT + ORDERED_PAD];
    __shared__ alignas(32) R b[ORDERED_DEPTH][WIDTH + ORDERED_PAD];
    const Share<HEIGHT> a_share = {g.a_col == 1};
    const Share<WIDTH> b_share = {g.b_row == 1};
    const int row = threadIdx.x / (WIDTH / COLUMNS) * ROWS,
              column = threadIdx.x % (WIDTH / COLUMNS) * COLUMNS;
    R next_a[Share<HEIGHT>::COUNT], next_b[Share<WIDTH>::COUNT], sum[ROWS][COLUMNS] = {};
    a_share.load(next_a, a_of, 0, g.m - i0, g.k);
    b_share.load(next_b, b_of, 0, g.n - j0, g.k);
    for (int64_t p0 = 0; p0 < g.k; p0 += ORDERED_DEPTH) {
        const int64_t p1 = p0 + ORDERED_DEPTH;
        __syncthreads();
        a_share.keep(next_a, a);
        b_share.keep(next_b, b);
        __syncthreads();
        a_share.load(next_a, a_of, p1, g.m - i0, g.k);
        b_share.load(next_b, b_of, p1, g.n - j0, g.k);
#pragma unroll
        for (int p = 0; p < ORDERED_DEPTH; p++) {
            const Vec<R, ROWS> x = *(const Vec<R, ROWS> *)&a[p][row];
            const Vec<R, COLUMNS> y = *(const Vec<R, COLUMNS> *)&b[p][column];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int q = 0; q < COLUMNS; q++) sum[r][q] = fma(x.v[r], y.v[q], sum[r][q]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int q = 0; q < COLUMNS; q++) {
            const int64_t i = i0 + row + r, j = j0 + column + q;
            if (i >= g.m || j >= g.n) continue;
            const R bias = g.bias.data ? g.bias.get<R>(g.bias_at + (g.bias_of_rows ? i : j)) : (R)0;
            const R x = !g.bias.data   ? sum[r][q]
                        : g.scale.data ? sum[r][q] + g.scale.get<R>(g.scale_at + i) * bias
                                       : sum[r][q] + bias;
            g.c.put_or_add(g.c_at + i * g.c_row + j * g.c_col, x, g.add);
        }
}

template <typename R, int HEIGHT, int WIDTH, int ROWS, int COLUMNS>
__device__ __forceinline__ void ordered_tile(const OrderedGemm &g, int64_t i0, int64_t j0) {
    const int64_t a_at = g.a_at + i0 * g.a_row, b_at = g.b_at + j0 * g.b_col;
    ordered_tile_of<R, HEIGHT, WIDTH, ROWS, COLUMNS>(
        g, i0, j0, [&](int64_t i, int64_t p) { return g.a.get<R>(a_at + i * g.a_row + p * g.a_col); },
        [&](int64_t j, int64_t p) { return g.b.get<R>(b_at + j * g.b_col + p * g.b_row); });
}
