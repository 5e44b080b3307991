/* Converts operands and their transposes to FP8 in one pass over x. Scales are computed as in
 * kernels/cuda/quantize.cu. y, yt and inverse are written; newest is updated in place. */
#include "kernels/cuda/fp8_tile.cuh"

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
    /* distances between the matrices' states in `state` and `newest`, and between their inverses */
    int64_t state_step, newest_step, inverse_step;
} Fp8Cast;

/* ---- a tile ---- */

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
    /* all rows are inside or none, because sizes are multiples of 16 */
    const bool inside = p.column < c.width && p.row_of(0) < c.rows;
    load_held((const T *)c.x + p.row_of(0) * c.width + p.column, c.width, inside ? SIDE : 0, x);
}

template <typename T>
__device__ __forceinline__ void scale_rows(const Fp8Cast &c, const Place &p, const Held<T> &x, float most,
                                           Scales &s) {
    row_scales(x, most, s.row);
    for (int r = 0; p.lane == 0 && r < x.height; r++)
        c.inverse[fp8_block_of(FP8_ROWS, c.rows, c.width, p.row_of(r), p.column)] = __fdiv_rn(1, s.row[r]);
}

template <typename T>
__device__ __forceinline__ void scale_columns(const Fp8Cast &c, const Place &p, const Held<T> &x, float most,
                                              Scales &s) {
    column_scales(x, p.lane, most, s.column);
#pragma unroll
    for (int k = 0; k < SIDE; k++)
        if (p.line == 0 && p.column < c.width)
            c.inverse[fp8_block_of(FP8_ROWS, c.width, c.rows, p.column + k, p.row)] =
                __fdiv_rn(1, s.column[k]);
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

/* Returns the part of the call that processes matrix blockIdx.y. */
template <typename T> __device__ __forceinline__ Fp8Cast matrix_of(Fp8Cast c) {
    const int64_t g = blockIdx.y, at = g * c.rows * c.width;
    c.x = (const T *)c.x + at;
    if (c.y) c.y += at;
    if (c.yt) c.yt += at;
    if (c.state) c.state += g * c.state_step;
    if (c.newest) c.newest += g * c.newest_step;
    c.inverse += g * c.inverse_step;
    return c;
}

template <typename T, __nv_fp8_interpretation_t F, bool BLOCKS>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 2 && !BLOCKS ? 3 : 2)
    write_values(Fp8Cast all) {
    __shared__ alignas(16) uint2 turned[TILE * LANES];
    __shared__ float room[32];
    const Fp8Cast c = matrix_of<T>(all);
    const Place p = place_of(c);
    if (p.row >= c.rows) return; /* the last stack may extend beyond x */
    Held<T> x;
    Scales s;
    Fp8Rows half;
    float scale = 1;
    load(c, p, x);
    if (BLOCKS) {
        scale_blocks(c, p, x, MOST<F>, s);
    } else {
        scale = c.state && *c.state > 0 ? *c.state : 1;
        if (p.row == 0 && p.column == 0 && p.line == 0) *c.inverse = __fdiv_rn(1, scale);
    }
    convert<T, F, BLOCKS>(x, s, scale, half);
    if (c.y) write_rows(c.y + p.row_of(0) * c.width + p.column, c.width, x.height, half);
    if (c.yt) {
        turn_rows(half, p.lane, p.line, turned);
        __syncthreads();
        write_turned(c.yt, p.row, c.rows, p.column - SIDE * p.lane, c.width, turned);
    }
    if (!c.newest) return;
    const float most = block_max(largest_of(x), room);
    if (threadIdx.x == 0) update_amax(c.newest, most);
}

/* ---- any sizes, types and addresses ---- */

/* A matrix of FP8 values. Element (r, i) is the value of x[r * row + i * column]. */
typedef struct Matrix {
    Cells x, state, inverse;
    int64_t rows, columns, row, column;
    Fp8Blocks blocks;
    uint8_t *values;
    int64_t state_step, inverse_step; /* as in Fp8Cast */
} Matrix;

/* Each warp processes the elements of one block or, if there is only one scale, 128 columns of a row. */
template <typename R, __nv_fp8_interpretation_t F> static __global__ void write_blocks(Matrix m) {
    const int lane = threadIdx.x % 32;
    const int64_t g = blockIdx.y, from = g * m.rows * m.columns, inverse = g * m.inverse_step;
    const int64_t each = m.blocks == FP8_SQUARES ? TILE : 1, across = (m.columns + TILE - 1) / TILE,
                  blocks = (m.rows + each - 1) / each * across;
    const float whole = m.state.data ? scale_of(m.state, g * m.state_step) : 1;
    m.values += from;
    if (m.blocks == FP8_WHOLE && blockIdx.x == 0 && threadIdx.x == 0)
        m.inverse.put(inverse, (R)__fdiv_rn(1, whole));
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < blocks;
         i += (int64_t)gridDim.x * WARPS) {
        const int64_t row = i / across * each, column = i % across * TILE;
        const int64_t high = m.rows - row < each ? m.rows - row : each,
                      wide = m.columns - column < TILE ? m.columns - column : TILE,
                      at = inverse + fp8_block_of(m.blocks, m.rows, m.columns, row, column);
        float amax = 0, scale = whole;
        for (int64_t k = lane; m.blocks != FP8_WHOLE && k < high * wide; k += 32)
            amax = larger_size(amax,
                               m.x.get<R>(from + (row + k / wide) * m.row + (column + k % wide) * m.column));
        if (m.blocks != FP8_WHOLE) {
            scale = power_of_two_scale(warp_max(amax), MOST<F>);
            if (lane == 0) m.inverse.put(at, (R)__fdiv_rn(1, scale));
        }
        for (int64_t k = lane; k < high * wide; k += 32) {
            const float v =
                (float)m.x.get<R>(from + (row + k / wide) * m.row + (column + k % wide) * m.column);
            m.values[(row + k / wide) * m.columns + column + k % wide] =
                (uint8_t)fp8_of<F>(__fmul_rn(v, scale));
        }
        const int64_t pads = fp8_blocks_across(m.blocks, m.columns) - across;
        if (m.blocks == FP8_SQUARES && column / TILE == across - 1 && lane < pads)
            m.inverse.put(at + 1 + lane, (R)0);
    }
}

/* ---- launches ---- */

static int64_t matrices_of(const Call *c) {
    const int64_t n = ((const Fp8CastAttr *)c->attr)->matrices;
    return n ? n : 1;
}

static int64_t rows_of_each(const Call *c) { return tensor_rows(c->in[0]) / matrices_of(c); }

/* Returns true if the fast kernel, which processes tiles, supports the call. The slow kernel supports all
 * calls. */
static bool in_tiles(const Call *c, Fp8Blocks blocks) {
    const Tensor *x = c->in[0];
    bool floats = x->dtype != F64 && c->out[2]->dtype == F32;
    if (c->in[1]) floats = floats && c->in[1]->dtype == F32;
    if (c->out[3]) floats = floats && c->out[3]->dtype == F32;
    return floats && tensor_count(x) > 0 && rows_of_each(c) % 16 == 0 && tensor_width(x) % 16 == 0 &&
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
    const dim3 tiles((unsigned)tiles_of(cast), (unsigned)matrices_of(c));
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
    cast.rows = rows_of_each(c), cast.width = tensor_width(x);
    cast.state_step = width_of(c->in[1]), cast.newest_step = width_of(c->out[3]);
    cast.inverse_step = tensor_count(c->out[2]) / matrices_of(c);
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
    const int64_t rows = rows_of_each(c), width = tensor_width(x);
    Matrix m = {};
    m.x = cells(x), m.state = cells(c->in[1]), m.inverse = cells(c->out[2]);
    m.rows = transposed ? width : rows, m.columns = transposed ? rows : width;
    m.row = transposed ? 1 : width, m.column = transposed ? width : 1;
    m.blocks = blocks, m.values = data_of<uint8_t>(out);
    m.state_step = width_of(c->in[1]), m.inverse_step = tensor_count(c->out[2]) / matrices_of(c);
    if (!out) m.rows = 0;
    const dim3 grid(
        grid_for(c, ceil_div(m.rows, blocks == FP8_SQUARES ? TILE : 1) * ceil_div(m.columns, TILE), WARPS),
        (unsigned)matrices_of(c));
    FORMAT_SWITCH(out ? out->dtype : F8E4M3,
                  REAL_SWITCH(x->dtype, write_blocks<R, F><<<grid, THREADS, 0, stream_of(c)>>>(m)));
    LAUNCHED();
}

extern "C" void cuda_amax(const Call *);
extern "C" size_t cuda_plans_amax(const Call *);

static Call amax_call(const Call *c) {
    Call amax = {};
    amax.in[0] = c->in[0], amax.out[0] = c->out[3], amax.device = c->device;
    return amax;
}

extern "C" size_t cuda_plans_fp8_cast(const Call *c) {
    const Call amax = amax_call(c);
    return c->out[3] ? cuda_plans_amax(&amax) : 0;
}

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
    const Call amax = amax_call(c);
    cuda_amax(&amax);
}
