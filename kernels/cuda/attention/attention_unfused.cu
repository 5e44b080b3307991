/* Computes the ops of kernels/cpu/attention_unfused.c: reference attention, computed directly from the
 * definition, with all probabilities in memory. Tests compare attention.cu with this file. The two files
 * share no code, and the code in this file is not optimized. y and probs are written; dq, dk, dv, dsink and
 * dbias are written or accumulated. */
#include "kernels/cuda/common.cuh"

#include "base/philox.h"
#include "kernels/relative_buckets.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* A tensor [n,b,g,r,width] with strides in elements. For keys and values, r is 1. */
struct View {
    Cells cells;
    int64_t dim[5], stride[4];
    bool add;

    __device__ int64_t at(int64_t i, int64_t sample, int64_t group, int64_t head) const {
        return i * stride[0] + sample * stride[1] + group * stride[2] + head * stride[3];
    }
};

struct Problem {
    AttentionAttr attr;
    View q, k, v, y, dy;
    Cells probs, ds;                    /* [b,g,r,s,columns]; ds is the gradient of the scaled scores */
    Cells sink;                         /* has no data if there are no sinks, or in the backward pass */
    const int64_t *first_key, *lengths; /* read only by the forward pass */
    Cells bias; /* [buckets,heads]; has no data if there is no bias, or in the backward pass */
    RelativeBuckets buckets;
    int64_t bias_heads;
    int64_t rows, columns; /* rows = b g r s; columns is the number of keys, plus 1 with sinks */
};

/* Row i of head (group, head) of a sample. `number` is the row's index in the order of probs. */
struct Query {
    int64_t sample, group, head, i, number;

    __device__ Query(const Problem &p, int64_t n) : number(n) {
        i = n % p.q.dim[0], n /= p.q.dim[0];
        head = n % p.q.dim[3], n /= p.q.dim[3];
        group = n % p.q.dim[2], sample = n / p.q.dim[2];
    }
    __device__ int64_t in(const View &x) const { return x.at(i, sample, group, head); }
    __device__ int64_t key(const View &x, int64_t j) const { return x.at(j, sample, group, 0); }
    /* Returns the index of the row's head in the tensors of sinks and biases. */
    __device__ int64_t local(const Problem &p) const {
        return p.attr.first_local + group * p.q.dim[3] + head;
    }
    __device__ int64_t distance(const Problem &p, int64_t j) const {
        return slice_position(&p.attr.key, j) - slice_position(&p.attr.query, i);
    }
    __device__ int64_t bucket(const Problem &p, int64_t j) const {
        return relative_bucket(&p.buckets, distance(p, j));
    }
};

__device__ static bool visible(const Problem &p, const Query &q, int64_t key) {
    const AttentionAttr &a = p.attr;
    const int64_t at = slice_position(&a.key, key), query = slice_position(&a.query, q.i),
                  distance = at - query;
    if (a.window_left != WINDOW_OFF && distance < -a.window_left) return false;
    if (a.window_right != WINDOW_OFF && distance > a.window_right) return false;
    if (p.lengths && at >= p.lengths[q.sample]) return false;
    const int64_t first = p.first_key ? p.first_key[q.sample * p.q.dim[0] + q.i] : 0;
    return at >= first && (!a.chunk_size || (at - first) / a.chunk_size >= (query - first) / a.chunk_size);
}

template <typename R> __device__ static R keep(const Problem &p, const Query &q, int64_t key) {
    const DropoutAttr &d = p.attr.dropout;
    if (d.rate == 0) return 1;
    const int64_t head = p.attr.first_head + q.group * p.q.dim[3] + q.head,
                  line = ((d.first_sample + q.sample) * p.attr.heads + head) * d.seq_total +
                         slice_position(&p.attr.query, q.i),
                  index = line * d.seq_total + slice_position(&p.attr.key, key);
    return philox_u32(d.seed, d.site, (uint64_t)index) >= d.rate * 0x1p32 ? (R)(1 / (1 - d.rate)) : 0;
}

template <typename R> __device__ static R dot(const View &a, int64_t a_at, const View &b, int64_t b_at) {
    R sum = 0;
    for (int64_t c = 0; c < a.dim[4]; c++) sum += a.cells.get<R>(a_at + c) * b.cells.get<R>(b_at + c);
    return sum;
}

/* Returns the scaled score of a query and a key, before the soft cap. */
template <typename R> __device__ static R raw_score(const Problem &p, const Query &q, int64_t key) {
    return (R)p.attr.scale * dot<R>(p.q, q.in(p.q), p.k, q.key(p.k, key));
}
template <typename R> __device__ static R score_of(const Problem &p, const Query &q, int64_t key) {
    const R x = raw_score<R>(p, q, key), cap = (R)p.attr.softcap;
    R bias = p.bias.data ? p.bias.get<R>(q.bucket(p, key) * p.bias_heads + q.local(p)) : 0;
    if (p.attr.alibi != 0) bias = (R)alibi_bias(&p.attr, q.group * p.q.dim[3] + q.head, q.distance(p, key));
    return (cap == 0 ? x : cap * tanh(x / cap)) + bias;
}
/* Returns the derivative of a score with respect to the raw score. */
template <typename R> __device__ static R score_slope(const Problem &p, const Query &q, int64_t key) {
    const R cap = (R)p.attr.softcap;
    if (cap == 0) return 1;
    const R t = tanh(raw_score<R>(p, q, key) / cap);
    return 1 - t * t;
}

/* Runs the statement for each query; each warp processes one query at a time. */
#define QUERY_LOOP(n)                                                                                        \
    for (int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; n < p.rows;                             \
         n += (int64_t)gridDim.x * WARPS)

template <typename R> static __global__ void forward(const Problem p) {
    const int64_t lane = threadIdx.x % 32, t = p.k.dim[0];
    QUERY_LOOP(n) {
        const Query q(p, n);
        const int64_t row = n * p.columns;
        const R sink = p.sink.data ? p.sink.get<R>(q.local(p)) : -(R)INFINITY;
        R max = sink, sum = 0;
        for (int64_t j = lane; j < t; j += 32) {
            const R x = visible(p, q, j) ? score_of<R>(p, q, j) : -(R)INFINITY;
            p.probs.put(row + j, x);
            max = x > max ? x : max;
        }
        max = warp_max(max);
        for (int64_t j = lane; j < t; j += 32) {
            const R x = visible(p, q, j) ? exp(p.probs.get<R>(row + j) - max) : 0;
            p.probs.put(row + j, x);
            sum += x;
        }
        sum = warp_sum(sum);
        if (p.sink.data) {
            const R x = exp(sink - max);
            sum += x;
            if (lane == 0) p.probs.put(row + t, x / sum);
        }
        for (int64_t j = lane; j < t; j += 32)
            p.probs.put(row + j, sum == 0 ? 0 : p.probs.get<R>(row + j) / sum);
        __syncwarp();
        for (int64_t c = lane; c < p.v.dim[4]; c += 32) {
            R y = 0;
            for (int64_t j = 0; j < t; j++)
                y += p.probs.get<R>(row + j) * keep<R>(p, q, j) * p.v.cells.get<R>(q.key(p.v, j) + c);
            p.y.cells.put(q.in(p.y) + c, y);
        }
        __syncwarp();
    }
}

template <typename R> static __global__ void gradient_of_scores(const Problem p) {
    const int64_t lane = threadIdx.x % 32, t = p.k.dim[0];
    QUERY_LOOP(n) {
        const Query q(p, n);
        const int64_t row = n * p.columns;
        R delta = 0;
        for (int64_t j = lane; j < t; j += 32) {
            const R ds = keep<R>(p, q, j) * dot<R>(p.dy, q.in(p.dy), p.v, q.key(p.v, j));
            p.ds.put(row + j, ds);
            delta += p.probs.get<R>(row + j) * ds;
        }
        delta = warp_sum(delta);
        for (int64_t j = lane; j < t; j += 32)
            p.ds.put(row + j,
                     p.probs.get<R>(row + j) * (p.ds.get<R>(row + j) - delta) * score_slope<R>(p, q, j));
        if (lane == 0 && t < p.columns) p.ds.put(row + t, -p.probs.get<R>(row + t) * delta);
    }
}

/* Each warp processes one sink. For sinks of other ranks' heads, the result is 0. */
template <typename R>
static __global__ void gradient_of_sinks(const Problem p, Cells dsink, int64_t count, bool add) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, head = i - p.attr.first_local,
                  s = p.q.dim[0], heads = p.q.dim[2] * p.q.dim[3];
    if (i >= count) return;
    const bool mine = head >= 0 && head < heads;
    R sum = 0;
    for (int64_t k = threadIdx.x % 32; mine && k < p.q.dim[1] * s; k += 32)
        sum += p.ds.get<R>(((k / s * heads + head) * s + k % s) * p.columns + p.k.dim[0]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) dsink.put_or_add(i, sum, add);
}

/* Each warp processes one element. For elements of other ranks' heads, the result is 0. */
template <typename R>
static __global__ void gradient_of_biases(const Problem p, Cells dbias, int64_t count, bool add) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32,
                  head = i % p.bias_heads - p.attr.first_local, bucket = i / p.bias_heads, s = p.q.dim[0],
                  t = p.k.dim[0], heads = p.q.dim[2] * p.q.dim[3];
    if (i >= count) return;
    const bool mine = head >= 0 && head < heads;
    R sum = 0;
    for (int64_t k = 0; mine && k < p.q.dim[1] * s; k++) {
        const Query q(p, (k / s * heads + head) * s + k % s);
        for (int64_t j = threadIdx.x % 32; j < t; j += 32)
            if (q.bucket(p, j) == bucket) sum += p.ds.get<R>(q.number * p.columns + j);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) dbias.put_or_add(i, sum, add);
}

template <typename R> static __global__ void gradient_of_queries(const Problem p, View dq) {
    const int64_t t = p.k.dim[0];
    GRID_LOOP(i, p.rows * dq.dim[4]) {
        const Query q(p, i / dq.dim[4]);
        const int64_t c = i % dq.dim[4];
        R sum = 0;
        for (int64_t j = 0; j < t; j++)
            sum += p.ds.get<R>(q.number * p.columns + j) * p.k.cells.get<R>(q.key(p.k, j) + c);
        dq.cells.put_or_add(q.in(dq) + c, (R)p.attr.scale * sum, dq.add);
    }
}

/* Computes dk (from q and ds) or dv (from dy and the stored probabilities). */
template <typename R> static __global__ void gradient_of_keys(const Problem p, View out, bool values) {
    const int64_t t = p.k.dim[0], width = out.dim[4], b = p.q.dim[1], g = p.q.dim[2],
                  queries = p.q.dim[3] * p.q.dim[0];
    const View &x = values ? p.dy : p.q;
    GRID_LOOP(i, t * b * g * width) {
        const int64_t c = i % width, group = i / width % g, sample = i / width / g % b, j = i / width / g / b;
        R sum = 0;
        for (int64_t k = 0; k < queries; k++) {
            const Query q(p, (sample * g + group) * queries + k);
            const int64_t at = q.number * p.columns + j;
            const R w = values ? p.probs.get<R>(at) * keep<R>(p, q, j) : p.ds.get<R>(at);
            sum += w * x.cells.get<R>(q.in(x) + c);
        }
        out.cells.put_or_add(out.at(j, sample, group, 0) + c, values ? sum : (R)p.attr.scale * sum, out.add);
    }
}

/* ---- the ops ---- */

static View view_of(const Tensor *t) {
    View v = {};
    if (!t) return v;
    v.cells = cells(t), v.add = accumulates(t);
    for (int i = 0; i < 5; i++) v.dim[i] = t->dim[i];
    for (int i = 0; i < 4; i++) v.stride[i] = t->stride[i];
    return v;
}

static Problem problem(const Call *c, const Tensor *q, const Tensor *k, const Tensor *v,
                       const Tensor *probs) {
    Problem p = {};
    p.attr = *(const AttentionAttr *)c->attr;
    p.q = view_of(q), p.k = view_of(k), p.v = view_of(v);
    p.probs = cells(probs);
    p.rows = tensor_rows(q), p.columns = probs ? tensor_width(probs) : 0;
    return p;
}

static void put_buckets(Problem *p, const Tensor *bias) {
    if (!bias) return;
    p->bias_heads = bias->dim[1];
    p->buckets = relative_buckets_make(bias->dim[0], p->attr.bias_max_distance, p->attr.bias_bidirectional);
}

extern "C" void cuda_attention_unfused(const Call *c) {
    Problem p = problem(c, c->in[0], c->in[1], c->in[2], c->out[1]);
    p.first_key = ids_of(c->in[3]), p.lengths = ids_of(c->in[4]);
    p.y = view_of(c->out[0]), p.sink = cells(c->in[6]), p.bias = cells(c->in[5]);
    put_buckets(&p, c->in[5]);
    if (!p.rows) return;
    REAL_SWITCH(c->in[0]->dtype, forward<R><<<grid_for(c, p.rows, WARPS), THREADS, 0, stream_of(c)>>>(p));
    LAUNCHED();
}

/* The maxima are not negative, so comparing their bits as integers gives the same order. */
template <typename R> static __global__ void max_scores(const Problem p, double *max) {
    const int64_t lane = threadIdx.x % 32, t = p.k.dim[0], heads = p.q.dim[3];
    QUERY_LOOP(n) {
        const Query q(p, n);
        R most = 0;
        for (int64_t j = 0; j < t; j++) {
            if (!visible(p, q, j)) continue;
            R sum = 0;
            for (int64_t c = lane; c < p.q.dim[4]; c += 32)
                sum += p.q.cells.get<R>(q.in(p.q) + c) * p.k.cells.get<R>(q.key(p.k, j) + c);
            sum = (R)p.attr.scale * warp_sum(sum);
            most = sum > most ? sum : most;
        }
        if (lane == 0)
            atomicMax((long long *)(max + p.attr.first_head + q.group * heads + q.head),
                      __double_as_longlong((double)most));
    }
}

extern "C" void cuda_max_score(const Call *c) {
    Problem p = problem(c, c->in[0], c->in[1], c->in[1], NULL);
    p.first_key = ids_of(c->in[2]), p.lengths = ids_of(c->in[3]);
    if (!p.rows) return;
    REAL_SWITCH(c->in[0]->dtype, max_scores<R>
                <<<grid_for(c, p.rows, WARPS), THREADS, 0, stream_of(c)>>>(p, (double *)c->out[0]->data));
    LAUNCHED();
}

template <typename R> static void gradients(const Call *c, const Problem &p) {
    const Tensor *dq = c->out[0], *dk = c->out[1], *dv = c->out[2], *dsink = c->out[3], *dbias = c->out[4];
    if (p.rows) gradient_of_scores<R><<<grid_for(c, p.rows, WARPS), THREADS, 0, stream_of(c)>>>(p);
    LAUNCHED();
    if (dq && tensor_count(dq))
        gradient_of_queries<R>
            <<<grid_for(c, tensor_count(dq), THREADS), THREADS, 0, stream_of(c)>>>(p, view_of(dq));
    LAUNCHED();
    for (int values = 0; values < 2; values++) {
        const Tensor *out = values ? dv : dk;
        if (!out || !tensor_count(out)) continue;
        gradient_of_keys<R>
            <<<grid_for(c, tensor_count(out), THREADS), THREADS, 0, stream_of(c)>>>(p, view_of(out), values);
        LAUNCHED();
    }
    const int64_t sinks = dsink ? tensor_count(dsink) : 0, biases = dbias ? tensor_count(dbias) : 0;
    if (sinks)
        gradient_of_sinks<R><<<(unsigned)ceil_div(sinks, WARPS), THREADS, 0, stream_of(c)>>>(
            p, cells(dsink), sinks, accumulates(dsink));
    LAUNCHED();
    if (biases)
        gradient_of_biases<R><<<(unsigned)ceil_div(biases, WARPS), THREADS, 0, stream_of(c)>>>(
            p, cells(dbias), biases, accumulates(dbias));
    LAUNCHED();
}

/* Returns the size in bytes of ds in the arithmetic type. */
extern "C" size_t cuda_plans_attention_unfused_grad(const Call *c) {
    return (size_t)tensor_count(c->in[4]) * (c->in[1]->dtype == F64 ? sizeof(double) : sizeof(float));
}

extern "C" void cuda_attention_unfused_grad(const Call *c) {
    const DType dtype = (DType)c->in[1]->dtype;
    Problem p = problem(c, c->in[1], c->in[2], c->in[3], c->in[4]);
    p.dy = view_of(c->in[0]);
    put_buckets(&p, c->out[4]);
    p.ds.data = cuda_scratch(c->device, cuda_plans_attention_unfused_grad(c));
    p.ds.dtype = dtype == F64 ? F64 : F32;
    REAL_SWITCH(dtype, gradients<R>(c, p));
}
