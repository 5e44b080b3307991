/* Computes the op rope. Also computes the first part of rope_paged_attention (rope_store), which rotates
 * queries and stores new rows, unless paged_tiles.cu does this. y is written or accumulated, and may share
 * the memory of x. In rope_store, each group of x has two more heads, a key and a value, which are written to
 * rows of the pools.
 *
 * A thread processes a run of pairs in some neighbouring heads of a token. All loads are in flight before the
 * first rotation, and cosines and sines are loaded once. Elements that are not rotated form additional runs.
 * A block's dimensions are [tokens][shares of the heads][runs]. Blocks are small, so that a multiprocessor
 * runs several of them: one computes while others wait for memory, and the last blocks finish quickly. */
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/pdl.cuh"

/* HEADS: heads per share. RESIDENT: blocks per multiprocessor. MOST_DEEP is CUDA's limit on a block's third
 * dimension, and MOST_BLOCKS is the limit on a grid's second and third dimensions. */
enum { THREADS = 160, RESIDENT = 4, HEADS = 4, MOST_DEEP = 64, MOST_BLOCKS = 65535 };

/* The parameters of the rotation. The two elements of a pair are in different halves of a run or, if
 * interleaved, neighbours in the run. */
template <typename T> struct Rope {
    static constexpr int N = VEC<T>;
    const T *x;
    T *y;
    const Real<T> *cos, *sin;
    const int64_t *position;
    int64_t table;                    /* number of positions */
    int64_t x_stride[4], y_stride[4]; /* strides between positions, samples, groups and heads */
    uint32_t tokens, samples, length; /* length: number of tokens per sample */
    /* per token: number of heads, heads per group, number of shares; share i begins at head i * HEADS */
    uint32_t heads, per_group, shares;
    int half, rest; /* per head: number of pairs, and number of elements after the pairs */
    int pair_runs, rest_runs;
    Real<T> sign;
    bool interleaved, add;
    /* only for rope_store: the pools of keys and of values; each token's row in the pools; the pools'
     * strides */
    T *pool[2];
    const int64_t *row;
    int64_t pool_row[2], pool_group[2];
};

/* Returns elements [first, first + N) of a row of n elements. If ALIGNED is true, all N elements are inside the
 * row. */
template <bool ALIGNED, int N, typename T>
__device__ __forceinline__ Run<T, N> get_run(const T *row, int first, int n) {
    if constexpr (ALIGNED)
        return *(const Run<T, N> *)(row + first);
    else
        return load_run<T, N>(row, first, n, false);
}
template <bool ALIGNED, int N, typename T>
__device__ __forceinline__ void put_run(T *row, int first, int n, const Run<T, N> &run) {
    if constexpr (ALIGNED)
        *(Run<T, N> *)(row + first) = run;
    else
        store_run<T, N>(row, first, n, false, run);
}

struct Places {
    int low, low_end, high, high_end;
};

template <typename T> __device__ __forceinline__ Places places_of(const Rope<T> &o, int run) {
    const int first = run * Rope<T>::N, end = 2 * o.half;
    const Places apart = {first, o.half, o.half + first, end},
                 together = {2 * first, end, 2 * first + Rope<T>::N, end};
    return o.interleaved ? together : apart;
}

template <bool ALIGNED, typename T>
__device__ __forceinline__ Turned<T> load_pairs(const T *head, const Places &at) {
    return {get_run<ALIGNED, VEC<T>>(head, at.low, at.low_end),
            get_run<ALIGNED, VEC<T>>(head, at.high, at.high_end)};
}

/* Rotates a run. y is the head to which the result is added if o.add. */
template <bool ALIGNED, typename T>
__device__ __forceinline__ void turn_all(const Rope<T> &o, Turned<T> *p, const T *y, const Places &at,
                                         const Run<Real<T>, VEC<T>> &cos, const Run<Real<T>, VEC<T>> &sin) {
    constexpr int N = Rope<T>::N;
    Real<T> v[2 * N];
    turn_pairs(*p, o.interleaved, cos, sin, v);
    if (o.add) {
        const Turned<T> old = load_pairs<ALIGNED>(y, at);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = old.low.get(k) + v[k], v[N + k] = old.high.get(k) + v[N + k];
    }
    p->low.fill(v);
    p->high.fill(v + N);
}

/* The offset of a head from the start of its token in x or y, and the distances to the following heads. All
 * heads of a share need only one division, because a division is slower than the work on a vector. */
struct Head {
    /* distance to the next head in the same group, and to the first head of the next group */
    int64_t at, next_head, next_group;
    uint32_t group, in_group, per_group;

    template <typename T>
    __device__ __forceinline__ Head(const Rope<T> &o, const int64_t *stride, uint32_t head)
        : next_head(stride[3]), next_group(stride[2] - (int64_t)(o.per_group - 1) * stride[3]),
          group(head / o.per_group), in_group(head % o.per_group), per_group(o.per_group) {
        at = (int64_t)group * stride[2] + (int64_t)in_group * stride[3];
    }
    __device__ __forceinline__ void advance() {
        const bool ends = ++in_group == per_group;
        at += ends ? next_group : next_head;
        in_group = ends ? 0 : in_group;
        group += ends;
    }
};

/* One token in x and y, and its position in the table. Tokens that do not exist are skipped. */
template <typename T> struct Token {
    const T *x;
    T *y;
    int64_t position, row; /* row: the token's row in the pools */

    /* Returns the address to which a head is written. */
    template <bool STORES> __device__ __forceinline__ T *target(const Rope<T> &o, const Head &to) const {
        const int which = (int)to.in_group - (int)to.per_group + 2;
        if (!STORES || which < 0) return y + to.at;
        return o.pool[which] + row * o.pool_row[which] + to.group * o.pool_group[which];
    }
};

/* Processes at most U heads, beginning at `first`. */
template <bool ALIGNED, bool STORES, int U, typename T>
__device__ __forceinline__ void rotate_heads(const Rope<T> &o, const Token<T> &t, uint32_t first, int run) {
    constexpr int N = Rope<T>::N;
    const Places at = places_of(o, run);
    Head from(o, o.x_stride, first), to(o, o.y_stride, first);
    Turned<T> p[U];
#pragma unroll
    for (int u = 0; u < U; u++, from.advance())
        if (first + u < o.heads) p[u] = load_pairs<ALIGNED>(t.x + from.at, at);
    if (t.position < 0 || t.position >= o.table) return;
    const int64_t row = t.position * o.half;
    const Run<Real<T>, N> cos = get_run<ALIGNED, N>(o.cos + row, run * N, o.half);
    Run<Real<T>, N> sin = get_run<ALIGNED, N>(o.sin + row, run * N, o.half);
#pragma unroll
    for (int k = 0; k < N; k++) sin.put(k, o.sign * sin.get(k));
#pragma unroll
    for (int u = 0; u < U; u++, to.advance()) {
        if (first + u >= o.heads) continue;
        T *y = t.template target<STORES>(o, to);
        if (!STORES || to.in_group + 1 < to.per_group)
            turn_all<ALIGNED>(o, &p[u], (const T *)y, at, cos, sin);
        put_run<ALIGNED, N>(y, at.low, at.low_end, p[u].low);
        put_run<ALIGNED, N>(y, at.high, at.high_end, p[u].high);
    }
}

template <bool ALIGNED, bool STORES, typename T>
__device__ __forceinline__ void copy_heads(const Rope<T> &o, const Token<T> &t, uint32_t first, int run) {
    constexpr int N = Rope<T>::N;
    if (t.position < 0 || t.position >= o.table) return;
    Head from(o, o.x_stride, first), to(o, o.y_stride, first);
    for (uint32_t head = first; head < first + HEADS && head < o.heads; head++) {
        T *y = t.template target<STORES>(o, to) + 2 * o.half;
        Run<T, N> v = get_run<ALIGNED, N>(t.x + from.at + 2 * o.half, run * N, o.rest);
        if (o.add) {
            const Run<T, N> old = get_run<ALIGNED, N>((const T *)y, run * N, o.rest);
#pragma unroll
            for (int k = 0; k < N; k++) v.put(k, old.get(k) + v.get(k));
        }
        put_run<ALIGNED, N>(y, run * N, o.rest, v);
        from.advance();
        to.advance();
    }
}

template <typename T, bool ALIGNED, bool STORES>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rotate(const __grid_constant__ Rope<T> o, DeviceAssert *failure, const char *message) {
    constexpr int U = ALIGNED ? HEADS : 1;
    const uint32_t token = blockIdx.x * blockDim.z + threadIdx.z,
                   share = blockIdx.y * blockDim.y + threadIdx.y;
    const int run = (int)(blockIdx.z * blockDim.x + threadIdx.x);
    const bool idle = token >= o.tokens || share >= o.shares || run >= o.pair_runs + o.rest_runs;
    const uint32_t s = token / o.samples, b = token % o.samples;
    Token<T> t = {o.x + s * o.x_stride[0] + b * o.x_stride[1], o.y + s * o.y_stride[0] + b * o.y_stride[1], 0,
                  0};
    allow_next_kernel();
    if (STORES && !idle) t.position = o.position[s], t.row = o.row[s];
    wait_for_kernel_before();
    if (idle) return;
    if (!STORES) t.position = o.position[(int64_t)b * o.length + s];
    if (run >= o.pair_runs)
        copy_heads<ALIGNED, STORES>(o, t, share * HEADS, run - o.pair_runs);
    else
        for (int u = 0; u < HEADS; u += U) rotate_heads<ALIGNED, STORES, U>(o, t, share * HEADS + u, run);
    if ((t.position < 0 || t.position >= o.table) && run == 0)
        raise_assert(failure, message, t.position, o.table);
}

const char *const rope_message = "rope: position %lld is outside the table of %lld positions";

/* The parameters that rope and rope_store share. */
template <typename T> static Rope<T> rope_of(const Call *c, const RopeAttr *a) {
    const Tensor *x = c->in[0], *cos = c->in[1], *sin = c->in[2], *y = c->out[0];
    const int64_t tokens = x->dim[0] * x->dim[1], heads = x->dim[2] * x->dim[3], width = x->dim[4];
    CHECK(tokens <= INT32_MAX && heads <= MOST_BLOCKS && width <= MOST_BLOCKS,
          "rope: there are %lld tokens of %lld heads of %lld elements, but the GPU's kernel supports at most "
          "2^31 - 1, "
          "65535 and "
          "65535",
          (long long)tokens, (long long)heads, (long long)width);
    Rope<T> o = {};
    o.x = data_of<T>(x), o.y = data_of<T>(y), o.cos = data_of<Real<T>>(cos), o.sin = data_of<Real<T>>(sin);
    o.position = ids_of(c->in[3]), o.table = cos->dim[0];
    o.tokens = (uint32_t)tokens, o.length = (uint32_t)x->dim[0], o.samples = (uint32_t)x->dim[1];
    for (int i = 0; i < 4; i++) o.x_stride[i] = x->stride[i], o.y_stride[i] = y->stride[i];
    o.heads = (uint32_t)heads, o.per_group = (uint32_t)x->dim[3], o.shares = (uint32_t)ceil_div(heads, HEADS);
    o.half = a->dim / 2, o.rest = (int)width - 2 * o.half;
    o.pair_runs = (int)ceil_div(o.half, VEC<T>), o.rest_runs = (int)ceil_div(o.rest, VEC<T>);
    o.sign = a->inverse ? -1 : 1, o.interleaved = a->interleaved, o.add = accumulates(y);
    return o;
}

template <typename T, bool STORES> static void launch(const Call *c, const Rope<T> &o, bool aligned) {
    aligned = aligned && rows_are_aligned(c->in[0]) && rows_are_aligned(c->out[0]) && o.half % VEC<T> == 0 &&
              aligned_16(o.cos) && aligned_16(o.sin);
    const int64_t runs = o.pair_runs + o.rest_runs, along = least(runs, THREADS),
                  across = ceil_div(o.shares, ceil_div(o.shares, THREADS / along)),
                  deep = least(THREADS / (along * across), MOST_DEEP);
    const dim3 block((unsigned)along, (unsigned)across, (unsigned)deep),
        grid((unsigned)ceil_div(o.tokens, deep), (unsigned)ceil_div(o.shares, across),
             (unsigned)ceil_div(runs, along));
    const auto kernel = aligned ? rotate<T, true, STORES> : rotate<T, false, STORES>;
    launch_pdl(c, grid, block, 0, kernel, o, cuda_of(c->device)->failure, rope_message);
}

template <typename T> static void rope(const Call *c) {
    launch<T, false>(c, rope_of<T>(c, (const RopeAttr *)c->attr), true);
}

template <typename T> static void rotate_and_store(const Call *c) {
    Rope<T> o = rope_of<T>(c, &((const RopePagedAttr *)c->attr)->rope);
    o.row = ids_of(c->in[4]);
    for (int i = 0; i < 2; i++) {
        const Tensor *pool = c->out[2 + i];
        o.pool[i] = data_of<T>(pool), o.pool_row[i] = pool->stride[0], o.pool_group[i] = pool->stride[2];
    }
    launch<T, true>(c, o, rows_are_aligned(c->out[2]) && rows_are_aligned(c->out[3]));
}

static void check_types(const Call *c) {
    const Tensor *x = c->in[0], *cos = c->in[1], *sin = c->in[2], *y = c->out[0];
    const DType table = x->dtype == F64 ? F64 : F32;
    CHECK(x->dtype == y->dtype && cos->dtype == table && sin->dtype == table,
          "rope: x is %s and y is %s, with tables of %s and %s", dtype_name((DType)x->dtype),
          dtype_name((DType)y->dtype), dtype_name((DType)cos->dtype), dtype_name((DType)sin->dtype));
}

extern "C" void cuda_rope(const Call *c) {
    const Tensor *x = c->in[0];
    check_types(c);
    if (tensor_count(x)) STORAGE_SWITCH(x->dtype, rope<T>(c));
}

void rope_store(const Call *c) {
    check_types(c);
    STORAGE_SWITCH(c->in[0]->dtype, rotate_and_store<T>(c));
}
