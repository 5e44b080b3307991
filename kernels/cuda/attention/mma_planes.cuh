/* Functions that attention_mma.cu uses to load tiles of 16-bit numbers into shared memory, multiply them on
 * tensor cores, and store the results. */
#pragma once

#include "kernels/cuda/attention/flash.cuh"
#include "kernels/cuda/mma.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, OTHERS = 64, ROW_BYTES = 128 };

/* ---- planes: lines of 16-bit numbers in shared memory ---- */

/* A plane contains the first 64 columns of all LINES lines, then the next 64 columns, and so on. The 16-byte
 * pieces of a line are permuted, so that pieces with the same number in eight adjacent lines are in eight
 * different banks. */
template <int LINES> __device__ __forceinline__ uint32_t piece(uint32_t plane, int line, int column) {
    return plane + (column / 64 * LINES + line) * ROW_BYTES + ((column / 8 ^ line) & 7) * 16;
}
__host__ __device__ static inline int plane_bytes(int lines, int width) {
    return lines * ((width + 63) / 64) * ROW_BYTES;
}

/* Copies columns [first, first + width) of x to the plane, and sets the plane's other elements to 0. A thread
 * copies 8 of every 64 columns. x may have any alignment and strides. */
template <typename T, int LINES>
__device__ __noinline__ static void load_slowly(uint32_t plane, const Lines x, int first, int width) {
    const T *data = (const T *)x.cells.data + first;
#pragma unroll 1
    for (int line = (int)threadIdx.x / 8; line < LINES; line += THREADS / 8)
#pragma unroll 1
        for (int c = (int)threadIdx.x % 8 * 8; c < (width + 63) / 64 * 64; c += 64) {
            uint32_t v[4];
            const T *row = data + (line < x.n ? x.offset(line) : 0);
            const int n = line < x.n ? width : 0;
#pragma unroll
            for (int i = 0; i < 8; i += 2)
                v[i / 2] = pack<T>(c + i < n ? to_real<float>(row[c + i]) : 0,
                                   c + i + 1 < n ? to_real<float>(row[c + i + 1]) : 0);
            put_shared(piece<LINES>(plane, line, c), v);
        }
}
/* Copies lines to a plane like load_slowly, but faster if the lines are aligned and belong to one head. */
template <typename T, int LINES>
__device__ __forceinline__ void load_plane(uint32_t plane, const Lines &x, bool vector, int first,
                                           int width) {
    if (!vector || x.first_row > x.length - x.n) {
        load_slowly<T, LINES>(plane, x, first, width);
        return;
    }
    constexpr int STEP = THREADS / 8;
    const int line = (int)threadIdx.x / 8, column = (int)threadIdx.x % 8 * 8;
    const T *data = (const T *)x.cells.data + first, *row = data + x.offset(line) + column;
    uint32_t to = piece<LINES>(plane, line, column);
#pragma unroll 1
    for (int c = column; c < (width + 63) / 64 * 64; c += 64, row += 64, to += LINES * ROW_BYTES)
#pragma unroll
        for (int i = 0; i < LINES / STEP; i++) {
            const bool there = line + i * STEP < x.n && c < width;
            copy_async<16>(to + i * STEP * ROW_BYTES, there ? row + i * STEP * x.row_stride : data, there);
        }
}

/* Waits until all threads' copies are complete and no thread still reads the previous copies. */
__device__ __forceinline__ void all_arrived() {
    copies_arrived();
    __syncthreads();
}
/* Must be called before each tile. Loads the tile that is `ahead` (1 or 0) tiles after the current tile, if
 * that tile exists. Returns true if the current tile exists. The first `ahead` calls return false, because
 * the loop begins before the first tile. */
template <typename Load>
__device__ __forceinline__ bool turn(bool present, bool coming, int ahead, const Load &load) {
    if (present) all_arrived();
    if (coming) load();
    if (!ahead) all_arrived();
    return present;
}

/* Computes c = a b^T, where a consists of the lines of plane a from line `own` on, and b consists of the
 * lines of plane b. */
template <typename T, int M, int LINES>
__device__ __forceinline__ void tile_gemm(float (&c)[M][OTHERS / 8][4], uint32_t a, int own, uint32_t b,
                                          int width) {
    const int lane = threadIdx.x % 32, swap = lane % 8;
    a += (own + lane % 16) * ROW_BYTES;
    b += (lane % 8 + lane / 16 * 8) * ROW_BYTES;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[m][n][i] = 0;
    for (int left = width; left > 0; left -= 64, a += LINES * ROW_BYTES, b += OTHERS * ROW_BYTES)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t x[M][4], y[4];
#pragma unroll
            for (int m = 0; m < M; m++)
                load_matrices(x[m], a + m * 16 * ROW_BYTES + ((2 * k + lane / 16) ^ swap) * 16);
#pragma unroll
            for (int n = 0; n < OTHERS / 8; n += 2) {
                load_matrices(y, b + n * 8 * ROW_BYTES + ((2 * k + lane / 8 % 2) ^ swap) * 16);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply_add<T>(c[m][n], x[m], y[0], y[1]);
                    multiply_add<T>(c[m][n + 1], x[m], y[2], y[3]);
                }
            }
        }
}

/* Computes c += w b, where b consists of the first W columns of plane b. */
template <typename T, int M, int W>
__device__ __forceinline__ void add_lines(float (&c)[M][W / 8][4], const float (&w)[M][OTHERS / 8][4],
                                          uint32_t b) {
    const int lane = threadIdx.x % 32, swap = lane % 8;
    b += lane % 16 * ROW_BYTES;
#pragma unroll
    for (int k = 0; k < OTHERS / 16; k++) {
        uint32_t x[M][4], y[4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[m][i] = pack<T>(w[m][2 * k + i / 2][i % 2 * 2], w[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < W / 8; n += 2) {
            load_transposed(y, b + (n / 8 * OTHERS + k * 16) * ROW_BYTES + ((n % 8 + lane / 16) ^ swap) * 16);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add<T>(c[m][n], x[m], y[0], y[1]);
                multiply_add<T>(c[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Multiplies this warp's results by `factor`, and writes or adds the products to `to`, beginning at line `own`
 * and column `first`. The results pass through `room`, the warp's shared memory. factor[i] applies to row lane
 * / 4 + 8 * i. */
template <int W>
__device__ static void store(const Lines &to, bool add, int first, int width, int own,
                             const float (&c)[W / 8][4], const float (&factor)[2], float *room) {
    constexpr int PITCH = W + 8;
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < W / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            room[(lane / 4 + i / 2 * 8) * PITCH + n * 8 + lane % 4 * 2 + i % 2] = factor[i / 2] * c[n][i];
    __syncwarp();
#pragma unroll 1
    for (int l = 0; l < 16 && own + l < to.n; l++) {
        const int64_t row = to.offset(own + l) + first;
#pragma unroll 1
        for (int column = lane; column < W && first + column < width; column += 32)
            to.cells.put_or_add(row + column, room[l * PITCH + column], add);
    }
}
template <int W> constexpr int ROOM = 16 * (W + 8); /* number of floats per warp */
