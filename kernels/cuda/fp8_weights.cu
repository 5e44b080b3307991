/* Kernels for weights that are stored in FP8: casts of a part of a weight, and conversions of stored values for
 * GEMMs. Values and scales are bitwise equal to those of kernels/cpu/quantize.c. amaxes are updated in place; y
 * and inverse are written. */
#include <cuda_fp8.h>

#include "kernels/cuda/quantize.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, EACH = 4, SIDE = 64, WORDS = SIDE / 4 };

typedef struct Part {
    Cells x;
    int64_t n;
    Fp8PartAttr a;
} Part;

static Part part_of(const Call *c) {
    Part p = {};
    p.x = cells(c->in[0]), p.n = tensor_count(c->in[0]), p.a = *(const Fp8PartAttr *)c->attr;
    return p;
}

__device__ __forceinline__ float rounded(const Part &p, int64_t i) {
    const float x = p.x.get<float>(i);
    return p.a.rounded == BF16  ? __bfloat162float(__float2bfloat16_rn(x))
           : p.a.rounded == F16 ? __half2float(__float2half_rn(x))
                                : x;
}

__device__ __forceinline__ int64_t block_at(const Part &p, int64_t i) {
    const int64_t e = p.a.first + i;
    return fp8_block_of_each(p.a.blocks, p.a.rows, p.a.columns, e / p.a.columns, e % p.a.columns);
}

/* ---- amaxes ---- */

/* Comparing the bits of non-negative floats as integers gives the same order, and a maximum does not depend on
 * the order of updates. */
__device__ __forceinline__ void raise_to(const Cells &to, int64_t at, float x) {
    if (to.dtype == F64)
        atomicMax((long long *)to.data + at, __double_as_longlong((double)x));
    else
        atomicMax((int *)to.data + at, __float_as_int(x));
}

/* Blocks with the same blockIdx.y process the part's elements in one matrix. */
static __global__ void amax_of_part(Part p, Cells amaxes) {
    __shared__ float room[32];
    const int64_t size = p.a.rows * p.a.columns, at = blockIdx.y * size - p.a.first, begin = at < 0 ? 0 : at,
                  end = least(at + size, p.n);
    float most = 0;
    GRID_LOOP(i, end - begin) most = fmaxf(most, fabsf(rounded(p, begin + i)));
    most = block_max(most, room);
    if (threadIdx.x == 0 && begin < end) raise_to(amaxes, blockIdx.y, most);
}

/* Each warp processes the part's elements in 128 columns of one row. */
static __global__ void amaxes_of_part(Part p, Cells amaxes) {
    const int lane = threadIdx.x % 32;
    const int64_t across = (p.a.columns + FP8_BLOCK - 1) / FP8_BLOCK, first = p.a.first / p.a.columns,
                  rows = p.n ? (p.a.first + p.n - 1) / p.a.columns - first + 1 : 0;
    for (int64_t k = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; k < rows * across;
         k += (int64_t)gridDim.x * WARPS) {
        const int64_t row = first + k / across, column = k % across * FP8_BLOCK;
        float most = 0;
        for (int64_t i = column + lane; i < column + FP8_BLOCK && i < p.a.columns; i += 32) {
            const int64_t at = row * p.a.columns + i - p.a.first;
            if (at >= 0 && at < p.n) most = fmaxf(most, fabsf(rounded(p, at)));
        }
        most = warp_max(most);
        if (lane == 0 && most > 0)
            raise_to(amaxes, fp8_block_of_each(FP8_SQUARES, p.a.rows, p.a.columns, row, column), most);
    }
}

extern "C" void cuda_fp8_amax_part(const Call *c) {
    const Part p = part_of(c);
    const Cells amaxes = cells(c->out[0]);
    const dim3 grid(grid_for(c, least(p.n, p.a.rows * p.a.columns), 16 * THREADS), (unsigned)p.a.matrices);
    if (p.a.blocks == FP8_WHOLE)
        amax_of_part<<<grid, THREADS, 0, stream_of(c)>>>(p, amaxes);
    else
        amaxes_of_part<<<grid_for(c, ceil_div(p.n, FP8_BLOCK), WARPS), THREADS, 0, stream_of(c)>>>(p, amaxes);
    LAUNCHED();
}

/* ---- casts ---- */

typedef struct PartScales {
    Cells amaxes, state;
    int64_t state_step;
    float most;
    bool squares;

    __device__ __forceinline__ float get(int64_t block) const {
        if (state.data) return scale_of(state, block * state_step);
        const float amax = amaxes.get<float>(block);
        return squares ? power_of_two_scale(amax, most) : scale_for(amax, most, 1);
    }
} PartScales;

template <__nv_fp8_interpretation_t F> __device__ __forceinline__ uint8_t fp8_of(float x) {
    return x == x ? __nv_cvt_float_to_fp8(x, __NV_SATFINITE, F) : 0x7f;
}

/* Each thread casts four elements and writes them with one store. */
template <__nv_fp8_interpretation_t F>
static __global__ void cast_of_part(Part p, PartScales scales, uint8_t *y, bool aligned) {
    const bool one = p.a.blocks == FP8_WHOLE && p.a.matrices == 1;
    const float whole = one ? scales.get(0) : 0;
    GRID_LOOP(k, (p.n + EACH - 1) / EACH) {
        uchar4 four;
        uint8_t *v = (uint8_t *)&four;
        const int64_t first = EACH * k, rest = p.n - first;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i >= rest) break;
            const float scale = one ? whole : scales.get(block_at(p, first + i));
            v[i] = fp8_of<F>(__fmul_rn(rounded(p, first + i), scale));
        }
        if (aligned && rest >= EACH)
            *(uchar4 *)(y + first) = four;
        else
            for (int i = 0; i < EACH && i < rest; i++) y[first + i] = v[i];
    }
}

/* Writes the inverse scales of matrices and of their transposes, padded with zeros. */
static __global__ void inverses(PartScales scales, Cells inverse, Cells turned, int64_t matrices,
                                int64_t down, int64_t wide, int64_t across, int64_t turned_across) {
    GRID_LOOP(k, matrices * down * across) {
        inverse.put(k, k % across < wide ? __fdiv_rn(1, scales.get(k)) : 0);
    }
    if (!turned.data) return;
    GRID_LOOP(k, matrices * wide * turned_across) {
        const int64_t column = k / turned_across % wide, row = k % turned_across,
                      top = k / turned_across / wide * down;
        turned.put(k, row < down ? __fdiv_rn(1, scales.get((top + row) * across + column)) : 0);
    }
}

extern "C" void cuda_fp8_cast_part(const Call *c) {
    const Part p = part_of(c);
    const bool e4m3 = c->out[0]->dtype == F8E4M3, squares = p.a.blocks == FP8_SQUARES;
    const PartScales scales = {cells(c->in[1]), cells(c->in[2]), c->in[2] ? tensor_width(c->in[2]) : 0,
                               e4m3 ? 448.0f : 57344.0f, squares};
    const int64_t down = squares ? ceil_div(p.a.rows, FP8_BLOCK) : 1,
                  wide = squares ? ceil_div(p.a.columns, FP8_BLOCK) : 1,
                  across = fp8_blocks_across(p.a.blocks, p.a.columns),
                  turned = fp8_blocks_across(p.a.blocks, p.a.rows);
    uint8_t *y = data_of<uint8_t>(c->out[0]);
    const unsigned grid = grid_for(c, ceil_div(p.n, EACH), THREADS);
    const bool aligned = (uintptr_t)y % EACH == 0;
    inverses<<<grid_for(c, p.a.matrices * down * across, THREADS), THREADS, 0, stream_of(c)>>>(
        scales, cells(c->out[1]), cells(c->out[2]), p.a.matrices, down, wide, across, turned);
    LAUNCHED();
    if (e4m3)
        cast_of_part<__NV_E4M3><<<grid, THREADS, 0, stream_of(c)>>>(p, scales, y, aligned);
    else
        cast_of_part<__NV_E5M2><<<grid, THREADS, 0, stream_of(c)>>>(p, scales, y, aligned);
    LAUNCHED();
}

/* ---- stored values ---- */

/* NaNs are not multiplied, because the multiplication would change their bits, and the bits must equal the
 * CPU's. */
template <typename R>
static __global__ void decode(const uint8_t *x, Cells inverse, Cells y, int64_t rows, int64_t width,
                              Fp8Blocks blocks, __nv_fp8_interpretation_t format) {
    GRID_LOOP(i, rows * width) {
        const R q = (R)__half2float(__half(__nv_cvt_fp8_to_halfraw(x[i], format)));
        const R by = inverse.get<R>(fp8_block_of(blocks, rows, width, i / width, i % width));
        y.put(i, q == q ? q * by : (R)__uint_as_float(0x7fc00000u));
    }
}

extern "C" void cuda_fp8_decode(const Call *c) {
    const Tensor *x = c->in[0];
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const Fp8Blocks blocks = ((const Fp8CastAttr *)c->attr)->blocks;
    const __nv_fp8_interpretation_t format = x->dtype == F8E4M3 ? __NV_E4M3 : __NV_E5M2;
    REAL_SWITCH(c->in[1]->dtype,
                decode<R><<<grid_for(c, rows * width, THREADS), THREADS, 0, stream_of(c)>>>(
                    data_of<uint8_t>(x), cells(c->in[1]), cells(c->out[0]), rows, width, blocks, format));
    LAUNCHED();
}

/* A block transposes a tile of 64 by 64 elements of matrix blockIdx.y. If `words` is true, rows of x and y are read
 * and written in words of four bytes. */
static __global__ void __launch_bounds__(THREADS)
    transpose(const uint8_t *x, uint8_t *y, int64_t rows, int64_t width, int64_t across, bool words) {
    __shared__ uint8_t tile[SIDE][SIDE + 4];
    const int64_t row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    x += blockIdx.y * rows * width, y += blockIdx.y * rows * width;
    for (int k = threadIdx.x; k < SIDE * WORDS; k += THREADS) {
        const int r = k / WORDS, i = k % WORDS * 4;
        const uint8_t *from = x + (row + r) * width + column + i;
        if (words && row + r < rows && column + i < width)
            *(uchar4 *)&tile[r][i] = *(const uchar4 *)from;
        else
            for (int d = 0; d < 4; d++)
                if (row + r < rows && column + i + d < width) tile[r][i + d] = from[d];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < SIDE * WORDS; k += THREADS) {
        const int i = k / WORDS, r = k % WORDS * 4;
        uint8_t *to = y + (column + i) * rows + row + r;
        if (column + i >= width) continue;
        if (words && row + r < rows)
            *(uchar4 *)to = make_uchar4(tile[r][i], tile[r + 1][i], tile[r + 2][i], tile[r + 3][i]);
        else
            for (int d = 0; d < 4; d++)
                if (row + r + d < rows) to[d] = tile[r + d][i];
    }
}

extern "C" void cuda_fp8_transpose(const Call *c) {
    const int64_t rows = tensor_width(c->out[0]), width = tensor_width(c->in[0]),
                  across = ceil_div(width, SIDE), tiles = across * ceil_div(rows, SIDE);
    const uint8_t *x = data_of<uint8_t>(c->in[0]);
    uint8_t *y = data_of<uint8_t>(c->out[0]);
    const bool words = rows % 4 == 0 && width % 4 == 0 && (uintptr_t)x % 4 == 0 && (uintptr_t)y % 4 == 0;
    if (!tiles) return;
    const dim3 grid((unsigned)tiles, (unsigned)(tensor_rows(c->in[0]) / rows));
    transpose<<<grid, THREADS, 0, stream_of(c)>>>(x, y, rows, width, across, words);
    LAUNCHED();
}
