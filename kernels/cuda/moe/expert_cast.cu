/* Computes the FP8 operands of experts' GEMMs from rows that are grouped by expert, in one pass over x. Only the GPU
 * knows the offsets. Scales are computed as in kernels/cuda/quantize.cu. y, yt and inverses are written; newest is
 * updated in place. */
#include "kernels/cuda/fp8_tile.cuh"
#include "kernels/cuda/moe/experts.cuh"

/* ---- offsets ---- */

/* A single warp runs this kernel. */
static __global__ void pad_offsets(const int64_t *offset, int64_t experts, int64_t *padded) {
    int64_t base = 0;
    if (threadIdx.x == 0) padded[0] = 0;
    for (int64_t at = 0; at < experts; at += 32) {
        const int64_t e = at + threadIdx.x, rows = e < experts ? offset[e + 1] - offset[e] : 0;
        int64_t sum = (rows + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK;
        for (int d = 1; d < 32; d *= 2) {
            const int64_t left = __shfl_up_sync(0xffffffffu, sum, d);
            if (threadIdx.x >= d) sum += left;
        }
        if (e < experts) padded[e + 1] = base + sum;
        base += __shfl_sync(0xffffffffu, sum, 31);
    }
}

extern "C" void cuda_fp8_pad_offsets(const Call *c) {
    pad_offsets<<<1, 32, 0, stream_of(c)>>>(ids_of(c->in[0]), c->in[0]->dim[0] - 1,
                                            data_of<int64_t>(c->out[0]));
    LAUNCHED();
}

/* Returns the expert to which row `row` belongs, or the number of experts if the row is after the last expert's. All
 * threads of the block must call this function. */
static __device__ __forceinline__ int64_t block_expert(const int64_t *offset, int64_t experts, int64_t row) {
    int64_t e = 0;
    for (int64_t at = 0; at < experts; at += blockDim.x) {
        const int64_t i = at + threadIdx.x;
        e += __syncthreads_count(i < experts && offset[i + 1] <= row);
    }
    return e;
}

/* ---- amaxes ---- */

enum { AMAX_BYTES = 64 << 10, AMAX_ROWS = 128, AMAX_DEPTH = 4 };

/* Returns the largest |x| of n adjacent vectors; the result is valid in all threads of the block. */
template <typename T> static __device__ float largest_of_span(const T *x, int64_t vectors) {
    enum { N = VEC<T> };
    __shared__ float room[32];
    Largest<T> most;
    for (int64_t i = threadIdx.x; i < vectors; i += AMAX_DEPTH * THREADS) {
        Run<T, N> v[AMAX_DEPTH];
#pragma unroll
        for (int d = 0; d < AMAX_DEPTH; d++) /* loads past the end read the thread's first vector again */
            v[d] = load_run<T, N>(x + (i + d * THREADS < vectors ? i + d * THREADS : i) * N, 0, N, true);
#pragma unroll
        for (int d = 0; d < AMAX_DEPTH; d++) most.take(v[d]);
    }
    return block_max(most.get(), room);
}

/* Each block processes `each` adjacent rows. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    amax_of_rows(const T *x, const int64_t *offset, int64_t experts, int64_t width, int64_t each,
                 float *state, int64_t step) {
    const int64_t begin = blockIdx.x * each, used = offset[experts], end = least(begin + each, used);
    if (begin >= used) return;
    int64_t e = block_expert(offset, experts, begin);
    for (int64_t row = begin; row < end; e++) {
        const int64_t last = least(offset[e + 1], end);
        if (last <= row) continue;
        const float most = largest_of_span(x + row * width, (last - row) * width / VEC<T>);
        if (threadIdx.x == 0) update_amax(state + e * step, most);
        row = last;
    }
}

/* A block processes one expert's rows of any size, type and address. */
template <typename R>
static __global__ void amax_of_experts(Cells x, const int64_t *offset, int64_t width, Cells state,
                                       int64_t step) {
    __shared__ float room[32];
    const int64_t e = blockIdx.x, end = offset[e + 1] * width, newest = e * step + 1;
    float most = 0;
    for (int64_t i = offset[e] * width + threadIdx.x; i < end; i += THREADS)
        most = larger_size(most, x.get<R>(i));
    most = block_max(most, room);
    if (threadIdx.x == 0) state.put(newest, fmax(state.get<double>(newest), (double)most));
}

extern "C" void cuda_fp8_expert_amax(const Call *c) {
    const Tensor *x = c->in[0], *state = c->out[0];
    const int64_t experts = c->in[1]->dim[0] - 1, width = tensor_width(x), step = tensor_width(state),
                  bytes = width * (int64_t)dtype_size((DType)x->dtype);
    if (!tensor_count(x)) return;
    if (x->dtype != F64 && state->dtype == F32 && rows_are_aligned(x)) {
        const int64_t rows = AMAX_BYTES / bytes, each = rows < 1 ? 1 : least(rows, AMAX_ROWS);
        const unsigned grid = (unsigned)ceil_div(x->dim[0], each);
        STORAGE_SWITCH(x->dtype, amax_of_rows<T>
                       <<<grid, THREADS, 0, stream_of(c)>>>(data_of<T>(x), ids_of(c->in[1]), experts, width,
                                                            each, data_of<float>(state), step));
    } else {
        REAL_SWITCH(x->dtype, amax_of_experts<R><<<(unsigned)experts, THREADS, 0, stream_of(c)>>>(
                                  cells(x), ids_of(c->in[1]), width, cells(state), step));
    }
    LAUNCHED();
}

/* ---- casts in tiles ---- */

typedef struct ExpertCast {
    Cells x, state, inverse, turned_inverse;
    uint8_t *y, *yt;
    float *newest;
    const int64_t *offset, *padded;
    int64_t experts, rows, width, columns; /* columns: of yt */
    int64_t state_step, newest_step;
    bool blocks;
} ExpertCast;

/* The rows of a tile: `count` rows of one expert, or zeros after the last expert's rows if `expert` is
 * ExpertCast.experts. `column` is the tile's first column in yt. */
struct CastTile {
    int64_t expert, row, column;
    int count;
};

static __device__ __forceinline__ CastTile tile_at(const ExpertCast &c, int64_t expert, int64_t column) {
    const int64_t row = c.offset[expert] + column - c.padded[expert],
                  end = expert < c.experts ? c.offset[expert + 1] : c.rows, left = end - row;
    const CastTile t = {expert, row, column, (int)(left < 0 ? 0 : left < TILE ? left : TILE)};
    return t;
}

static __device__ __forceinline__ float expert_scale(const ExpertCast &c, int64_t expert) {
    return c.state.data && expert < c.experts ? scale_of(c.state, expert * c.state_step) : 1;
}

/* The first block stores the scales of all experts, because an expert without rows has no tile. */
template <typename R> static __device__ __forceinline__ void write_inverses(const ExpertCast &c) {
    if (blockIdx.x || !c.inverse.data) return;
    for (int64_t e = threadIdx.x; e < c.experts; e += blockDim.x)
        c.inverse.put(e, (R)__fdiv_rn(1, expert_scale(c, e)));
}

/* A thread's position in its tile. */
struct Place {
    int lane, line, height; /* height: number of the thread's rows and columns that are inside */
    int64_t column;         /* in x */
};

/* With blocks, y has the scales of rows, and yt has those of columns. */
template <typename T, __nv_fp8_interpretation_t F>
static __device__ __forceinline__ void cast_blocks(const ExpertCast &c, const CastTile &t, const Place &p,
                                                   const Held<T> &x, uint2 *turned) {
    Scales s;
    Fp8Rows half;
#pragma unroll
    for (int k = 0; k < SIDE; k++) s.row[k] = s.column[k] = 1;
    if (c.y) {
        row_scales(x, MOST<F>, s.row);
        for (int r = 0; c.inverse.data && p.lane == 0 && r < p.height; r++)
            ((float *)c.inverse.data)[p.column / TILE * c.rows + t.row + SIDE * p.line + r] =
                __fdiv_rn(1, s.row[r]);
        convert<T, F, true>(x, s, 1, half);
        write_rows(c.y + (t.row + SIDE * p.line) * c.width + p.column, c.width, p.height, half);
    }
    if (!c.yt) return;
#pragma unroll
    for (int k = 0; k < SIDE; k++) s.row[k] = 1;
    column_scales(x, p.lane, MOST<F>, s.column);
#pragma unroll
    for (int k = 0; k < SIDE; k++)
        if (c.turned_inverse.data && p.line == 0 && p.column < c.width)
            ((float *)c.turned_inverse.data)[t.column / TILE * c.width + p.column + k] =
                __fdiv_rn(1, s.column[k]);
    convert<T, F, true>(x, s, 1, half);
    turn_rows(half, p.lane, p.line, turned);
}

template <typename T, __nv_fp8_interpretation_t F>
static __device__ __forceinline__ void cast_whole(const ExpertCast &c, const CastTile &t, const Place &p,
                                                  const Held<T> &x, uint2 *turned) {
    Fp8Rows half;
    convert<T, F, false>(x, Scales(), expert_scale(c, t.expert), half);
    if (c.y) write_rows(c.y + (t.row + SIDE * p.line) * c.width + p.column, c.width, p.height, half);
    if (c.yt) turn_rows(half, p.lane, p.line, turned);
}

/* A stack is a column of 2^HIGHEST_STACK tiles; its tiles are processed before those of the next stack to its right. */
template <typename T, __nv_fp8_interpretation_t F, bool BLOCKS>
static __global__ void __launch_bounds__(THREADS, sizeof(T) == 2 && !BLOCKS ? 3 : 2)
    cast_tiles(ExpertCast c, uint32_t across) {
    __shared__ alignas(16) uint2 turned[TILE * LANES];
    __shared__ float room[32];
    const uint32_t stacks = blockIdx.x >> HIGHEST_STACK, band = stacks / across,
                   down = band << HIGHEST_STACK | (blockIdx.x & ((1u << HIGHEST_STACK) - 1));
    const int64_t column = (int64_t)(stacks - band * across) * TILE;
    if (!BLOCKS) write_inverses<float>(c);
    if ((int64_t)down * TILE >= c.columns) return; /* the last stack may extend beyond yt */
    const CastTile t =
        tile_at(c, block_expert(c.padded, c.experts, (int64_t)down * TILE), (int64_t)down * TILE);
    Place p;
    p.lane = threadIdx.x % LANES, p.line = threadIdx.x / LANES;
    p.column = column + SIDE * p.lane;
    const int height = p.column < c.width ? t.count - SIDE * p.line : 0;
    p.height = height < 0 ? 0 : height < SIDE ? height : SIDE;
    Held<T> x;
    const bool tail = t.expert == c.experts;
    load_held((const T *)c.x.data + (t.row + SIDE * p.line) * c.width + p.column, c.width,
              tail ? 0 : p.height, x);
    if (BLOCKS)
        cast_blocks<T, F>(c, t, p, x, turned);
    else
        cast_whole<T, F>(c, t, p, x, turned);
    if (c.yt) {
        __syncthreads();
        write_turned(c.yt, t.column, c.columns, column, c.width, turned);
    }
    if (!c.newest || tail) return;
    const float most = block_max(largest_of(x), room);
    if (threadIdx.x == 0) update_amax(c.newest + t.expert * c.newest_step, most);
}

/* ---- any sizes, types and addresses ---- */

/* A warp casts 128 columns of a row of x or, if `turns` is true, of yt. */
template <typename R, __nv_fp8_interpretation_t F>
static __global__ void cast_spans(ExpertCast c, bool turns) {
    const int lane = threadIdx.x % 32;
    const int64_t across = ((turns ? c.columns : c.width) + TILE - 1) / TILE,
                  spans = (turns ? c.width : c.rows) * across;
    if (!c.blocks) write_inverses<R>(c);
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < spans;
         i += (int64_t)gridDim.x * WARPS) {
        const int64_t row = i / across, column = i % across * TILE,
                      e = expert_of(turns ? c.padded : c.offset, c.experts, turns ? column : row);
        const CastTile t = turns ? tile_at(c, e, column) : CastTile();
        const int64_t step = turns ? c.width : 1,
                      from = turns ? t.row * c.width + row : row * c.width + column,
                      n = turns ? TILE : least(TILE, c.width - column),
                      inside = e == c.experts ? 0
                               : turns        ? t.count
                                              : n;
        uint8_t *to = turns ? c.yt + row * c.columns + column : c.y + from;
        float amax = 0, scale = expert_scale(c, e);
        for (int64_t k = lane; c.blocks && k < inside; k += 32)
            amax = larger_size(amax, c.x.get<R>(from + k * step));
        if (c.blocks) scale = power_of_two_scale(warp_max(amax), MOST<F>);
        const Cells &inverse = turns ? c.turned_inverse : c.inverse;
        if (c.blocks && (turns || c.y) && lane == 0 && inverse.data)
            inverse.put(column / TILE * (turns ? c.width : c.rows) + row, (R)__fdiv_rn(1, scale));
        for (int64_t k = lane; (turns || c.y) && k < n; k += 32)
            to[k] = k < inside ? (uint8_t)fp8_of<F>(__fmul_rn((float)c.x.get<R>(from + k * step), scale)) : 0;
    }
}

/* ---- launches ---- */

static ExpertCast cast_of(const Call *c) {
    const Tensor *x = c->in[0];
    ExpertCast cast = {};
    cast.x = cells(x), cast.state = cells(c->in[3]);
    cast.inverse = cells(c->out[2]), cast.turned_inverse = cells(c->out[3]);
    cast.y = data_of<uint8_t>(c->out[0]), cast.yt = data_of<uint8_t>(c->out[1]);
    cast.newest = data_of<float>(c->out[4]);
    cast.offset = ids_of(c->in[1]), cast.padded = ids_of(c->in[2]);
    cast.experts = c->in[1]->dim[0] - 1, cast.rows = x->dim[0], cast.width = tensor_width(x);
    cast.columns = fp8_padded_rows(cast.rows, cast.experts);
    cast.state_step = width_of(c->in[3]), cast.newest_step = width_of(c->out[4]);
    cast.blocks = ((const Fp8CastAttr *)c->attr)->blocks != FP8_WHOLE;
    CHECK(!c->out[1] || tensor_width(c->out[1]) == cast.columns,
          "fp8_expert_cast: the transpose has %lld columns, not %lld", (long long)tensor_width(c->out[1]),
          (long long)cast.columns);
    return cast;
}

static bool is_single(const Tensor *t) { return !t || t->dtype == F32; }

/* Returns true if the fast kernel, which processes tiles, supports the call. The slow kernel supports all calls. */
static bool in_tiles(const Call *c) {
    const Tensor *x = c->in[0];
    return x->dtype != F64 && is_single(c->in[3]) && is_single(c->out[2]) && is_single(c->out[3]) &&
           is_single(c->out[4]) && tensor_count(x) > 0 && tensor_width(x) % 16 == 0 && aligned_16(x->data) &&
           (uintptr_t)x->data % (8 * dtype_size((DType)x->dtype)) == 0 &&
           aligned_16(data_of<void>(c->out[0])) && aligned_16(data_of<void>(c->out[1]));
}

template <typename T, __nv_fp8_interpretation_t F>
static void launch_tiles(const Call *c, const ExpertCast &cast) {
    const int64_t across = ceil_div(cast.width, TILE),
                  down = ceil_div(cast.columns / TILE, 1 << HIGHEST_STACK),
                  tiles = (down * across) << HIGHEST_STACK;
    CHECK(tiles <= INT32_MAX, "fp8_expert_cast: %lld rows of %lld elements are too many",
          (long long)cast.rows, (long long)cast.width);
    if (cast.blocks)
        cast_tiles<T, F, true><<<(unsigned)tiles, THREADS, 0, stream_of(c)>>>(cast, (uint32_t)across);
    else
        cast_tiles<T, F, false><<<(unsigned)tiles, THREADS, 0, stream_of(c)>>>(cast, (uint32_t)across);
    LAUNCHED();
}

static void spans(const Call *c, const ExpertCast &cast, DType type, bool turns) {
    const int64_t n =
        turns ? cast.width * ceil_div(cast.columns, TILE) : cast.rows * ceil_div(cast.width, TILE);
    FORMAT_SWITCH(type, REAL_SWITCH(c->in[0]->dtype, cast_spans<R, F>
                                    <<<grid_for(c, n, WARPS), THREADS, 0, stream_of(c)>>>(cast, turns)));
    LAUNCHED();
}

extern "C" void cuda_fp8_expert_cast(const Call *c) {
    const ExpertCast cast = cast_of(c);
    const Tensor *y = c->out[0], *yt = c->out[1];
    const DType type = y ? (DType)y->dtype : yt ? (DType)yt->dtype : F8E4M3;
    CHECK(dtype_is_fp8(type) && (!y || !yt || yt->dtype == y->dtype),
          "fp8_expert_cast: y is %s, but its transpose is %s", dtype_name(type),
          yt ? dtype_name((DType)yt->dtype) : "not requested");
    if (in_tiles(c)) {
        switch (c->in[0]->dtype) {
        case F32:
            FORMAT_SWITCH(type, launch_tiles<float, F>(c, cast));
            break;
        case BF16:
            FORMAT_SWITCH(type, launch_tiles<bf16, F>(c, cast));
            break;
        default:
            FORMAT_SWITCH(type, launch_tiles<fp16, F>(c, cast));
        }
        return;
    }
    if (y || !yt) spans(c, cast, type, false);
    if (yt) spans(c, cast, type, true);
    if (!c->out[4]) return;
    Call amax = {};
    amax.in[0] = c->in[0], amax.in[1] = c->in[1], amax.out[0] = c->out[4], amax.device = c->device;
    cuda_fp8_expert_amax(&amax);
}
