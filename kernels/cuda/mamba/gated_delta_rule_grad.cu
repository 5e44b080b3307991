/* Computes the op gated_delta_rule_grad of kernels/cpu/gated_delta_rule.c, which contains the formulas. After the
 * states and their gradients, separate kernels compute the gradients of v, of q and k, and of the gates and
 * parameters. */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/mamba/delta_tiles.cuh"
#include "kernels/cuda/mamba/gated_delta_rule.cuh"

template <typename T> struct Grads {
    typedef Real<T> R;
    const T *dy;
    R *errors, *du; /* [b,hv,s,n] */
    R *dqk, *dkk;   /* [b,hk,s,q]: the gradients of qk and kk */
    R *states,
        *after; /* [b,hv,chunks,d,n]: the states before the chunks; the gradients of those after them */
    R *partial; /* [b,chunks,2,hv] */

    __device__ __forceinline__ const T *dy_of(const Rule<T> &o, int64_t sample, int64_t head,
                                              int64_t t) const {
        return dy + ((t * o.b + sample) * o.hv + head) * o.n;
    }
};

template <typename T> __device__ __forceinline__ void put(T *to, Real<T> value, bool add) {
    *to = from_real<T>(add ? to_real<Real<T>>(*to) + value : value);
}

template <typename R, typename A, typename B>
__device__ __forceinline__ R dot_of(const A *a, const B *b, int64_t n) {
    R sum = 0;
    for (int64_t i = 0; i < n; i++) sum += to_real<R>(a[i]) * to_real<R>(b[i]);
    return sum;
}

/* A block computes du for `tile` columns of a value head, chunk by chunk in reverse order. */
template <typename T> static __global__ void __launch_bounds__(THREADS) rule_reverse(Rule<T> o, Grads<T> g) {
    typedef Real<T> R;
    extern __shared__ __align__(16) unsigned char shared[];
    const int64_t tile = o.tile, tiles = (o.n + tile - 1) / tile;
    R *after = (R *)shared, *direct = after + o.d * tile, *de = direct + o.q * tile;
    for (int64_t unit = blockIdx.x; unit < o.b * o.hv * tiles; unit += gridDim.x) {
        const int64_t column = unit % tiles * tile, head = unit / tiles % o.hv, sample = unit / tiles / o.hv,
                      key = o.key_head(head), columns = o.n - column < tile ? o.n - column : tile;
        for (int64_t e = threadIdx.x; e < o.d * tile; e += THREADS) after[e] = 0;
        for (int64_t chunk = o.chunks - 1; chunk >= 0; chunk--) {
            const int64_t first = chunk * o.q, count = o.chunk_last(first) - first + 1,
                          at = o.at(sample, o.hv, head, first), row = o.at(sample, o.hk, key, first),
                          dy_row = o.b * o.hv * o.n;
            const R *k = o.rows_k + row * o.d, *q = o.rows_q + row * o.d, *qk = o.qk + row * o.q,
                    *kk = o.kk + row * o.q, *pairs = o.pairs + at * o.q, *inverse = o.inverse + at * o.q,
                    *kept = o.kept + at, *beta = o.beta + at, *to_end = pairs + (count - 1) * o.q;
            const T *dy = g.dy_of(o, sample, head, first) + column;
            __syncthreads();
            for (int64_t e = threadIdx.x; e < o.d * columns; e += THREADS)
                g.after[(((sample * o.hv + head) * o.chunks + chunk) * o.d + e / columns) * o.n + column +
                        e % columns] = after[e / columns * tile + e % columns];
            for (int64_t e = threadIdx.x; e < count * columns; e += THREADS) {
                const int64_t j = e / columns, c = e % columns;
                R of_after = 0, sum = 0;
                for (int64_t m = 0; m < o.d; m++) of_after += k[j * o.d + m] * after[m * tile + c];
                for (int64_t i = j; i < count; i++)
                    sum += pairs[i * o.q + j] * qk[i * o.q + j] * to_real<R>(dy[i * dy_row + c]);
                direct[j * tile + c] = sum + to_end[j] * of_after;
            }
            __syncthreads();
            for (int64_t e = threadIdx.x; e < count * columns; e += THREADS) {
                const int64_t j = e / columns, c = e % columns;
                R sum = 0;
                for (int64_t i = j; i < count; i++)
                    sum += inverse[i * o.q + j] * (beta[i] * direct[i * tile + c]);
                de[j * tile + c] = sum;
            }
            __syncthreads();
            for (int64_t e = threadIdx.x; e < count * columns; e += THREADS) {
                const int64_t j = e / columns, c = e % columns;
                R sum = direct[j * tile + c];
                for (int64_t i = j + 1; i < count; i++)
                    sum -= pairs[i * o.q + j] * kk[i * o.q + j] * de[i * tile + c];
                g.du[(at + j) * o.n + column + c] = sum;
            }
            for (int64_t e = threadIdx.x; e < o.d * columns; e += THREADS) {
                const int64_t m = e / columns, c = e % columns;
                R sum = kept[count - 1] * after[m * tile + c];
                for (int64_t i = 0; i < count; i++)
                    sum += kept[i] * (q[i * o.d + m] * to_real<R>(dy[i * dy_row + c]) -
                                      k[i * o.d + m] * de[i * tile + c]);
                after[m * tile + c] = sum;
            }
        }
        __syncthreads();
    }
}

template <typename T> static __global__ void value_grads(Rule<T> o, Grads<T> g, T *dqkv, bool add) {
    GRID_LOOP(e, o.b * o.hv * o.s * o.n) {
        const int64_t at = e / o.n, t = at % o.s, head = at / o.s % o.hv, sample = at / o.s / o.hv;
        put(dqkv + (o.v_of(sample, head, t) - o.qkv) + e % o.n, o.beta[at] * g.du[e], add);
    }
}

template <typename T> static __global__ void product_grads(Rule<T> o, Grads<T> g) {
    typedef Real<T> R;
    GRID_LOOP(e, o.b * o.hk * o.s * o.q) {
        const int64_t i = e / o.q % o.s, j = o.chunk_first(i) + e % o.q, key = e / o.q / o.s % o.hk,
                      sample = e / o.q / o.s / o.hk, each = o.hv / o.hk;
        if (j > i) continue;
        R dqk = 0, dkk = 0;
        for (int64_t head = key * each; head < (key + 1) * each; head++) {
            const int64_t at_i = o.at(sample, o.hv, head, i), at_j = o.at(sample, o.hv, head, j);
            const R pair = o.pairs[at_i * o.q + e % o.q] * o.beta[at_j], *errors = g.errors + at_j * o.n;
            dqk += pair * dot_of<R>(g.dy_of(o, sample, head, i), errors, o.n);
            if (j < i) dkk -= pair * o.beta[at_i] * dot_of<R>(g.du + at_i * o.n, errors, o.n);
        }
        g.dqk[e] = dqk, g.dkk[e] = dkk;
    }
}

/* Sets element m of the gradients of the normalized q and k rows at position t. */
template <typename T>
__device__ void row_grads(const Rule<T> &o, const Grads<T> &g, int64_t sample, int64_t key, int64_t t,
                          int64_t m, Real<T> *dq, Real<T> *dk) {
    typedef Real<T> R;
    const int64_t first = o.chunk_first(t), last = o.chunk_last(t), each = o.hv / o.hk,
                  row = o.at(sample, o.hk, key, 0);
    R of_q = 0, of_k = 0;
    for (int64_t j = first; j <= t; j++) {
        const R k = o.rows_k[(row + j) * o.d + m];
        of_q += g.dqk[(row + t) * o.q + j - first] * k;
        of_k += g.dkk[(row + t) * o.q + j - first] * k;
    }
    for (int64_t i = t; i <= last; i++) {
        of_k += g.dqk[(row + i) * o.q + t - first] * o.rows_q[(row + i) * o.d + m];
        of_k += g.dkk[(row + i) * o.q + t - first] * o.rows_k[(row + i) * o.d + m];
    }
    for (int64_t head = key * each; head < (key + 1) * each; head++) {
        const int64_t at = o.at(sample, o.hv, head, t),
                      matrix = (((sample * o.hv + head) * o.chunks + t / o.q) * o.d + m) * o.n;
        const R *state = g.states + matrix, kept = o.kept[at], beta = o.beta[at],
                to_end = o.pairs[(at - t + last) * o.q + t - first];
        of_q += kept * dot_of<R>(g.dy_of(o, sample, head, t), state, o.n);
        of_k += to_end * beta * dot_of<R>(g.errors + at * o.n, g.after + matrix, o.n);
        of_k -= kept * beta * dot_of<R>(g.du + at * o.n, state, o.n);
    }
    *dq = of_q, *dk = of_k;
}

/* Writes the gradient of a row x of q or k, given the gradient d of the normalized row. */
template <typename T>
__device__ void put_row(const Rule<T> &o, const T *x, Real<T> factor, const Real<T> *d, T *dx, bool add,
                        Real<T> *room) {
    typedef Real<T> R;
    const R scale = row_scale(o, x, room);
    R along = 0;
    for (int64_t m = threadIdx.x; m < o.d; m += THREADS) along += to_real<R>(x[m]) * d[m];
    along = o.normalize ? block_sum(along, room) * scale * scale : (R)0;
    for (int64_t m = threadIdx.x; m < o.d; m += THREADS)
        put(dx + m, factor * scale * (d[m] - along * to_real<R>(x[m])), add);
}

/* A block computes the gradients of q and k for a key head at one position. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) query_key_grads(Rule<T> o, Grads<T> g, T *dqkv, bool add) {
    typedef Real<T> R;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ R room[32];
    R *dq = (R *)shared, *dk = dq + o.d;
    for (int64_t unit = blockIdx.x; unit < o.b * o.hk * o.s; unit += gridDim.x) {
        const int64_t t = unit % o.s, key = unit / o.s % o.hk, sample = unit / o.s / o.hk;
        const T *q = o.q_of(sample, key, t), *k = o.k_of(sample, key, t);
        for (int64_t m = threadIdx.x; m < o.d; m += THREADS)
            row_grads(o, g, sample, key, t, m, dq + m, dk + m);
        put_row(o, q, o.query_scale(), dq, dqkv + (q - o.qkv), add, room);
        put_row(o, k, (R)1, dk, dqkv + (k - o.qkv), add, room);
    }
}

/* Returns, to all threads, the sum of row[m] matrix[m,c] column[c]. */
template <typename T, typename A>
__device__ Real<T> sandwich(const Rule<T> &o, const Real<T> *row, const Real<T> *matrix, const A *column,
                            Real<T> *room) {
    typedef Real<T> R;
    R sum = 0;
    for (int64_t e = threadIdx.x; e < o.d * o.n; e += THREADS)
        sum += row[e / o.n] * matrix[e] * to_real<R>(column[e % o.n]);
    return block_sum(sum, room);
}

/* Sets dg [q] of a value head's chunk. below [q] is memory for the sum of W[i,j] over the rows i so far. */
template <typename T>
__device__ void decay_grads(const Rule<T> &o, const Grads<T> &g, int64_t sample, int64_t head, int64_t chunk,
                            Real<T> *dg, Real<T> *below, Real<T> *room) {
    typedef Real<T> R;
    const int64_t first = chunk * o.q, last = o.chunk_last(first), at = o.at(sample, o.hv, head, 0),
                  row = o.at(sample, o.hk, o.key_head(head), 0),
                  matrix = ((sample * o.hv + head) * o.chunks + chunk) * o.d * o.n;
    const R *state = g.states + matrix, *after = g.after + matrix;
    R later = 0, earlier = 0;
    for (int64_t k = threadIdx.x; k < o.q; k += THREADS) below[k] = 0;
    for (int64_t i = last; i >= first; i--) {
        const T *dy = g.dy_of(o, sample, head, i);
        const R *du = g.du + (at + i) * o.n, beta = o.beta[at + i], kept = o.kept[at + i];
        R sum = 0;
        for (int64_t k = threadIdx.x; first + k < i; k += THREADS) {
            const R *errors = g.errors + (at + first + k) * o.n;
            below[k] += o.pairs[(at + i) * o.q + k] * o.beta[at + first + k] *
                        (o.qk[(row + i) * o.q + k] * dot_of<R>(dy, errors, o.n) -
                         o.kk[(row + i) * o.q + k] * beta * dot_of<R>(du, errors, o.n));
            sum += below[k];
        }
        sum = block_sum(sum, room);
        later += kept * sandwich(o, o.rows_q + (row + i) * o.d, state, dy, room);
        later -= kept * beta * sandwich(o, o.rows_k + (row + i) * o.d, state, du, room);
        if (!threadIdx.x) dg[i - first] = sum + later;
    }
    for (int64_t e = threadIdx.x; e < o.d * o.n; e += THREADS) earlier += after[e] * state[e];
    earlier = o.kept[at + last] * block_sum(earlier, room);
    for (int64_t j = first; j <= last; j++) {
        if (!threadIdx.x) dg[j - first] += earlier;
        earlier += o.pairs[(at + last) * o.q + j - first] * o.beta[at + j] *
                   sandwich(o, o.rows_k + (row + j) * o.d, after, g.errors + (at + j) * o.n, room);
    }
    __syncthreads();
}

/* The outputs of gate_grads. NULL means that an output is not needed. */
template <typename T> struct GateGrads {
    T *dalpha, *dbeta;
    int64_t alpha_s, alpha_b, beta_s, beta_b;
    bool add_alpha, add_beta;
};

/* A block computes the gradients of a value head's gates in one chunk, and the sums for the parameters. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) gate_grads(Rule<T> o, Grads<T> g, GateGrads<T> out) {
    typedef Real<T> R;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ R room[32];
    R *dg = (R *)shared, *below = dg + o.q;
    for (int64_t unit = blockIdx.x; unit < o.b * o.hv * o.chunks; unit += gridDim.x) {
        const int64_t chunk = unit % o.chunks, head = unit / o.chunks % o.hv, sample = unit / o.chunks / o.hv,
                      first = chunk * o.q, last = o.chunk_last(first);
        const R rate = o.rate(head);
        R sums[2] = {0, 0};
        decay_grads(o, g, sample, head, chunk, dg, below, room);
        for (int64_t t = first + threadIdx.x; t <= last; t += THREADS) {
            const int64_t at = o.at(sample, o.hv, head, t);
            const R raw = o.raw(sample, head, t), draw = dg[t - first] * rate * softplus_slope(raw),
                    beta = o.beta[at], dbeta = dot_of<R>(g.du + at * o.n, g.errors + at * o.n, o.n);
            sums[0] += dg[t - first] * rate * softplus(raw);
            sums[1] += draw;
            if (out.dalpha)
                put(out.dalpha + t * out.alpha_s + sample * out.alpha_b + head, draw, out.add_alpha);
            if (out.dbeta)
                put(out.dbeta + t * out.beta_s + sample * out.beta_b + head, dbeta * beta * (1 - beta),
                    out.add_beta);
        }
        for (int i = 0; i < 2; i++) {
            const R sum = block_sum(sums[i], room);
            if (!threadIdx.x) g.partial[((sample * o.chunks + chunk) * 2 + i) * o.hv + head] = sum;
        }
    }
}

extern "C" size_t cuda_plans_gated_delta_rule_grad(const Call *c) {
    if (delta_tiles_can(c, c->in + 1)) return delta_tiles_grad_bytes(c);
    const RuleSizes z = rule_sizes((const DeltaRuleAttr *)c->attr, c->in + 1);
    return (size_t)(shared_scratch(z) + 2 * (z.values + z.products + z.states) + z.sums) * z.element;
}

/* Computes all gradients except those of the parameters, for which it computes the partial sums. */
template <typename T> static void run_kernels(const Call *c, const Rule<T> &o, const Grads<T> &g) {
    const Tensor *dqkv = c->out[0], *dalpha = c->out[1], *dbeta = c->out[2];
    prepare_rule(c, o);
    const ChunkOutputs<T> again = {NULL, g.states, g.errors};
    rule_chunks<T><<<column_blocks(c, o), THREADS, tile_bytes(o), stream_of(c)>>>(o, again);
    LAUNCHED();
    rule_reverse<T><<<column_blocks(c, o), THREADS, tile_bytes(o), stream_of(c)>>>(o, g);
    LAUNCHED();
    if (dqkv) {
        const bool add = accumulates(dqkv);
        value_grads<T><<<grid_for(c, o.b * o.hv * o.s * o.n, THREADS), THREADS, 0, stream_of(c)>>>(
            o, g, data_of<T>(dqkv), add);
        LAUNCHED();
        product_grads<T><<<grid_for(c, o.b * o.hk * o.s * o.q, THREADS), THREADS, 0, stream_of(c)>>>(o, g);
        LAUNCHED();
        const size_t shared = 2 * (size_t)o.d * sizeof(Real<T>);
        query_key_grads<T><<<grid_for(c, o.b * o.hk * o.s, 1), THREADS, shared, stream_of(c)>>>(
            o, g, data_of<T>(dqkv), add);
        LAUNCHED();
    }
    const GateGrads<T> out = {data_of<T>(dalpha),
                              data_of<T>(dbeta),
                              dalpha ? dalpha->stride[0] : 0,
                              dalpha ? dalpha->stride[1] : 0,
                              dbeta ? dbeta->stride[0] : 0,
                              dbeta ? dbeta->stride[1] : 0,
                              accumulates(dalpha),
                              accumulates(dbeta)};
    const size_t shared = 2 * (size_t)o.q * sizeof(Real<T>);
    gate_grads<T><<<grid_for(c, o.b * o.hv * o.chunks, 1), THREADS, shared, stream_of(c)>>>(o, g, out);
    LAUNCHED();
}

template <typename T> static void backward(const Call *c) {
    const DeltaRuleAttr *a = (const DeltaRuleAttr *)c->attr;
    const size_t bytes = cuda_plans_gated_delta_rule_grad(c);
    const RuleSizes z = rule_sizes(a, c->in + 1);
    Grads<T> g = {data_of<T>(c->in[0])};
    const Rule<T> o = rule_of<T>(a, c->in + 1, bytes ? cuda_scratch(c->device, bytes) : NULL, &g.errors);
    g.du = g.errors + z.values, g.dqk = g.du + z.values, g.dkk = g.dqk + z.products;
    g.states = g.dkk + z.products, g.after = g.states + z.states, g.partial = g.after + z.states;
    if (tensor_count(c->in[1])) run_kernels(c, o, g);
    sum_columns(c, g.partial, o.b * o.chunks, 2 * o.hv, {c->out[3], 0, 1}, {c->out[4], o.hv, 1});
}

extern "C" void cuda_gated_delta_rule_grad(const Call *c) {
    for (int i = 0; i < 3; i++) same_type("gated_delta_rule_grad", c->in[1], c->out[i]);
    same_type("gated_delta_rule_grad", c->in[1], c->in[0]);
    if (delta_tiles_can(c, c->in + 1))
        delta_tiles_grad(c);
    else
        STORAGE_SWITCH(c->in[1]->dtype, backward<T>(c));
}
