/* Converts operands and their transposes to FP8 in one pass over x. Scales are computed as in
 * kernels/cuda/quantize.cu. The hardware rounds values to nearest, ties to even, with the same results as
 * src/tensor/fp8.c. Values that overflow become the largest FP8 value, and NaN becomes 0x7f. y, yt and
 * inverse are written; newest is updated in place. */
#include <cuda_fp8.h>

#include "kernels/cuda/quantize.cuh"

/* A block processes a tile of 128 by 128 elements. A thread processes 8 by 8 elements. */
enum {
    TILE = FP8_BLOCK,
    THREADS = 256,
    SIDE = 8,
    LANES = TILE / SIDE,
    WARPS = THREADS / 32,
    HIGHEST_STACK = 4 /* a stack of at most 2^4 tiles, whose columns are 2 KB long in yt */
};

typedef struct Fp8Cast {
    const void *x;
    uint8_t *y, *yt;
    const float *state;
    float *inverse, *newest;
    int64_t rows, width;
    /* `across` is the number of tiles in a row. A stack is a column of 2^stack tiles. All tiles in a stack are
     * processed before the tiles in the next stack to its right. */
    uint32_t across, stack;
    Fp8Blocks blocks;
} Fp8Cast;

template <__nv_fp8_interpretation_t F> constexpr float MOST = F == __NV_E4M3 ? 448.0f : 57344.0f;

/* ---- conversion ---- */

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

/* ---- a tile ---- */

template <typename T> struct Held {
    Run<T, SIDE> row[SIDE];
    bool inside; /* true if all elements are inside x; otherwise none is, because sizes are multiples of 16 */

    __device__ __forceinline__ float operator()(int r, int k) const { return row[r].get(k); }
};

/* A thread's position: the first row of its tile, and the thread's first column. */
struct Place {
    int64_t row, column;
    int lane, line;
    __device__ __forceinline__ int64_t row_of(int r) const { return row + SIDE * line + r; }
};

/* Tiles are processed from last to first, because the previous kernel wrote the end of x last, so the caches
 * still contain it. */
__device__ __forceinline__ Place place_of(const Fp8Cast &c) {
    const uint32_t tile = gridDim.x - 1 - blockIdx.x, stacks = tile >> c.stack, band = stacks / c.across,
                   down = band << c.stack | (tile & ((1u << c.stack) - 1));
    Place p;
    p.lane = threadIdx.x % LANES, p.line = threadIdx.x / LANES;
    p.row = (int64_t)down * TILE, p.column = (int64_t)(stacks - band * c.across) * TILE + SIDE * p.lane;
    return p;
}

template <typename T> __device__ __forceinline__ void load(const Fp8Cast &c, const Place &p, Held<T> &x) {
    const T *from = (const T *)c.x + p.row_of(0) * c.width + p.column;
    x.inside = p.column < c.width && p.row_of(0) < c.rows;
#pragma unroll
    for (int r = 0; r < SIDE; r++, from += c.width) {
        if (x.inside)
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

/* The factors for a thread's rows and columns. A cast uses either the row factors or the column factors; the
 * unused factors are 1. */
struct Scales {
    float row[SIDE], column[SIDE];
};

/* Computes the scale of each row from the elements of the 16 threads that share the row. */
template <typename T>
__device__ __forceinline__ void scale_rows(const Fp8Cast &c, const Place &p, const Held<T> &x, float most,
                                           Scales &s) {
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        float amax = 0;
#pragma unroll
        for (int k = 0; k < SIDE; k++) amax = fmaxf(amax, fabsf(x(r, k)));
#pragma unroll
        for (int d = LANES / 2; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
        s.row[r] = power_of_two_scale(amax, most);
        if (p.lane == 0 && x.inside)
            c.inverse[fp8_block_of(FP8_ROWS, c.rows, c.width, p.row_of(r), p.column)] =
                __fdiv_rn(1, s.row[r]);
    }
}

/* Computes the scale of each column, first over the two threads of each warp that share the column, then over
 * all warps. */
template <typename T>
__device__ __forceinline__ void scale_columns(const Fp8Cast &c, const Place &p, const Held<T> &x, float most,
                                              Scales &s) {
    __shared__ float room[WARPS][TILE];
#pragma unroll
    for (int k = 0; k < SIDE; k++) {
        float amax = 0;
#pragma unroll
        for (int r = 0; r < SIDE; r++) amax = fmaxf(amax, fabsf(x(r, k)));
        room[threadIdx.x / 32][SIDE * p.lane + k] = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, LANES));
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SIDE; k++) {
        float amax = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) amax = fmaxf(amax, room[w][SIDE * p.lane + k]);
        s.column[k] = power_of_two_scale(amax, most);
        if (p.line == 0 && p.column < c.width)
            c.inverse[fp8_block_of(FP8_ROWS, c.width, c.rows, p.column + k, p.row)] =
                __fdiv_rn(1, s.column[k]);
    }
}

/* Computes the scale of the tile, and pads `inverse` with zeros after the last tile of a row. */
template <typename T>
__device__ __forceinline__ void scale_square(const Fp8Cast &c, const Place &p, const Held<T> &x, float most,
                                             Scales &s) {
    __shared__ float room[32];
    const float scale = power_of_two_scale(block_max(largest_of(x), room), most);
#pragma unroll
    for (int k = 0; k < SIDE; k++) s.column[k] = scale;
    if (threadIdx.x) return;
    const int64_t rows = c.y ? c.rows : c.width, width = c.y ? c.width : c.rows, row = c.y ? p.row : p.column,
                  column = c.y ? p.column : p.row;
    const int64_t at = fp8_block_of(FP8_SQUARES, rows, width, row, column);
    c.inverse[at] = __fdiv_rn(1, scale);
    if (column + TILE < width) return;
    for (int64_t i = column / TILE + 1, k = 1; i < fp8_blocks_across(FP8_SQUARES, width); i++, k++)
        c.inverse[at + k] = 0;
}

template <typename T>
__device__ __forceinline__ void scale_blocks(const Fp8Cast &c, const Place &p, const Held<T> &x, float most,
                                             Scales &s) {
#pragma unroll
    for (int k = 0; k < SIDE; k++) s.row[k] = s.column[k] = 1;
    if (c.blocks == FP8_SQUARES)
        scale_square(c, p, x, most, s);
    else if (c.y)
        scale_rows(c, p, x, most, s);
    else
        scale_columns(c, p, x, most, s);
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

/* Writes y to memory, and the transposed columns to `turned`. */
template <typename T, __nv_fp8_interpretation_t F, bool BLOCKS>
__device__ __forceinline__ void convert(const Fp8Cast &c, const Place &p, const Held<T> &x, const Scales &s,
                                        float scale, uint2 *turned) {
    uint32_t half[2][SIDE]; /* four columns of each row, as FP8 */
    uint8_t *to = c.y + p.row_of(0) * c.width + p.column;
#pragma unroll
    for (int r = 0; r < SIDE; r++, to += c.width) {
        float v[SIDE];
#pragma unroll
        for (int k = 0; k < SIDE; k++)
            v[k] = __fmul_rn(x(r, k), BLOCKS ? __fmul_rn(s.row[r], s.column[k]) : scale);
        half[0][r] = four_fp8<F>(v[0], v[1], v[2], v[3]);
        half[1][r] = four_fp8<F>(v[4], v[5], v[6], v[7]);
        if (c.y && x.inside) *(uint2 *)to = make_uint2(half[0][r], half[1][r]);
    }
    if (!c.yt) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t upper[4], lower[4];
        turn(half[h], upper), turn(half[h] + 4, lower);
#pragma unroll
        for (int k = 0; k < 4; k++)
            turned[turned_at(SIDE * p.lane + 4 * h + k, p.line)] = make_uint2(upper[k], lower[k]);
    }
}

/* Each thread writes two adjacent lines of a column with a single store, so that eight threads write
 * contiguous bytes. A line has eight rows. */
__device__ __forceinline__ void write_turned(const Fp8Cast &c, const Place &p, const uint2 *turned) {
    enum { PAIRS = LANES / 2, APART = THREADS / PAIRS, COLUMNS = TILE / APART };
    const int line = threadIdx.x % PAIRS * 2, column = threadIdx.x / PAIRS;
    const int64_t first = p.column - SIDE * p.lane + column, row = p.row + SIDE * line;
    uint8_t *to = c.yt + first * c.rows + row;
    uint4 values[COLUMNS];
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
        const int at = turned_at(column + k * APART, line);
        values[k] = *(const uint4 *)(turned + at / 2 * 2);
        if (at % 2) /* turned_at has swapped the two lines */
            values[k] = make_uint4(values[k].z, values[k].w, values[k].x, values[k].y);
    }
#pragma unroll
    for (int k = 0; k < COLUMNS; k++, to += APART * c.rows)
        if (row < c.rows && first + k * APART < c.width) *(uint4 *)to = values[k];
}

template <typename T, __nv_fp8_interpretation_t F, bool BLOCKS>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 2 && !BLOCKS ? 3 : 2) write_values(Fp8Cast c) {
    __shared__ alignas(16) uint2 turned[TILE * LANES];
    __shared__ float room[32];
    const Place p = place_of(c);
    if (p.row >= c.rows) return; /* the last stack may extend beyond x */
    Held<T> x;
    Scales s;
    float scale = 1;
    load(c, p, x);
    if (BLOCKS) {
        scale_blocks(c, p, x, MOST<F>, s);
    } else {
        scale = c.state && *c.state > 0 ? *c.state : 1;
        if (p.row == 0 && p.column == 0 && p.line == 0) *c.inverse = __fdiv_rn(1, scale);
    }
    convert<T, F, BLOCKS>(c, p, x, s, scale, turned);
    if (c.yt) {
        __syncthreads();
        write_turned(c, p, turned);
    }
    if (!c.newest) return;
    const float most = block_max(largest_of(x), room);
    /* Comparing the bits of non-negative floats as integers gives the same order, and a maximum does not depend
     * on the order of updates. */
    if (threadIdx.x == 0) atomicMax((int *)(c.newest + 1), __float_as_int(most));
}

/* ---- any sizes, types and addresses ---- */

/* A matrix of FP8 values. Element (r, i) is the value of x[r * row + i * column]. */
typedef struct Matrix {
    Cells x, state, inverse;
    int64_t rows, columns, row, column;
    Fp8Blocks blocks;
    uint8_t *values;
} Matrix;

/* Each warp processes the elements of one block or, if there is only one scale, 128 columns of a row. */
template <typename R, __nv_fp8_interpretation_t F> static __global__ void write_blocks(Matrix m) {
    const int lane = threadIdx.x % 32;
    const int64_t each = m.blocks == FP8_SQUARES ? TILE : 1, across = (m.columns + TILE - 1) / TILE,
                  blocks = (m.rows + each - 1) / each * across;
    const float whole = m.state.data ? scale_of(m.state) : 1;
    if (m.blocks == FP8_WHOLE && blockIdx.x == 0 && threadIdx.x == 0)
        m.inverse.put(0, (R)__fdiv_rn(1, whole));
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < blocks;
         i += (int64_t)gridDim.x * WARPS) {
        const int64_t row = i / across * each, column = i % across * TILE;
        const int64_t high = m.rows - row < each ? m.rows - row : each,
                      wide = m.columns - column < TILE ? m.columns - column : TILE,
                      at = fp8_block_of(m.blocks, m.rows, m.columns, row, column);
        float amax = 0, scale = whole;
        for (int64_t k = lane; m.blocks != FP8_WHOLE && k < high * wide; k += 32)
            amax = larger_size(amax, m.x.get<R>((row + k / wide) * m.row + (column + k % wide) * m.column));
        if (m.blocks != FP8_WHOLE) {
            scale = power_of_two_scale(warp_max(amax), MOST<F>);
            if (lane == 0) m.inverse.put(at, (R)__fdiv_rn(1, scale));
        }
        for (int64_t k = lane; k < high * wide; k += 32) {
            const float v = (float)m.x.get<R>((row + k / wide) * m.row + (column + k % wide) * m.column);
            m.values[(row + k / wide) * m.columns + column + k % wide] =
                (uint8_t)fp8_of<F>(__fmul_rn(v, scale));
        }
        const int64_t pads = fp8_blocks_across(m.blocks, m.columns) - across;
        if (m.blocks == FP8_SQUARES && column / TILE == across - 1 && lane < pads)
            m.inverse.put(at + 1 + lane, (R)0);
    }
}

/* ---- launches ---- */

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

/* Returns true if the fast kernel, which processes tiles, supports the call. The slow kernel supports all
 * calls. */
static bool in_tiles(const Call *c, Fp8Blocks blocks) {
    const Tensor *x = c->in[0];
    bool floats = x->dtype != F64 && c->out[2]->dtype == F32;
    if (c->in[1]) floats = floats && c->in[1]->dtype == F32;
    if (c->out[3]) floats = floats && c->out[3]->dtype == F32;
    return floats && tensor_count(x) > 0 && tensor_rows(x) % 16 == 0 && tensor_width(x) % 16 == 0 &&
           aligned_16(x->data) && (uintptr_t)x->data % (8 * dtype_size((DType)x->dtype)) == 0 &&
           aligned_16(data_of<void>(c->out[0])) && aligned_16(data_of<void>(c->out[1])) &&
           (blocks == FP8_WHOLE || c->out[0] || c->out[1]);
}

/* Returns the number of tiles. Tiles outside x that complete the last stack are counted too. */
static int64_t tiles_of(const Fp8Cast &c) {
    return ceil_div(ceil_div(c.rows, TILE), (int64_t)1 << c.stack) * c.across << c.stack;
}

template <typename T, __nv_fp8_interpretation_t F>
static void launch_tiles(const Call *c, const Fp8Cast &cast) {
    const unsigned tiles = (unsigned)tiles_of(cast);
    if (cast.blocks == FP8_WHOLE)
        write_values<T, F, false><<<tiles, THREADS, 0, stream_of(c)>>>(cast);
    else
        write_values<T, F, true><<<tiles, THREADS, 0, stream_of(c)>>>(cast);
    LAUNCHED();
}

static void tiles(const Call *c, Fp8Blocks blocks, DType type) {
    const Tensor *x = c->in[0];
    Fp8Cast cast = {};
    cast.x = x->data, cast.y = data_of<uint8_t>(c->out[0]), cast.yt = data_of<uint8_t>(c->out[1]);
    cast.state = data_of<float>(c->in[1]), cast.inverse = data_of<float>(c->out[2]),
    cast.newest = data_of<float>(c->out[3]);
    cast.rows = tensor_rows(x), cast.width = tensor_width(x);
    cast.across = (uint32_t)ceil_div(cast.width, TILE);
    while (cast.yt && cast.stack < HIGHEST_STACK && (int64_t)TILE << cast.stack < cast.rows) cast.stack++;
    cast.blocks = blocks;
    CHECK(tiles_of(cast) <= INT32_MAX, "fp8_cast: %lld rows of %lld elements are too many",
          (long long)cast.rows, (long long)cast.width);
    switch (x->dtype) {
    case F32:
        FORMAT_SWITCH(type, launch_tiles<float, F>(c, cast));
        break;
    case BF16:
        FORMAT_SWITCH(type, launch_tiles<bf16, F>(c, cast));
        break;
    default:
        FORMAT_SWITCH(type, launch_tiles<fp16, F>(c, cast));
    }
}

static void matrix(const Call *c, Fp8Blocks blocks, const Tensor *out, bool transposed) {
    const Tensor *x = c->in[0];
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    Matrix m = {};
    m.x = cells(x), m.state = cells(c->in[1]), m.inverse = cells(c->out[2]);
    m.rows = transposed ? width : rows, m.columns = transposed ? rows : width;
    m.row = transposed ? 1 : width, m.column = transposed ? width : 1;
    m.blocks = blocks, m.values = data_of<uint8_t>(out);
    if (!out) m.rows = 0;
    const unsigned grid =
        grid_for(c, ceil_div(m.rows, blocks == FP8_SQUARES ? TILE : 1) * ceil_div(m.columns, TILE), WARPS);
    FORMAT_SWITCH(out ? out->dtype : F8E4M3,
                  REAL_SWITCH(x->dtype, write_blocks<R, F><<<grid, THREADS, 0, stream_of(c)>>>(m)));
    LAUNCHED();
}

extern "C" void cuda_amax(const Call *);
extern "C" size_t cuda_plans_amax(const Call *);

extern "C" size_t cuda_plans_fp8_cast(const Call *c) { return c->out[3] ? cuda_plans_amax(c) : 0; }

extern "C" void cuda_fp8_cast(const Call *c) {
    const Fp8Blocks blocks = ((const Fp8CastAttr *)c->attr)->blocks;
    const Tensor *y = c->out[0], *yt = c->out[1];
    const DType type = y ? (DType)y->dtype : yt ? (DType)yt->dtype : F8E4M3;
    CHECK(dtype_is_fp8(type) && (!yt || yt->dtype == type), "fp8_cast: y is %s, but its transpose is %s",
          dtype_name(type), yt ? dtype_name((DType)yt->dtype) : "not requested");
    CHECK(blocks == FP8_WHOLE || !y || !yt,
          "fp8_cast: if each block has a scale, only one of y and yt can be computed");
    if (in_tiles(c, blocks)) {
        tiles(c, blocks, type);
        return;
    }
    if (y || !yt) matrix(c, blocks, y, false);
    if (yt) matrix(c, blocks, yt, true);
    if (!c->out[3]) return;
    Call amax = {};
    amax.in[0] = c->in[0], amax.out[0] = c->out[3], amax.device = c->device;
    cuda_amax(&amax);
}
