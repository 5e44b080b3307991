/* Conversions of a tile of numbers to FP8. The hardware rounds values to nearest, ties to even, with the same results
 * as src/tensor/fp8.c. Values that overflow become the largest FP8 value, and NaN becomes 0x7f. */
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/quantize.cuh"

/* A block processes a tile of 128 by 128 elements. A thread processes 8 by 8 elements: columns from SIDE * lane, and
 * rows from SIDE * line. */
enum {
    TILE = FP8_BLOCK,
    THREADS = 256,
    SIDE = 8,
    LANES = TILE / SIDE,
    WARPS = THREADS / 32,
    HIGHEST_STACK = 4 /* a stack of at most 2^4 tiles, whose columns are 2 KB long in yt */
};

/* Returns the distance between the states of matrices, or 0 if there are no states. */
static inline int64_t width_of(const Tensor *states) { return states ? tensor_width(states) : 0; }

template <__nv_fp8_interpretation_t F> constexpr float MOST = F == __NV_E4M3 ? 448.0f : 57344.0f;

#define FORMAT_SWITCH(dtype, ...)                                                                            \
    do {                                                                                                     \
        if ((dtype) == F8E4M3) {                                                                             \
            constexpr __nv_fp8_interpretation_t F = __NV_E4M3;                                               \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            constexpr __nv_fp8_interpretation_t F = __NV_E5M2;                                               \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

template <__nv_fp8_interpretation_t F> __device__ __forceinline__ uint32_t fp8_of(float x) {
    return x == x ? __nv_cvt_float_to_fp8(x, __NV_SATFINITE, F) : 0x7f;
}

template <__nv_fp8_interpretation_t F>
__device__ __forceinline__ uint32_t four_fp8(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, F) |
           (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, F) << 16;
#else
    return fp8_of<F>(a) | fp8_of<F>(b) << 8 | fp8_of<F>(c) << 16 | fp8_of<F>(d) << 24;
#endif
}

/* ---- a thread's elements ---- */

template <typename T> struct Held {
    Run<T, SIDE> row[SIDE];
    int height; /* number of rows inside x; the other rows are 0 */

    __device__ __forceinline__ float operator()(int r, int k) const { return row[r].get(k); }
};

template <typename T>
__device__ __forceinline__ void load_held(const T *from, int64_t pitch, int height, Held<T> &x) {
    x.height = height;
#pragma unroll
    for (int r = 0; r < SIDE; r++, from += pitch) {
        if (r < height)
            x.row[r] = load_run<T, SIDE>(from, 0, SIDE, true);
        else
            x.row[r].clear();
    }
}

template <typename T> __device__ __forceinline__ float largest_of(const Held<T> &x) {
    Largest<T> most;
#pragma unroll
    for (int r = 0; r < SIDE; r++) most.take(x.row[r]);
    return most.get();
}

/* Records an amax. Comparing the bits of non-negative floats as integers gives the same order, and a maximum does not
 * depend on the order of updates. */
__device__ __forceinline__ void update_amax(float *state, float most) {
    atomicMax((int *)(state + 1), __float_as_int(most));
}

/* ---- scales of blocks ---- */

/* The factors for a thread's rows and columns. A cast uses either the row factors or the column factors; the
 * unused factors are 1. */
struct Scales {
    float row[SIDE], column[SIDE];
};

/* Computes the scale of each row from the elements of the 16 threads that share the row. */
template <typename T> __device__ __forceinline__ void row_scales(const Held<T> &x, float most, float *scale) {
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        float amax = 0;
#pragma unroll
        for (int k = 0; k < SIDE; k++) amax = fmaxf(amax, fabsf(x(r, k)));
#pragma unroll
        for (int d = LANES / 2; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
        scale[r] = power_of_two_scale(amax, most);
    }
}

/* Computes the scale of each column, first over the two threads of each warp that share the column, then over
 * all warps. */
template <typename T>
__device__ __forceinline__ void column_scales(const Held<T> &x, int lane, float most, float *scale) {
    __shared__ float room[WARPS][TILE];
#pragma unroll
    for (int k = 0; k < SIDE; k++) {
        float amax = 0;
#pragma unroll
        for (int r = 0; r < SIDE; r++) amax = fmaxf(amax, fabsf(x(r, k)));
        room[threadIdx.x / 32][SIDE * lane + k] = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, LANES));
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SIDE; k++) {
        float amax = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) amax = fmaxf(amax, room[w][SIDE * lane + k]);
        scale[k] = power_of_two_scale(amax, most);
    }
}

/* ---- values ---- */

typedef uint32_t Fp8Rows[2][SIDE]; /* four columns of each row */

template <typename T, __nv_fp8_interpretation_t F, bool BLOCKS>
__device__ __forceinline__ void convert(const Held<T> &x, const Scales &s, float scale, Fp8Rows &half) {
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        float v[SIDE];
#pragma unroll
        for (int k = 0; k < SIDE; k++)
            v[k] = __fmul_rn(x(r, k), BLOCKS ? __fmul_rn(s.row[r], s.column[k]) : scale);
        half[0][r] = four_fp8<F>(v[0], v[1], v[2], v[3]);
        half[1][r] = four_fp8<F>(v[4], v[5], v[6], v[7]);
    }
}

__device__ __forceinline__ void write_rows(uint8_t *to, int64_t pitch, int height, const Fp8Rows &half) {
#pragma unroll
    for (int r = 0; r < SIDE; r++, to += pitch)
        if (r < height) *(uint2 *)to = make_uint2(half[0][r], half[1][r]);
}

/* Transposes four rows of four FP8 values. */
__device__ __forceinline__ void turn(const uint32_t *row, uint32_t (&column)[4]) {
    const uint32_t a = __byte_perm(row[0], row[1], 0x5140), b = __byte_perm(row[2], row[3], 0x5140),
                   c = __byte_perm(row[0], row[1], 0x7362), d = __byte_perm(row[2], row[3], 0x7362);
    column[0] = __byte_perm(a, b, 0x5410), column[1] = __byte_perm(a, b, 0x7632);
    column[2] = __byte_perm(c, d, 0x5410), column[3] = __byte_perm(c, d, 0x7632);
}

/* Returns the index of a line in the transposed tile. A line is a column's elements in 8 consecutive rows.
 * Because the distance between columns is a multiple of the number of banks, lines are permuted: 16 threads
 * that write different columns concurrently then use 16 different pairs of banks. */
__device__ __forceinline__ int turned_at(int column, int line) {
    return column * LANES + (line ^ column / SIDE);
}

__device__ __forceinline__ void turn_rows(const Fp8Rows &half, int lane, int line, uint2 *turned) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t upper[4], lower[4];
        turn(half[h], upper), turn(half[h] + 4, lower);
#pragma unroll
        for (int k = 0; k < 4; k++)
            turned[turned_at(SIDE * lane + 4 * h + k, line)] = make_uint2(upper[k], lower[k]);
    }
}

/* Writes a tile to yt [width,rows]; the tile's first element is x[row][column]. Each thread writes two adjacent lines
 * of a column with a single store, so that eight threads write contiguous bytes. */
__device__ __forceinline__ void write_turned(uint8_t *yt, int64_t row, int64_t rows, int64_t column,
                                             int64_t width, const uint2 *turned) {
    enum { PAIRS = LANES / 2, APART = THREADS / PAIRS, COLUMNS = TILE / APART };
    const int line = threadIdx.x % PAIRS * 2, within = threadIdx.x / PAIRS;
    column += within, row += SIDE * line;
    uint8_t *to = yt + column * rows + row;
    uint4 values[COLUMNS];
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
        const int at = turned_at(within + k * APART, line);
        values[k] = *(const uint4 *)(turned + at / 2 * 2);
        if (at % 2) /* turned_at has swapped the two lines */
            values[k] = make_uint4(values[k].z, values[k].w, values[k].x, values[k].y);
    }
#pragma unroll
    for (int k = 0; k < COLUMNS; k++, to += APART * rows)
        if (row < rows && column + k * APART < width) *(uint4 *)to = values[k];
}
