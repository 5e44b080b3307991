/* The operands of the gated delta rule, and the kernels that its forward and backward passes share.
 * kernels/cpu/gated_delta_rule.c contains the formulas. The triangular systems of all chunks are inverted first. Then
 * a block computes some columns of v for one value head, chunk by chunk; columns are independent. */
#pragma once

#include "kernels/cuda/mamba/mamba.cuh"

template <typename T> struct Rule {
    typedef Real<T> R;
    const T *qkv, *alpha, *beta_in;
    Cells a_log, dt_bias;
    const int64_t *start;
    int64_t s, b, hk, hv, d, n, q, chunks, width; /* q: positions per chunk; width: of a row of qkv */
    int64_t alpha_s, alpha_b, beta_s, beta_b;     /* strides */
    int64_t tile;                                 /* number of columns of v per block */
    bool normalize;
    R eps;
    R *rows_q, *rows_k;      /* [b,hk,s,d]: the normalized rows */
    R *qk, *kk;              /* [b,hk,s,q]: row i holds q[i].k[j] and k[i].k[j] for j <= i in its chunk */
    R *decays, *kept, *beta; /* [b,hv,s]: a, p and beta */
    R *pairs, *inverse;      /* [b,hv,s,q]: L, and the inverse of the triangular matrix */

    __device__ __forceinline__ int64_t key_head(int64_t head) const { return head / (hv / hk); }
    __device__ __forceinline__ const T *q_of(int64_t sample, int64_t key, int64_t t) const {
        return qkv + (t * b + sample) * width + key * d;
    }
    __device__ __forceinline__ const T *k_of(int64_t sample, int64_t key, int64_t t) const {
        return q_of(sample, key, t) + hk * d;
    }
    __device__ __forceinline__ const T *v_of(int64_t sample, int64_t head, int64_t t) const {
        return qkv + (t * b + sample) * width + 2 * hk * d + head * n;
    }
    __device__ __forceinline__ int64_t chunk_first(int64_t t) const { return t / q * q; }
    __device__ __forceinline__ int64_t chunk_last(int64_t t) const {
        const int64_t end = chunk_first(t) + q;
        return (end < s ? end : s) - 1;
    }
    __device__ __forceinline__ bool begins(int64_t sample, int64_t t) const {
        return start ? start[sample * s + t] == t : t == 0;
    }
    __device__ __forceinline__ R raw(int64_t sample, int64_t head, int64_t t) const {
        return to_real<R>(alpha[t * alpha_s + sample * alpha_b + head]) + dt_bias.get<R>(head);
    }
    __device__ __forceinline__ R rate(int64_t head) const { return -exp(a_log.get<R>(head)); }
    __device__ __forceinline__ R query_scale() const { return 1 / sqrt((R)d); }
    /* Returns the index of a position in arrays [b,h,s]. */
    __device__ __forceinline__ int64_t at(int64_t sample, int64_t heads, int64_t head, int64_t t) const {
        return (sample * heads + head) * s + t;
    }
};

/* The sizes of the parts of the scratch memory, in elements. */
struct RuleSizes {
    int64_t rows, products, gates, pairs, states, values, sums; /* one array of each */
    size_t element;
};
static inline RuleSizes rule_sizes(const DeltaRuleAttr *a, Tensor *const *in) {
    const Tensor *x = in[0];
    const int64_t s = x->dim[0], b = x->dim[1], hv = tensor_width(in[1]), chunks = ceil_div(s, a->chunk),
                  all = b * hv * s;
    return {b * a->key_heads * s * a->key_dim,
            b * a->key_heads * s * a->chunk,
            all,
            all * a->chunk,
            b * hv * chunks * a->key_dim * a->value_dim,
            all * a->value_dim,
            2 * b * hv * chunks,
            x->dtype == F64 ? sizeof(double) : sizeof(float)};
}
static inline int64_t shared_scratch(const RuleSizes &z) {
    return 2 * z.rows + 2 * z.products + 3 * z.gates + 2 * z.pairs;
}

/* Returns the shared memory of a block in bytes: `tile` columns of the state, and of two rows per position of a
 * chunk. */
template <typename T> static size_t tile_bytes(const Rule<T> &o) {
    return (size_t)((o.d + 2 * o.q) * o.tile) * sizeof(Real<T>);
}

/* Returns the operands, and sets `end` to the memory after the shared scratch. */
template <typename T>
static Rule<T> rule_of(const DeltaRuleAttr *a, Tensor *const *in, void *scratch, Real<T> **end) {
    const Tensor *x = in[0], *alpha = in[1], *beta = in[2];
    const RuleSizes z = rule_sizes(a, in);
    Rule<T> o = {};
    same_type("gated_delta_rule", x, alpha);
    same_type("gated_delta_rule", x, beta);
    o.qkv = data_of<T>(x), o.alpha = data_of<T>(alpha), o.beta_in = data_of<T>(beta);
    o.a_log = cells(in[3]), o.dt_bias = cells(in[4]), o.start = ids_of(in[5]);
    o.s = x->dim[0], o.b = x->dim[1], o.width = x->dim[2], o.hk = a->key_heads, o.hv = tensor_width(alpha);
    o.d = a->key_dim, o.n = a->value_dim, o.q = a->chunk, o.chunks = ceil_div(o.s, o.q);
    o.alpha_s = alpha->stride[0], o.alpha_b = alpha->stride[1];
    o.beta_s = beta->stride[0], o.beta_b = beta->stride[1];
    o.normalize = a->normalize, o.eps = (Real<T>)a->eps;
    for (o.tile = 16; o.tile > 1 && tile_bytes(o) > 40 * 1024;) o.tile /= 2;
    CHECK(tile_bytes(o) <= 40 * 1024,
          "gated_delta_rule: a chunk has %lld positions, and keys have width %lld", (long long)o.q,
          (long long)o.d);
    o.rows_q = (Real<T> *)scratch, o.rows_k = o.rows_q + z.rows, o.qk = o.rows_k + z.rows;
    o.kk = o.qk + z.products, o.decays = o.kk + z.products, o.kept = o.decays + z.gates;
    o.beta = o.kept + z.gates, o.pairs = o.beta + z.gates, o.inverse = o.pairs + z.pairs;
    *end = o.inverse + z.pairs;
    return o;
}

/* Returns, to all threads of a block, the factor that normalizes a row of q or k. */
template <typename T>
__device__ __forceinline__ Real<T> row_scale(const Rule<T> &o, const T *x, Real<T> *room) {
    typedef Real<T> R;
    R sum = 0;
    for (int64_t m = threadIdx.x; m < o.d; m += blockDim.x) sum += to_real<R>(x[m]) * to_real<R>(x[m]);
    return o.normalize ? 1 / sqrt(block_sum(sum, room) + o.eps) : (R)1;
}

/* A block normalizes a key head's rows of q and k at one position. */
template <typename T> static __global__ void __launch_bounds__(THREADS) rule_rows(Rule<T> o) {
    typedef Real<T> R;
    __shared__ R room[32];
    for (int64_t unit = blockIdx.x; unit < o.b * o.hk * o.s; unit += gridDim.x) {
        const int64_t t = unit % o.s, key = unit / o.s % o.hk, sample = unit / o.s / o.hk;
        const T *q = o.q_of(sample, key, t), *k = o.k_of(sample, key, t);
        const R of_q = row_scale(o, q, room) * o.query_scale(), of_k = row_scale(o, k, room);
        for (int64_t m = threadIdx.x; m < o.d; m += THREADS) {
            o.rows_q[unit * o.d + m] = of_q * to_real<R>(q[m]);
            o.rows_k[unit * o.d + m] = of_k * to_real<R>(k[m]);
        }
    }
}

template <typename T> static __global__ void rule_products(Rule<T> o) {
    typedef Real<T> R;
    GRID_LOOP(e, o.b * o.hk * o.s * o.q) {
        const int64_t row = e / o.q, i = row % o.s, j = o.chunk_first(i) + e % o.q;
        if (j > i) continue;
        const R *q = o.rows_q + row * o.d, *k = o.rows_k + row * o.d, *other = o.rows_k + (row - i + j) * o.d;
        R qk = 0, kk = 0;
        for (int64_t m = 0; m < o.d; m++) qk += q[m] * other[m], kk += k[m] * other[m];
        o.qk[e] = qk, o.kk[e] = kk;
    }
}

/* A thread computes a, p and beta for a value head in one chunk. */
template <typename T> static __global__ void rule_gates(Rule<T> o) {
    typedef Real<T> R;
    GRID_LOOP(e, o.b * o.hv * o.chunks) {
        const int64_t first = e % o.chunks * o.q, head = e / o.chunks % o.hv, sample = e / o.chunks / o.hv;
        const R rate = o.rate(head);
        R kept = 1;
        for (int64_t t = first; t <= o.chunk_last(first); t++) {
            const int64_t at = o.at(sample, o.hv, head, t);
            const R a = o.begins(sample, t) ? (R)0 : exp(rate * softplus(o.raw(sample, head, t)));
            kept *= a;
            o.decays[at] = a, o.kept[at] = kept;
            o.beta[at] = sigmoid(to_real<R>(o.beta_in[t * o.beta_s + sample * o.beta_b + head]));
        }
    }
}

/* For a value head in one chunk, a thread computes a column of L, and one of the inverse X of the triangular matrix:
 * X[j,j] = 1, X[i,j] = - sum over j <= m < i of L[i,m] (k[i].k[m]) beta[m] X[m,j]. */
template <typename T> static __global__ void rule_inverses(Rule<T> o) {
    typedef Real<T> R;
    GRID_LOOP(e, o.b * o.hv * o.s) {
        const int64_t t = e % o.s, head = e / o.s % o.hv, sample = e / o.s / o.hv, first = o.chunk_first(t),
                      j = t - first, at = e - j, count = o.chunk_last(t) - first + 1;
        const R *kk = o.kk + o.at(sample, o.hk, o.key_head(head), first) * o.q, *beta = o.beta + at,
                *decays = o.decays + at;
        R *pairs = o.pairs + at * o.q, *inverse = o.inverse + at * o.q, pair = 1;
        for (int64_t i = j; i < count; i++) {
            if (i > j) pair *= decays[i];
            pairs[i * o.q + j] = pair;
            R sum = i == j ? (R)1 : (R)0, between = 1;
            for (int64_t m = i - 1; m >= j; m--) {
                between *= decays[m + 1];
                sum -= between * kk[i * o.q + m] * beta[m] * inverse[m * o.q + j];
            }
            inverse[i * o.q + j] = sum;
        }
    }
}

/* The outputs of rule_chunks. NULL means that an output is not needed. */
template <typename T> struct ChunkOutputs {
    T *y;
    Real<T> *states, *errors; /* [b,hv,chunks,d,n]: the states before the chunks; [b,hv,s,n]: e */
};

/* A block computes `tile` columns of a value head, chunk by chunk. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) rule_chunks(Rule<T> o, ChunkOutputs<T> out) {
    typedef Real<T> R;
    extern __shared__ __align__(16) unsigned char shared[];
    const int64_t tile = o.tile, tiles = (o.n + tile - 1) / tile;
    R *state = (R *)shared, *rest = state + o.d * tile, *u = rest + o.q * tile;
    for (int64_t unit = blockIdx.x; unit < o.b * o.hv * tiles; unit += gridDim.x) {
        const int64_t column = unit % tiles * tile, head = unit / tiles % o.hv, sample = unit / tiles / o.hv,
                      key = o.key_head(head), columns = o.n - column < tile ? o.n - column : tile;
        for (int64_t e = threadIdx.x; e < o.d * tile; e += THREADS) state[e] = 0;
        for (int64_t chunk = 0; chunk < o.chunks; chunk++) {
            const int64_t first = chunk * o.q, count = o.chunk_last(first) - first + 1,
                          at = o.at(sample, o.hv, head, first), row = o.at(sample, o.hk, key, first);
            const R *k = o.rows_k + row * o.d, *q = o.rows_q + row * o.d, *qk = o.qk + row * o.q,
                    *pairs = o.pairs + at * o.q, *inverse = o.inverse + at * o.q, *kept = o.kept + at,
                    *to_end = pairs + (count - 1) * o.q;
            __syncthreads();
            for (int64_t e = threadIdx.x; out.states && e < o.d * columns; e += THREADS)
                out.states[(((sample * o.hv + head) * o.chunks + chunk) * o.d + e / columns) * o.n + column +
                           e % columns] = state[e / columns * tile + e % columns];
            for (int64_t e = threadIdx.x; e < count * columns; e += THREADS) {
                const int64_t i = e / columns, c = e % columns;
                R sum = 0;
                for (int64_t m = 0; m < o.d; m++) sum += k[i * o.d + m] * state[m * tile + c];
                rest[i * tile + c] = to_real<R>(o.v_of(sample, head, first + i)[column + c]) - kept[i] * sum;
            }
            __syncthreads();
            for (int64_t e = threadIdx.x; e < count * columns; e += THREADS) {
                const int64_t i = e / columns, c = e % columns;
                R sum = 0;
                for (int64_t j = 0; j <= i; j++) sum += inverse[i * o.q + j] * rest[j * tile + c];
                if (out.errors) out.errors[(at + i) * o.n + column + c] = sum;
                u[i * tile + c] = o.beta[at + i] * sum;
            }
            __syncthreads();
            for (int64_t e = threadIdx.x; out.y && e < count * columns; e += THREADS) {
                const int64_t i = e / columns, c = e % columns;
                R of_state = 0, sum = 0;
                for (int64_t m = 0; m < o.d; m++) of_state += q[i * o.d + m] * state[m * tile + c];
                for (int64_t j = 0; j <= i; j++)
                    sum += pairs[i * o.q + j] * qk[i * o.q + j] * u[j * tile + c];
                out.y[(((first + i) * o.b + sample) * o.hv + head) * o.n + column + c] =
                    from_real<T>(sum + kept[i] * of_state);
            }
            __syncthreads();
            for (int64_t e = threadIdx.x; e < o.d * columns; e += THREADS) {
                const int64_t m = e / columns, c = e % columns;
                R sum = kept[count - 1] * state[m * tile + c];
                for (int64_t j = 0; j < count; j++) sum += to_end[j] * k[j * o.d + m] * u[j * tile + c];
                state[m * tile + c] = sum;
            }
        }
        __syncthreads();
    }
}

/* Computes the scratch operands. */
template <typename T> static void prepare_rule(const Call *c, const Rule<T> &o) {
    rule_rows<T><<<grid_for(c, o.b * o.hk * o.s, 1), THREADS, 0, stream_of(c)>>>(o);
    LAUNCHED();
    rule_products<T><<<grid_for(c, o.b * o.hk * o.s * o.q, THREADS), THREADS, 0, stream_of(c)>>>(o);
    LAUNCHED();
    rule_gates<T><<<grid_for(c, o.b * o.hv * o.chunks, THREADS), THREADS, 0, stream_of(c)>>>(o);
    LAUNCHED();
    rule_inverses<T><<<grid_for(c, o.b * o.hv * o.s, THREADS), THREADS, 0, stream_of(c)>>>(o);
    LAUNCHED();
}

/* Returns the number of blocks for kernels whose blocks compute `tile` columns of a value head. */
template <typename T> static unsigned column_blocks(const Call *c, const Rule<T> &o) {
    return grid_for(c, o.b * o.hv * ceil_div(o.n, o.tile), 1);
}
