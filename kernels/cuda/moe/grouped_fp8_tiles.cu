/* Computes grouped GEMMs of FP8 operands with wgmma. Expert e multiplies its rows of a by its block of b: y = x w^T, or
 * dx = dy w with the transpose of w. The gradient dw = dy^T x is computed from the transposes of dy and x, in which an
 * expert's terms begin at a multiple of FP8_BLOCK, because FP8 tensor cores need consecutive terms.
 *
 * Tensor cores add FP8 products with a precision of about 14 bits. Unless this suffices, tensor cores only add the products
 * of a slice. These sums are then multiplied by the scales of their blocks and added in F32. */
#include <cuda_fp8.h>

#include "kernels/cuda/moe/grouped_pairs.cuh"
#include "kernels/fp8_blocks.h"

enum {
    TERMS = LINE_BYTES,
    THREADS = (GROUPS + 1) * GROUP_THREADS,
    STAGES = 3,
    HALF = COLUMNS / 2,
    A_SCALES = (ROWS + 4) * (int)sizeof(float), /* from the preceding multiple of 16 bytes on */
    B_SCALES = COLUMNS * (int)sizeof(float)
};

/* How a tile's products are added. */
typedef enum Sums {
    FAST,  /* by tensor cores */
    EXACT, /* in F32, a slice at a time */
    BLOCKS /* likewise, after multiplication by the scales of blocks */
} Sums;

/* Each warpgroup has room for CHUNKS chunks of sums. A slice has scales for the rows of its tile and, for dw, for the
 * columns. */
template <Kind kind, Sums sums> struct Room {
    static constexpr int CHUNKS = 4, SUMS_AT = STAGES * STAGE_BYTES,
                         SCALES_AT = SUMS_AT + GROUPS * CHUNKS * CHUNK,
                         SCALES = sums == BLOCKS ? A_SCALES + (kind == WGRAD ? B_SCALES : 0) : 0,
                         BYTES = SCALES_AT + STAGES * SCALES + 1024;
};

/* Scales are those of kernels/fp8_blocks.h or, unless there are blocks, one for each expert. */
struct Scaled : Grouped {
    const float *a, *b;
    int64_t a_scales; /* the number of scales of a */
    int64_t b_step,
        b_width; /* BLOCKS: the numbers of elements in an expert's scales of b, and in a row of them */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- slices ---- */

template <Kind kind, Sums sums> struct Slices : Ring<STAGES> {
    uint32_t room, barriers;
    __device__ __forceinline__ uint32_t a() const { return room + this->stage * STAGE_BYTES; }
    __device__ __forceinline__ uint32_t b() const { return a() + A_BYTES; }
    __device__ __forceinline__ uint32_t scales() const {
        return room + Room<kind, sums>::SCALES_AT + this->stage * Room<kind, sums>::SCALES;
    }
    __device__ __forceinline__ uint32_t full() const { return barriers + 8 * this->stage; }
    __device__ __forceinline__ uint32_t empty() const { return full() + 8 * STAGES; }
};

/* Returns the index of the scale of a tile's first row in a slice. */
template <Kind kind>
static __device__ __forceinline__ int64_t first_scale(const Scaled &g, const Pair &p, int slice, int row) {
    return kind == WGRAD ? (int64_t)(p.first / TERMS + slice) * g.m + row : slice * g.rows + row;
}

/* Copies the slices of all tiles of a block. Only one thread may call this function. */
template <Kind kind, bool beside, Sums sums>
static __device__ __forceinline__ void copy_slices(const Scaled &g, const CUtensorMap *a,
                                                   const CUtensorMap *b, Pairs pairs, Slices<kind, sums> at,
                                                   int rank) {
    Pair p;
#pragma unroll 1
    while (pairs.read(&p)) {
        const int row = (int)p.row + (beside ? 0 : rank * ROWS),
                  column = p.column + (beside ? rank * COLUMNS : 0), plane = kind == WGRAD ? 0 : p.expert;
        const bool has_a = beside || rank * ROWS < p.rows, has_b = !beside || column < g.n,
                   has_scales = sums == BLOCKS && has_a && has_b;
        const int b_scales = kind == WGRAD ? (int)least(COLUMNS, g.n - column) * (int)sizeof(float) : 0;
#pragma unroll 1
        for (int slice = 0; slice < p.slices; slice++, at.next()) {
            const int term = (kind == WGRAD ? p.first : 0) + slice * TERMS;
            const int64_t scale = first_scale<kind>(g, p, slice, row) / 4 * 4;
            const int a_scales = (int)least(ROWS + 4, (g.a_scales + 3) / 4 * 4 - scale) * (int)sizeof(float);
            barrier_wait(at.empty(), at.phase ^ 1);
            barrier_expect(at.full(), (has_a ? A_BYTES : 0) + (has_b ? B_BYTES : 0) +
                                          (has_scales ? a_scales + b_scales : 0));
            if (has_a && beside)
                copy_tile_to_both(at.a() + rank * (A_BYTES / 2), a, at.full(), term, 0,
                                  row + rank * (ROWS / 2));
            else if (has_a)
                copy_tile(at.a(), a, at.full(), term, 0, row);
            if (has_b && beside)
                copy_tile(at.b(), b, at.full(), term, plane, column);
            else if (has_b)
                copy_tile_to_both(at.b() + rank * (B_BYTES / 2), b, at.full(), term, plane,
                                  column + rank * (COLUMNS / 2));
            if (!has_scales) continue;
            copy_bytes(at.scales(), g.a + scale, a_scales, at.full());
            if (kind == WGRAD)
                copy_bytes(at.scales() + A_SCALES, g.b + (int64_t)(term / TERMS) * g.n + column, b_scales,
                           at.full());
        }
    }
}

/* ---- multiplication ---- */

/* A warpgroup's operands in a slice, in shared memory, and the scales of its products. The thread's rows have a scale for
 * each half of the columns. The scales of dw's columns are in shared memory. */
struct Operands {
    uint32_t a, b;
    float of_row[2][2];
    uint32_t of_column;
};

/* Waits for a slice. */
template <Kind kind, Sums sums>
static __device__ __forceinline__ Operands operands_of(const Scaled &g, const Pair &p,
                                                       const Slices<kind, sums> &at, int group, int slice,
                                                       int row, const float (&half)[2]) {
    const int lane = threadIdx.x % 32, down = threadIdx.x / 32 * 16 + lane / 4;
    const uint32_t from = uniform(at.a());
    Operands o = {};
    o.a = from + group * 64 * LINE_BYTES, o.b = from + A_BYTES;
    barrier_wait(at.full(), at.phase);
    if (sums != BLOCKS) return o;
    const uint32_t scales = at.scales() + (uint32_t)(first_scale<kind>(g, p, slice, row) % 4 + down) * 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float r = get_shared(scales + 32 * i);
#pragma unroll
        for (int h = 0; h < 2; h++) o.of_row[h][i] = kind == WGRAD ? r : r * half[h];
    }
    o.of_column = at.scales() + A_SCALES + lane % 4 * 8;
    return o;
}

/* Starts to multiply half of the columns of a slice. */
template <typename A>
static __device__ __forceinline__ void start_half(float (&part)[HALF / 8][4], const Operands &o, int h) {
    typedef Fp8Product<A, HALF / 8> Multiply;
    const uint32_t b = o.b + h * HALF * LINE_BYTES;
    Multiply::fence(part);
    Multiply::template run<false>(part, tile_descriptor<true>(o.a), tile_descriptor<true>(b));
#pragma unroll
    for (int k = 32; k < TERMS; k += 32)
        Multiply::template run<true>(part, tile_descriptor<true>(o.a + k), tile_descriptor<true>(b + k));
    products_begun();
}

/* Adds the products of half of the columns in F32. */
template <Kind kind, Sums sums>
static __device__ __forceinline__ void add_half(float (*sum)[4], const float (&part)[HALF / 8][4],
                                                const Operands &o, int h) {
    const float *of_row = o.of_row[h];
#pragma unroll
    for (int q = 0; q < HALF / 8; q++) {
        float by[2];
        if (kind == WGRAD && sums == BLOCKS) get_shared(o.of_column + HALF * 4 * h + 32 * q, by);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (sums == EXACT)
                sum[q][i] += part[q][i];
            else
                sum[q][i] =
                    fmaf(kind == WGRAD ? part[q][i] * by[i % 2] : part[q][i], of_row[i / 2], sum[q][i]);
    }
}

/* BLOCKS: reads the scales of both halves of the columns of w, one slice ahead. */
template <Kind kind, Sums sums> struct HalfScales {
    struct Two {
        float half[2];
    } ahead;
    const float *of_half[2];
    int slice, slices;

    __device__ __forceinline__ HalfScales(const Scaled &g, const Pair &p, int column)
        : ahead{}, of_half{}, slice(0), slices(p.slices) {
        if (sums != BLOCKS || kind == WGRAD) return;
        of_half[0] = g.b + p.expert * g.b_step + column / FP8_BLOCK * g.b_width;
        of_half[1] = of_half[0] + (column + HALF < g.n ? g.b_width : 0);
        next();
    }
    __device__ __forceinline__ Two next() {
        const Two two = ahead;
        if (sums == BLOCKS && kind != WGRAD && slice < slices)
            ahead = {of_half[0][slice], of_half[1][slice]}, slice++;
        return two;
    }
};

/* Lets both blocks overwrite a slice. */
static __device__ __forceinline__ void free_slice(uint32_t barrier) {
    if (threadIdx.x % 32 < 2) barrier_arrive_in(barrier, threadIdx.x % 32);
}

/* Adds the products of each slice in F32. If `ahead` is true, a warpgroup waits for its next slice while it multiplies. This
 * is faster unless there are block scales of w. */
template <typename A, Kind kind, Sums sums>
static __device__ __forceinline__ void multiply_slices(float (&sum)[COLUMNS / 8][4], const Scaled &g,
                                                       const Pair &p, Slices<kind, sums> &at, int group,
                                                       int row, int column) {
    typedef Fp8Product<A, HALF / 8> Multiply;
    constexpr bool ahead = kind == WGRAD || sums == EXACT, scales = kind == WGRAD && sums == BLOCKS;
    float part[HALF / 8][4] = {};
    if (p.slices <= 0) return;
    HalfScales<kind, sums> half(g, p, column);
    Operands o = {}, next = {};
    if (ahead) o = operands_of(g, p, at, group, 0, row, half.next().half);
#pragma unroll 1
    for (int slice = 0; slice < p.slices; slice++) {
        if (!ahead) o = operands_of(g, p, at, group, slice, row, half.next().half);
        start_half<A>(part, o, 0);
        Multiply::template wait<0>(part);
        add_half<kind, sums>(sum, part, o, 0);
        start_half<A>(part, o, 1);
        const uint32_t freed = at.empty();
        at.next();
        if (ahead && slice + 1 < p.slices)
            next = operands_of(g, p, at, group, slice + 1, row, half.next().half);
        Multiply::template wait<0>(part);
        if (!scales) free_slice(freed);
        add_half<kind, sums>(sum + HALF / 8, part, o, 1);
        if (scales) free_slice(freed);
        if (ahead) o = next;
    }
}

/* Lets the tensor cores add all products. */
template <typename A, Kind kind>
static __device__ __forceinline__ void multiply_fast(float (&sum)[COLUMNS / 8][4], const Pair &p,
                                                     Slices<kind, FAST> &at, int group) {
    typedef Fp8Product<A, COLUMNS / 8> Multiply;
    uint32_t before = 0; /* the barrier that frees the previous slice */
#pragma unroll 1
    for (int slice = 0; slice < p.slices; slice++, at.next()) {
        const uint32_t from = uniform(at.a());
        const uint64_t a = tile_descriptor<true>(from + group * 64 * LINE_BYTES),
                       b = tile_descriptor<true>(from + A_BYTES);
        barrier_wait(at.full(), at.phase);
        Multiply::fence(sum);
#pragma unroll
        for (int k = 0; k < TERMS; k += 32) Multiply::template run<true>(sum, a + k / 16, b + k / 16);
        products_begun();
        Multiply::template wait<1>(sum);
        if (before) free_slice(before);
        before = at.empty();
    }
    Multiply::template wait<0>(sum);
    if (before) free_slice(before);
}

/* Frees the slices of a tile outside the result. */
template <Kind kind, Sums sums>
static __device__ __forceinline__ void skip_slices(const Pair &p, Slices<kind, sums> &at) {
#pragma unroll 1
    for (int slice = 0; slice < p.slices; slice++, at.next()) {
        barrier_wait(at.full(), at.phase);
        free_slice(at.empty());
    }
}

template <typename A, typename Y, Kind kind, bool beside, Sums sums>
static __device__ __forceinline__ void multiply_tiles(const Scaled &g, Pairs pairs, Slices<kind, sums> at,
                                                      int rank, const CUtensorMap *to, Y *y) {
    enum { CHUNKS = Room<kind, sums>::CHUNKS };
    const int group = (int)uniform(threadIdx.x / GROUP_THREADS);
    const uint32_t sums_at = at.room + Room<kind, sums>::SUMS_AT + group * CHUNKS * CHUNK;
    Pair p;
#pragma unroll 1
    while (pairs.read(&p)) {
        const int column = p.column + (beside ? rank * COLUMNS : 0),
                  below = (beside ? 0 : rank * ROWS) + group * 64;
        const int64_t row = p.row + below, rows = p.rows - below;
        const bool inside = rows > 0 && column < g.n;
        const float by = sums != BLOCKS && p.expert >= 0 ? g.a[p.expert] * g.b[p.expert] : 1;
        float sum[COLUMNS / 8][4] = {};
        if (!inside)
            skip_slices(p, at);
        else if constexpr (sums == FAST)
            multiply_fast<A>(sum, p, at, group);
        else
            multiply_slices<A>(sum, g, p, at, group, (int)(row - group * 64), column);
        if (!inside || (g.add && (kind == WGRAD ? !p.terms : p.expert < 0))) continue;
#pragma unroll
        for (int q = 0; q < COLUMNS / 8; q++)
#pragma unroll
            for (int j = 0; j < 4 && sums != BLOCKS; j++) sum[q][j] *= by;
        if (kind != WGRAD && g.bias.data && p.expert >= 0) add_bias(sum, g, p.expert, row, rows, column);
        if (kind == WGRAD || (!g.add && rows >= 64))
            copy_sums<Y, CHUNKS>(sum, to, sums_at, group, column, kind == WGRAD ? p.expert : 0, (int)row,
                                 g.add);
        else if constexpr (kind != WGRAD)
            put_sums(sum, y + row * g.n, g.n, rows, column, g.add);
    }
    copies_end_out();
}

#endif

template <typename A, typename Y, Kind kind, bool beside, Sums sums>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply_fp8(const __grid_constant__ Scaled g, const __grid_constant__ CUtensorMap a,
                 const __grid_constant__ CUtensorMap b, const __grid_constant__ CUtensorMap to, Y *y) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char memory[];
    __shared__ uint64_t barriers[2 * STAGES];
    __shared__ Pairs::Room room_of_pairs;
    __shared__ int before[kind == WGRAD ? 1 : MOST_EXPERTS + 2];
    const Pairs pairs(&room_of_pairs);
    const uint32_t room = (shared_address(memory) + 1023) / 1024 * 1024;
    const Slices<kind, sums> at = {{}, room, shared_address(barriers)};
    const int rank = blockIdx.x % 2, warp = (int)uniform(threadIdx.x / 32);
    if (threadIdx.x == GROUP_THREADS) {
        prefetch_map(&a), prefetch_map(&b), prefetch_map(&to);
        for (int i = 0; i < 2 * STAGES; i++)
            barrier_init(at.barriers + 8 * i, i < STAGES ? 1 : 2 * GROUPS * (GROUP_THREADS / 32));
        pairs.init();
        barriers_ready();
    }
    if (kind != WGRAD && threadIdx.x < 32) count_pairs<Extent<beside>::DOWN>(g, before);
    __syncthreads();
    cluster_wait();
    if (warp / 4 == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (warp == GROUPS * GROUP_THREADS / 32 && is_elected())
            copy_slices<kind, beside, sums>(g, &a, &b, pairs, at, rank);
        if (warp == GROUPS * GROUP_THREADS / 32 + 1 && is_elected())
            find_pairs<kind, beside, TERMS>(g, before, pairs);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_tiles<A, Y, kind, beside, sums>(g, pairs, at, rank, &to, y);
    }
    __syncwarp();
    cluster_wait(); /* the other block may still arrive at this block's barriers */
#endif
}

/* ---- launches ---- */

template <typename A, typename Y, Kind kind, bool beside, Sums sums>
static void launch(const Call *c, Scaled g) {
    const Tensor *a = c->in[0], *b = c->in[1], *y = c->out[0];
    const int64_t k = tensor_width(a), out = tensor_width(y), planes = kind == WGRAD ? 1 : g.experts,
                  plane = tensor_rows(b) / planes;
    const CUtensorMap map_a = tile_map(c, a, tensor_rows(a), k, k, 1, k, beside ? ROWS / 2 : ROWS),
                      map_b = tile_map(c, b, plane, k, k, planes, plane * k, beside ? COLUMNS : COLUMNS / 2),
                      to = kind == WGRAD ? tile_map(c, y, g.m, out, out, g.experts, g.m * out, 64)
                                         : tile_map(c, y, g.rows, out, out, 1, out, 64);
    g.down = (int)ceil_div(g.m, 2 * ROWS), g.across = (int)ceil_div(g.n, beside ? 2 * COLUMNS : COLUMNS);
    launch_clusters(c, multiply_fp8<A, Y, kind, beside, sums>, THREADS, Room<kind, sums>::BYTES, g, map_a,
                    map_b, to, data_of<Y>(y));
}

/* The operands of both ops, except the bias. */
static Scaled scaled_of(const Call *c) {
    Scaled g = {};
    g.offset = ids_of(c->in[4]);
    g.experts = (int)c->in[4]->dim[0] - 1;
    g.rows = tensor_rows(c->in[0]);
    g.n = (int)tensor_width(c->out[0]);
    g.add = accumulates(c->out[0]);
    g.a = data_of<float>(c->in[2]), g.b = data_of<float>(c->in[3]);
    g.a_scales = tensor_count(c->in[2]);
    return g;
}

template <typename A, typename Y, Sums sums> static void rows_in(const Call *c, const Scaled &g) {
    is_beside(g) ? launch<A, Y, FORWARD, true, sums>(c, g) : launch<A, Y, FORWARD, false, sums>(c, g);
}

template <typename A, typename Y> static void rows_of(const Call *c) {
    const Fp8GemmAttr *attr = (const Fp8GemmAttr *)c->attr;
    Scaled g = scaled_of(c);
    const int64_t k = tensor_width(c->in[0]);
    g.k = (int)k;
    g.b_width = fp8_blocks_across(FP8_SQUARES, k), g.b_step = fp8_blocks_step(FP8_SQUARES, g.n, k);
    g.bias = cells(c->in[5]), g.scale = cells(c->in[6]);
    if (attr->a != FP8_WHOLE)
        rows_in<A, Y, BLOCKS>(c, g);
    else if (attr->fast)
        rows_in<A, Y, FAST>(c, g);
    else
        rows_in<A, Y, EXACT>(c, g);
}

template <typename A, typename Y> static void wgrad_of(const Call *c) {
    Scaled g = scaled_of(c);
    g.m = (int)tensor_rows(c->in[0]);
    if (((const Fp8GemmAttr *)c->attr)->a != FP8_WHOLE)
        launch<A, Y, WGRAD, false, BLOCKS>(c, g);
    else
        launch<A, Y, WGRAD, false, EXACT>(c, g);
}

static bool fits(const Tensor *t) {
    return tensor_count(t) > 0 && tensor_width(t) <= INT32_MAX / 2 && tensor_rows(t) <= INT32_MAX / 2 &&
           aligned_16(t->data) && tensor_width(t) * (int64_t)dtype_size((DType)t->dtype) % 16 == 0;
}

bool grouped_fp8_tiles_can(const Call *c, bool wgrad) {
    const Fp8GemmAttr *attr = (const Fp8GemmAttr *)c->attr;
    const Tensor *out = c->out[0];
    return has_warpgroups(cuda_of(c->device)) && !attr->fixed_order && c->in[4]->dim[0] - 1 <= MOST_EXPERTS &&
           c->in[1]->dtype == F8E4M3 && c->in[2]->dtype == F32 && c->in[3]->dtype == F32 &&
           (dtype_is_16bit((DType)out->dtype) || (wgrad && out->dtype == F32)) &&
           attr->b == (attr->a == FP8_WHOLE ? FP8_WHOLE
                       : wgrad              ? FP8_ROWS
                                            : FP8_SQUARES) &&
           attr->a != FP8_SQUARES && fits(c->in[0]) && fits(c->in[1]) && fits(out) &&
           aligned_16(c->in[2]->data) && aligned_16(c->in[3]->data);
}

#define OPERAND_SWITCH(type, ...)                                                                            \
    do {                                                                                                     \
        if ((type) == F8E4M3) {                                                                              \
            typedef __nv_fp8_e4m3 A;                                                                         \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            typedef __nv_fp8_e5m2 A;                                                                         \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

void grouped_fp8_tiles_rows(const Call *c) {
    OPERAND_SWITCH(c->in[0]->dtype, c->out[0]->dtype == BF16 ? rows_of<A, bf16>(c) : rows_of<A, fp16>(c));
}

void grouped_fp8_tiles_wgrad(const Call *c) {
    OPERAND_SWITCH(c->in[0]->dtype, c->out[0]->dtype == F32    ? wgrad_of<A, float>(c)
                                    : c->out[0]->dtype == BF16 ? wgrad_of<A, bf16>(c)
                                                               : wgrad_of<A, fp16>(c));
}
