/* Computes the ops for keys in pages (kernels/ops.def). kernels/cpu/attention.c contains the formulas. Keys
 * are divided into splits of SPLIT rows. The softmax of each split is computed separately, and the splits are
 * then merged in order, so that a token's result does not depend on other tokens or on the number of blocks.
 * If there would be too few blocks for the GPU, each split has a separate block, and a second kernel merges
 * the splits. Otherwise, each block computes all splits for some heads. Splits are merged with the same
 * operations in both cases. y and lse are written. */
#include "kernels/cuda/attention/paged.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/pdl.cuh"

#include <algorithm>

enum {
    THREADS = 128,
    WARPS = THREADS / 32,
    KEYS = 4 /* number of keys that a warp loads concurrently */,
    MOST_HEADS = 8
};

static __device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
static __device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }

/* Computes the factors by which the old result and a new result are multiplied when they are merged. `max` is
 * the new result's largest score. Updates the largest score and the sum of the merged result. */
template <typename R> struct Merge {
    R old, fresh;

    __device__ __forceinline__ Merge(R *most, R *all, R max, R sum) {
        const R m = larger(*most, max);
        old = *all == 0 ? (R)0 : exp(*most - m), fresh = exp(max - m);
        *most = m, *all = fma(*all, old, times(sum, fresh));
    }
    __device__ __forceinline__ R of(R y, R more) const { return fma(y, old, times(more, fresh)); }
};

template <typename R, typename T> struct Block {
    const Paged &p;
    int64_t token, group, head; /* head: index, within the group, of the block's first head */
    const int64_t *pages;
    R *q, *score; /* in shared memory: [H,d], [H,SPLIT] */

    __device__ __forceinline__ int64_t row(int64_t key) const {
        return pages[key / p.attr.page] * p.attr.page + key % p.attr.page;
    }
};

/* Returns a key's score. x is the scaled product of query and key. */
template <typename R>
static __device__ __forceinline__ R score_of(const Paged &p, const Cells bias, R x, int64_t head,
                                             int64_t distance) {
    const AttentionAttr &a = p.attr;
    if (a.softcap != 0) x = (R)a.softcap * tanh(x / (R)a.softcap);
    if (a.alibi != 0) x += (R)alibi_bias(&a, head, distance);
    if (p.bias_heads)
        x += bias.get<R>(relative_bucket(&p.buckets, distance) * p.bias_heads + a.first_local + head);
    return x;
}

/* Computes the scaled products of keys [lo, hi) of a split. */
template <typename R, typename T, int H>
static __device__ void multiply_keys(const Block<R, T> &b, const T *k, int64_t first, int64_t lo,
                                     int64_t hi) {
    const Paged &p = b.p;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int64_t j = lo + warp * KEYS; j < hi; j += WARPS * KEYS) {
        R dot[KEYS][H] = {};
        const T *key[KEYS];
#pragma unroll
        for (int u = 0; u < KEYS; u++)
            key[u] = k + b.row(j + u < hi ? j + u : hi - 1) * p.k_row + b.group * p.k_group;
        for (int64_t c = lane; c < p.d; c += 32)
#pragma unroll
            for (int u = 0; u < KEYS; u++) {
                const R x = to_real<R>(key[u][c]);
#pragma unroll
                for (int h = 0; h < H; h++) dot[u][h] += b.q[h * p.d + c] * x;
            }
#pragma unroll
        for (int u = 0; u < KEYS; u++)
#pragma unroll
            for (int h = 0; h < H; h++) {
                const R x = warp_sum(dot[u][h]);
                if (lane == h && j + u < hi) b.score[h * SPLIT + j + u - first] = x;
            }
    }
}

/* Replaces products with exp(score - max), for keys [lo, hi) of a split. Each warp processes every WARPS-th
 * head. */
template <typename R, typename T>
static __device__ void soften(const Block<R, T> &b, const Cells bias, int heads, int64_t first, int64_t lo,
                              int64_t hi, R *max, R *sum) {
    const int lane = threadIdx.x % 32;
    const int64_t at = b.p.position[b.token];
#pragma unroll 1
    for (int h = threadIdx.x / 32; h < heads; h += WARPS) {
        R *const score = b.score + h * SPLIT - first;
        R m = -(R)INFINITY, s = 0;
#pragma unroll 1
        for (int64_t j = lo + lane; j < hi; j += 32) {
            score[j] = score_of<R>(b.p, bias, score[j], b.group * b.p.r + b.head + h, j - at);
            m = larger(m, score[j]);
        }
        m = warp_max(m);
        for (int64_t j = lo + lane; j < hi; j += 32) s += score[j] = exp(score[j] - m);
        s = warp_sum(s);
        if (lane == 0) max[h] = m, sum[h] = s;
    }
}

/* Computes the splits of a block. For each token, head and split, `part` receives e values, the largest score
 * and the sum. `part` is NULL if each block computes all splits. */
template <typename T, int H, int COLUMNS>
static __global__ void __launch_bounds__(THREADS)
    attend(const Paged p, const Cells bias, const T *q, const T *k, const T *v, T *y, Real<T> *lse,
           Real<T> *part) {
    typedef Real<T> R;
    extern __shared__ double memory[];
    __shared__ R max[H], sum[H];
    const int64_t token = blockIdx.x;
    R *const queries = (R *)memory;
    const Block<R, T> b = {p,
                           token,
                           (int64_t)blockIdx.y / p.chunks,
                           (int64_t)(blockIdx.y % p.chunks) * H,
                           p.table + p.request[token] * p.width,
                           queries,
                           queries + H * p.d};
    const int heads = (int)(p.r - b.head < H ? p.r - b.head : H), tid = threadIdx.x;
    for (int64_t i = tid; i < H * p.d; i += THREADS) {
        const int64_t h = i / p.d, c = i % p.d;
        queries[i] =
            h < heads
                ? (R)p.attr.scale *
                      to_real<R>(q[token * p.q_token + b.group * p.q_group + (b.head + h) * p.q_head + c])
                : (R)0;
    }
    __syncthreads();
    const Range keys(p, token);
    const bool one = part != NULL;
    const int64_t begin = one ? blockIdx.z : keys.lo / SPLIT,
                  end = one ? begin + 1 : (keys.hi + SPLIT - 1) / SPLIT;
    R result[H][COLUMNS] = {}, most[H], all[H];
#pragma unroll
    for (int h = 0; h < H; h++) most[h] = -(R)INFINITY, all[h] = 0;
    for (int64_t split = begin; split < end; split++) {
        const int64_t first = split * SPLIT, lo = keys.lo > first ? keys.lo : first,
                      hi = keys.hi < first + SPLIT ? keys.hi : first + SPLIT;
        if (lo >= hi) continue;
        multiply_keys<R, T, H>(b, k, first, lo, hi);
        __syncthreads();
        soften(b, bias, heads, first, lo, hi, max, sum);
        __syncthreads();
        R more[H][COLUMNS] = {};
#pragma unroll 4
        for (int64_t j = lo; j < hi; j++) {
            const T *value = v + b.row(j) * p.v_row + b.group * p.v_group;
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                const int64_t c = tid + i * THREADS;
                const R x = c < p.e ? to_real<R>(value[c]) : (R)0;
#pragma unroll
                for (int h = 0; h < H; h++) more[h][i] += b.score[h * SPLIT + j - first] * x;
            }
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            if (h >= heads) continue;
            const Merge<R> merge(&most[h], &all[h], max[h], sum[h]);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) result[h][i] = merge.of(result[h][i], more[h][i]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < H; h++) {
        const int64_t head = b.group * p.r + b.head + h, at = token * p.g * p.r + head;
        if (h >= heads) continue;
        R *const out = one ? part + (at * p.splits + begin) * (p.e + 2) : NULL;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            const int64_t c = tid + i * THREADS;
            if (c >= p.e) continue;
            if (one)
                out[c] = result[h][i];
            else
                y[at * p.e + c] = from_real<T>(all[h] == 0 ? (R)0 : result[h][i] / all[h]);
        }
        if (tid == 0 && one) out[p.e] = most[h], out[p.e + 1] = all[h];
        if (tid == 0 && !one)
            lse[head * p.tokens + token] = all[h] == 0 ? -(R)INFINITY : most[h] + log(all[h]);
    }
}

/* Each block merges the splits of one token and one head. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    merge_splits(const Paged p, const Real<T> *part, T *y, Real<T> *lse) {
    typedef Real<T> R;
    const int64_t at = blockIdx.x, heads = p.g * p.r, token = at / heads, head = at % heads;
    for (int64_t c = threadIdx.x; c < p.e; c += THREADS) {
        R result = 0, most = -(R)INFINITY, all = 0;
        for (int split = 0; split < p.splits; split++) {
            const R *of = part + (at * p.splits + split) * (p.e + 2);
            if (of[p.e + 1] == 0) continue;
            const Merge<R> merge(&most, &all, of[p.e], of[p.e + 1]);
            result = merge.of(result, of[c]);
        }
        y[at * p.e + c] = from_real<T>(all == 0 ? (R)0 : result / all);
        if (c == 0) lse[head * p.tokens + token] = all == 0 ? -(R)INFINITY : most + log(all);
    }
}

static int heads_of_block(int64_t r) { return r == 1 ? 1 : r <= 4 ? 4 : MOST_HEADS; }

static Paged paged_of(const Call *c) {
    const Tensor *q = c->in[0], *k = c->in[1], *v = c->in[2], *table = c->in[3], *bias = c->in[7];
    const AttentionAttr *a = (const AttentionAttr *)c->attr;
    Paged p = {};
    p.tokens = q->dim[0], p.g = q->dim[2], p.r = q->dim[3], p.d = q->dim[4], p.e = v->dim[4];
    p.q_token = q->stride[0], p.q_group = q->stride[2], p.q_head = q->stride[3];
    p.k_row = k->stride[0], p.k_group = k->stride[2], p.v_row = v->stride[0], p.v_group = v->stride[2];
    p.width = table->dim[1];
    p.table = ids_of(table), p.request = ids_of(c->in[4]), p.position = ids_of(c->in[5]),
    p.lengths = ids_of(c->in[6]);
    p.attr = *a;
    CHECK(p.e <= 4 * THREADS, "paged_attention: the width of values, %lld, is too large", (long long)p.e);
    CHECK(p.lengths || a->window_right == 0,
          "paged_attention: lengths must be given, because tokens attend to later rows");
    if (bias) {
        p.buckets = relative_buckets_make(bias->dim[0], a->bias_max_distance, a->bias_bidirectional);
        p.bias_heads = bias->dim[1];
    }
    p.chunks = (int)ceil_div(p.r, heads_of_block(p.r));
    p.tiles = paged_has_tiles(c);
    const int64_t blocks = p.tiles ? paged_tile_blocks(c, p) : p.tokens * p.g * p.chunks,
                  splits = ceil_div(p.width * a->page, SPLIT);
    const bool few = blocks < 4 * (int64_t)cuda_of(c->device)->multiprocessors && splits <= UINT16_MAX;
    p.splits = few ? (int)splits : 1;
    return p;
}

static size_t part_bytes(const Paged &p, DType dtype) {
    const int64_t each = p.splits > 1 ? p.splits * (p.e + 2) : 0;
    return (size_t)(p.tokens * p.g * p.r * each) * (dtype == F64 ? sizeof(double) : sizeof(float));
}

extern "C" size_t cuda_plans_paged_attention(const Call *c) {
    return part_bytes(paged_of(c), (DType)c->in[0]->dtype);
}

template <typename T, int H, int COLUMNS> static void launch(const Call *c, const Paged &p) {
    typedef Real<T> R;
    const size_t shared = (size_t)H * (size_t)(p.d + SPLIT) * sizeof(R),
                 bytes = part_bytes(p, (DType)c->in[0]->dtype);
    R *part = bytes ? (R *)cuda_scratch(c->device, bytes) : NULL;
    T *y = data_of<T>(c->out[0]);
    R *lse = data_of<R>(c->out[1]);
    CUDA_CHECK(cudaFuncSetAttribute(attend<T, H, COLUMNS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)shared));
    const dim3 grid((unsigned)p.tokens, (unsigned)(p.g * p.chunks), (unsigned)(part ? p.splits : 1));
    attend<T, H, COLUMNS><<<grid, THREADS, shared, stream_of(c)>>>(
        p, cells(c->in[7]), data_of<T>(c->in[0]), data_of<T>(c->in[1]), data_of<T>(c->in[2]), y, lse, part);
    LAUNCHED();
    if (!part) return;
    merge_splits<T><<<(unsigned)(p.tokens * p.g * p.r), THREADS, 0, stream_of(c)>>>(p, part, y, lse);
    LAUNCHED();
}

template <typename T, int H> static void launch_heads(const Call *c, const Paged &p) {
    if (p.e <= THREADS)
        launch<T, H, 1>(c, p);
    else
        launch<T, H, 4>(c, p);
}

static float *part_of(const Call *c, const Paged &p) {
    const size_t bytes = part_bytes(p, (DType)c->in[0]->dtype);
    return bytes ? (float *)cuda_scratch(c->device, bytes) : NULL;
}

extern "C" void cuda_paged_attention(const Call *c) {
    const Paged p = paged_of(c);
    const int heads = heads_of_block(p.r);
    if (!tensor_count(c->in[0])) return;
    for (int i = 1; i < 3; i++)
        CHECK(c->in[i]->dtype == c->in[0]->dtype, "paged_attention: queries are %s, but the pool is %s",
              dtype_name((DType)c->in[0]->dtype), dtype_name((DType)c->in[i]->dtype));
    if (p.tiles) {
        paged_run_tiles(c, p, {}, part_of(c, p));
        return;
    }
    STORAGE_SWITCH(c->in[0]->dtype, {
        if (heads == 1)
            launch_heads<T, 1>(c, p);
        else if (heads == 4)
            launch_heads<T, 4>(c, p);
        else
            launch_heads<T, MOST_HEADS>(c, p);
    });
}

/* ---- rotation and attention ---- */

/* Returns the call to paged_attention with the rotated queries q. */
static Call attention_of(const Call *c, Tensor *q) {
    Call call = {};
    Tensor *const in[] = {q, c->out[2], c->out[3], c->in[5], c->in[6], c->in[3], NULL, NULL, c->in[7]};
    memcpy(call.in, in, sizeof in);
    call.out[0] = c->out[0], call.out[1] = c->out[1];
    call.device = c->device, call.attr = &((const RopePagedAttr *)c->attr)->attention;
    return call;
}

/* Returns true if the attention kernel itself rotates and stores rows, which is faster for a few tokens. The
 * results are bitwise equal to those of separate kernels. */
static bool rotates(const Call *c, const Paged &p) {
    return p.tiles && p.splits > 1 && !c->in[7] && p.d == p.e &&
           ((const RopePagedAttr *)c->attr)->rope.dim % 16 == 0 && aligned_16(c->in[1]->data) &&
           aligned_16(c->in[2]->data);
}

extern "C" size_t cuda_plans_rope_paged_attention(const Call *c) {
    const Call call = attention_of(c, c->out[0]);
    return cuda_plans_paged_attention(&call);
}

extern "C" void cuda_rope_paged_attention(const Call *c) {
    const Tensor *x = c->in[0], *cos = c->in[1];
    const RopeAttr *a = &((const RopePagedAttr *)c->attr)->rope;
    if (!tensor_count(c->out[0])) return;
    for (int i = 2; i < 4; i++)
        CHECK(c->out[i]->dtype == x->dtype, "rope_paged_attention: x is %s, but a pool is %s",
              dtype_name((DType)x->dtype), dtype_name((DType)c->out[i]->dtype));
    Tensor q = tensor_slice(x, 3, 0, x->dim[3] - 2);
    Call call = attention_of(c, &q);
    const Paged p = paged_of(&call);
    if (!rotates(c, p)) {
        rope_store(c);
        call.in[0] = c->out[0];
        cuda_paged_attention(&call);
        return;
    }
    const NewRows rows = {data_of<float>(cos),
                          data_of<float>(c->in[2]),
                          cos->dim[0],
                          a->dim / 2,
                          a->interleaved,
                          ids_of(c->in[4]),
                          {c->out[2]->data, c->out[3]->data},
                          cuda_of(c->device)->failure,
                          rope_message};
    paged_run_tiles(&call, p, rows, part_of(&call, p));
}

/* ---- store_rows ---- */

struct Stored {
    Rows from;
    Cells x, pool;
    /* number of elements, number of heads in a pool row, and stride of pool rows */
    int64_t n, heads, pool_row;
    bool vectors;
};

static Stored stored_of(const Tensor *x, const Tensor *pool) {
    Stored s = {};
    if (!pool) return s;
    s.from = rows_of(x), s.x = cells(x), s.pool = cells(pool);
    s.n = tensor_count(x), s.heads = x->dim[2] * x->dim[3], s.pool_row = pool->stride[0];
    s.vectors = x->dtype == pool->dtype && rows_are_aligned(x) && rows_are_aligned(pool);
    return s;
}

static __device__ __forceinline__ void store_some(const Stored &s, const int64_t *row) {
    const int64_t each = s.vectors ? 16 / (s.x.dtype == F64 ? 8 : s.x.dtype == F32 ? 4 : 2) : 1;
    GRID_LOOP(i, s.n / each) {
        const int64_t line = i * each / s.from.width, c = i * each % s.from.width;
        const int64_t to = row[line / s.heads] * s.pool_row + line % s.heads * s.from.width + c,
                      at = s.from(line) + c;
        if (s.vectors)
            ((uint4 *)s.pool.data)[to / each] = ((const uint4 *)s.x.data)[at / each];
        else if (s.pool.dtype == F64)
            s.pool.put(to, s.x.get<double>(at));
        else
            s.pool.put(to, s.x.get<float>(at));
    }
}

static __global__ void store(const __grid_constant__ Stored first, const __grid_constant__ Stored second,
                             const int64_t *row) {
    start_pdl();
    store_some(blockIdx.y ? second : first, row);
}

extern "C" void cuda_store_rows(const Call *c) {
    const Stored first = stored_of(c->in[0], c->out[0]), second = stored_of(c->in[2], c->out[1]);
    const int64_t n = std::max(first.n / (first.vectors ? 4 : 1), second.n / (second.vectors ? 4 : 1));
    if (n)
        launch_pdl(c, dim3(grid_for(c, n, 256), second.n ? 2 : 1), dim3(256), 0, store, first, second,
                   ids_of(c->in[1]));
}
