/* Tiles for GEMMs y = x w^T + bias with wgmma (gemm_invariant.cu, gemm_quantized.cu). Results do not depend on the
 * number of rows. A persistent block computes several tiles in sequence. One warp copies slices of the operands to
 * shared memory, and other warps multiply them. */
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"

/* A tile has 64 * GROUPS rows and N columns. A slice consists of DEPTH lines (of 128 bytes) of each row of w,
 * and X_PER_W times as many lines of each row of x. BLOCKS is the number of blocks that run concurrently on
 * each multiprocessor. If EIGHT is true, x has at most eight rows. Shared memory then contains only eight rows,
 * and wgmma reads them again as the tile's remaining rows. The sums of these rows are not stored. */
template <int GROUPS_, int N_, int DEPTH_, int STAGES_, int BLOCKS_, bool EIGHT_ = false, int X_PER_W = 1>
struct Shape {
    static constexpr int GROUPS = GROUPS_, N = N_, DEPTH = DEPTH_, STAGES = STAGES_, BLOCKS = BLOCKS_,
                         ROWS = 64 * GROUPS, THREADS = GROUPS * GROUP_THREADS + 32, LINES = EIGHT_ ? 8 : ROWS,
                         X_LINES = DEPTH * X_PER_W, X_BYTES = LINES * LINE_BYTES, W_BYTES = N * LINE_BYTES,
                         W_AT = X_LINES * X_BYTES, STAGE_BYTES = W_AT + DEPTH * W_BYTES,
                         ROOM = STAGES * STAGE_BYTES + 1024, STRIDE = EIGHT_ ? 0 : 8 * LINE_BYTES;
};

struct RowTiles {
    int64_t m, n;
    int slices, down, across,
        box;     /* number of slices, numbers of tiles down and across, and number of rows per copy of x */
    bool steady; /* LinearAttr */
};

/* The arguments of a launch whose tiles have the shape S: x is [m,k] and w [n,k]. A line of w has `line` elements. */
template <typename S> struct RowLaunch {
    RowTiles g;
    CUtensorMap x, w;
    dim3 blocks;

    RowLaunch(const Call *c, const Tensor *x_mk, const Tensor *w_nk, int64_t m, int64_t n, int64_t k,
              int line, bool steady) {
        g = {m, n};
        g.slices = (int)ceil_div(k, line * S::DEPTH);
        g.down = (int)ceil_div(m, S::ROWS), g.across = (int)ceil_div(n, S::N);
        g.box = (int)least(S::LINES, ceil_div(m, 8) * 8);
        g.steady = steady;
        x = tile_map(c, x_mk, m, k, k, 1, k, g.box), w = tile_map(c, w_nk, n, k, k, 1, k, S::N);
        const int64_t most = (int64_t)cuda_of(c->device)->multiprocessors * S::BLOCKS;
        blocks = dim3((unsigned)least(most, (int64_t)g.down * g.across));
    }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Copies the slices of all tiles. Only one thread may call this function. A line of x has X_LINE elements,
 * and a line of w has W_LINE elements. */
template <typename S, int X_LINE, int W_LINE>
__device__ __forceinline__ void load_slices(const RowTiles &g, const CUtensorMap *x, const CUtensorMap *w,
                                            uint32_t room, uint64_t *full, uint64_t *empty) {
    Ring<S::STAGES> at;
    const auto load_w = [&](int column, int slice, int stage) {
        const uint32_t to = room + stage * S::STAGE_BYTES + S::W_AT, bar = shared_address(&full[stage]);
        barrier_expect(bar, S::X_LINES * g.box * LINE_BYTES + S::DEPTH * S::W_BYTES);
#pragma unroll
        for (int i = 0; i < S::DEPTH; i++)
            copy_tile(to + i * S::W_BYTES, w, bar, (slice * S::DEPTH + i) * W_LINE, 0, column);
    };
    int early = 0; /* number of slices whose weights can be loaded before the previous kernel ends */
    const int first = blockIdx.x / g.down * S::N;
#pragma unroll 1
    for (; g.steady && early < S::STAGES && early < g.slices; early++) load_w(first, early, early);
    wait_for_kernel_before();
#pragma unroll 1
    for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x) {
        const int row = tile % g.down * S::ROWS, column = tile / g.down * S::N;
#pragma unroll 1
        for (int slice = 0; slice < g.slices; slice++, at.next()) {
            const uint32_t to = room + at.stage * S::STAGE_BYTES, bar = shared_address(&full[at.stage]);
            if (--early < 0) {
                barrier_wait(shared_address(&empty[at.stage]), at.phase ^ 1);
                load_w(column, slice, at.stage);
            }
#pragma unroll
            for (int i = 0; i < S::X_LINES; i++)
                copy_tile(to + i * S::X_BYTES, x, bar, (slice * S::X_LINES + i) * X_LINE, 0, row);
        }
    }
}

/* Multiplies the sums by the factors of their rows and columns. */
template <int N8>
__device__ __forceinline__ void scale_sums(const RowTiles &g, float (&sum)[N8][4], const float *of_row,
                                           const float *of_column, int64_t row, int64_t first) {
    const int lane = threadIdx.x % 32;
    row += lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float by = of_row && row + 8 * h < g.m ? of_row[row + 8 * h] : 1;
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) sum[n][2 * h + i] *= by;
    }
#pragma unroll
    for (int n = 0; n < N8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t at = first + 8 * n + lane % 4 * 2 + i;
            const float by = at < g.n ? of_column[at] : 0;
            sum[n][i] *= by, sum[n][2 + i] *= by;
        }
}

/* Stores a group's sums. The first sum belongs to row `row` and column `first`. */
template <typename T, int N8>
__device__ __forceinline__ void put_sums(const RowTiles &g, float (&sum)[N8][4], const T *bias, T *y,
                                         int64_t row, int64_t first) {
    const int lane = threadIdx.x % 32;
    row += lane / 4;
    if (bias) {
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int64_t at = first + 8 * n + lane % 4 * 2 + i;
                const float b = at < g.n ? to_real<float>(bias[at]) : 0;
                sum[n][i] += b, sum[n][2 + i] += b;
            }
    }
#pragma unroll
    for (int n = 0; n < N8; n += 4)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = pack<T>(sum[n + i][2 * h], sum[n + i][2 * h + 1]);
            gather_columns(x);
            const int64_t at = first + 8 * (n + lane % 4);
            if (row + 8 * h < g.m && at < g.n)
                *(uint4 *)(y + (row + 8 * h) * g.n + at) = make_uint4(x[0], x[1], x[2], x[3]);
        }
}

#endif
