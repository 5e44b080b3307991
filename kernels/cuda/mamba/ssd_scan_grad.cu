/* Computes the op ssd_scan_grad of kernels/cpu/ssd_scan.c, which contains the formulas. After the states and their
 * gradients, separate kernels compute the gradients of x, of B and C, and of the steps and parameters. */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/mamba/ssd_scan.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

template <typename T> struct Grads {
    typedef Real<T> R;
    const T *dy;
    R *after;   /* [b,h,chunks,p,n]: the gradients of the states after the chunks */
    R *pairs;   /* [b,g,s,q]: the sum over heads of exp(c[i] - c[j]) delta[j] (dy[i].x[j]) */
    R *along;   /* [b,h,s]: x.u */
    R *partial; /* [b,chunks,3,h] */
};

template <typename T>
__device__ __forceinline__ const T *dy_of(const Scan<T> &o, const Grads<T> &g, int64_t sample, int64_t head,
                                          int64_t t) {
    return g.dy + ((t * o.b + sample) * o.h + head) * o.p;
}

template <typename T> __device__ __forceinline__ Real<T> dot_of(const T *a, const T *b, int64_t n) {
    Real<T> sum = 0;
    for (int64_t i = 0; i < n; i++) sum += to_real<Real<T>>(a[i]) * to_real<Real<T>>(b[i]);
    return sum;
}

template <typename T> __device__ __forceinline__ void put(T *to, Real<T> value, bool add) {
    *to = from_real<T>(add ? to_real<Real<T>>(*to) + value : value);
}

/* Computes what each chunk adds to the gradient of the state before it. */
template <typename T> static __global__ void chunk_gradients(Scan<T> o, Grads<T> g) {
    typedef Real<T> R;
    const int64_t size = o.p * o.n;
    GRID_LOOP(e, o.b * o.h * o.chunks * size) {
        const int64_t k = e % o.n, m = e / o.n % o.p, first = e / size % o.chunks * o.q,
                      head = e / size / o.chunks % o.h, sample = e / size / o.chunks / o.h;
        R sum = 0;
        for (int64_t i = first; i <= o.chunk_last(first) && o.carries(sample, i); i++)
            sum += o.decay_from_start(sample, head, i) * to_real<R>(dy_of(o, g, sample, head, i)[m]) *
                   to_real<R>(o.c_of(sample, o.group_of(head), i)[k]);
        g.after[e] = sum;
    }
}

template <typename T> static __global__ void pair_sums(Scan<T> o, Grads<T> g) {
    typedef Real<T> R;
    GRID_LOOP(e, o.b * o.g * o.s * o.q) {
        const int64_t i = e / o.q % o.s, j = o.chunk_first(i) + e % o.q, group = e / o.q / o.s % o.g,
                      sample = e / o.q / o.s / o.g;
        R sum = 0;
        for (int64_t head = group * (o.h / o.g);
             j >= o.first_of(sample, i) && j <= i && head < (group + 1) * (o.h / o.g); head++)
            sum += o.decay(sample, head, i, j) * o.delta[o.at(sample, head, j)] *
                   dot_of(dy_of(o, g, sample, head, i), o.x_of(sample, head, j), o.p);
        g.pairs[e] = sum;
    }
}

/* A block computes x.u and, unless it is NULL, dx for a head at one position. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) input_grad(Scan<T> o, Grads<T> g, T *dx, bool add) {
    typedef Real<T> R;
    __shared__ R room[32];
    for (int64_t unit = blockIdx.x; unit < o.s * o.b * o.h; unit += gridDim.x) {
        const int64_t head = unit % o.h, sample = unit / o.h % o.b, j = unit / o.h / o.b,
                      group = o.group_of(head), last = o.chunk_last(j);
        const R delta = o.delta[o.at(sample, head, j)], skip = o.skip(head);
        const R *after = g.after + ((sample * o.h + head) * o.chunks + j / o.q) * o.p * o.n;
        const T *x = o.x_of(sample, head, j), *b = o.b_of(sample, group, j);
        R along = 0;
        for (int64_t m = threadIdx.x; m < o.p; m += THREADS) {
            R u = 0;
            for (int64_t i = j; i <= last && o.start_of(sample, i) <= j; i++)
                u += o.decay(sample, head, i, j) *
                     o.scores[((sample * o.g + group) * o.s + i) * o.q + j % o.q] *
                     to_real<R>(dy_of(o, g, sample, head, i)[m]);
            if (j >= o.first_of(sample, last)) {
                R dot = 0;
                for (int64_t k = 0; k < o.n; k++) dot += after[m * o.n + k] * to_real<R>(b[k]);
                u += o.decay(sample, head, last, j) * dot;
            }
            along += to_real<R>(x[m]) * u;
            if (dx)
                put(dx + (x - o.x) + m, delta * u + skip * to_real<R>(dy_of(o, g, sample, head, j)[m]), add);
        }
        along = block_sum(along, room);
        if (!threadIdx.x) g.along[o.at(sample, head, j)] = along;
    }
}

/* A thread computes one element of the gradient of B, and one of the gradient of C. */
template <typename T> static __global__ void group_grads(Scan<T> o, Grads<T> g, T *dx, bool add) {
    typedef Real<T> R;
    GRID_LOOP(e, o.s * o.b * o.g * o.n) {
        const int64_t k = e % o.n, group = e / o.n % o.g, sample = e / o.n / o.g % o.b,
                      t = e / o.n / o.g / o.b, last = o.chunk_last(t), each = o.h / o.g;
        const R *pairs = g.pairs + (sample * o.g + group) * o.s * o.q;
        R db = 0, dc = 0;
        for (int64_t i = t; i <= last; i++)
            db += pairs[i * o.q + t % o.q] * to_real<R>(o.c_of(sample, group, i)[k]);
        for (int64_t j = o.chunk_first(t); j <= t; j++)
            dc += pairs[t * o.q + j % o.q] * to_real<R>(o.b_of(sample, group, j)[k]);
        for (int64_t head = group * each; head < (group + 1) * each; head++) {
            const int64_t at = ((sample * o.h + head) * o.chunks + t / o.q) * o.p * o.n + k;
            const T *x = o.x_of(sample, head, t), *dy = dy_of(o, g, sample, head, t);
            R of_after = 0, of_state = 0;
            for (int64_t m = 0; m < o.p; m++) {
                of_after += g.after[at + m * o.n] * to_real<R>(x[m]);
                of_state += o.states[at + m * o.n] * to_real<R>(dy[m]);
            }
            if (t >= o.first_of(sample, last))
                db += o.decay(sample, head, last, t) * o.delta[o.at(sample, head, t)] * of_after;
            if (o.carries(sample, t)) dc += o.decay_from_start(sample, head, t) * of_state;
        }
        put(dx + (o.b_of(sample, group, t) - o.x) + k, db, add);
        put(dx + (o.c_of(sample, group, t) - o.x) + k, dc, add);
    }
}

/* Returns, to all threads, the sum of row[i] matrix[i,k] column[k]. */
template <typename T>
__device__ Real<T> sandwich(const Scan<T> &o, const T *row, const Real<T> *matrix, const T *column,
                            Real<T> *room) {
    typedef Real<T> R;
    R sum = 0;
    for (int64_t e = threadIdx.x; e < o.p * o.n; e += THREADS)
        sum += to_real<R>(row[e / o.n]) * matrix[e] * to_real<R>(column[e % o.n]);
    return block_sum(sum, room);
}

/* The outputs of step_grads. ddt is NULL if it is not needed. */
template <typename T> struct StepGrads {
    T *ddt;
    int64_t along_s, along_b;
    bool add;
};

/* Sets da [q] of a head's chunk. below [q] is memory for the sum of W[i,j] over the rows i so far. */
template <typename T>
__device__ void decay_grads(const Scan<T> &o, const Grads<T> &g, int64_t sample, int64_t head, int64_t chunk,
                            Real<T> *da, Real<T> *below, Real<T> *room) {
    typedef Real<T> R;
    const int64_t first = chunk * o.q, last = o.chunk_last(first), group = o.group_of(head),
                  at = ((sample * o.h + head) * o.chunks + chunk) * o.p * o.n;
    const R *state = o.states + at, *after = g.after + at;
    R later = 0, earlier = 0;
    for (int64_t k = threadIdx.x; k < o.q; k += THREADS) below[k] = 0;
    for (int64_t i = last; i >= first; i--) {
        const T *dy = dy_of(o, g, sample, head, i);
        const R *scores = o.scores + ((sample * o.g + group) * o.s + i) * o.q;
        R sum = 0;
        for (int64_t k = threadIdx.x; first + k <= i; k += THREADS) {
            const int64_t j = first + k;
            if (j < o.first_of(sample, i)) continue;
            below[k] += scores[k] * o.decay(sample, head, i, j) * o.delta[o.at(sample, head, j)] *
                        dot_of(dy, o.x_of(sample, head, j), o.p);
            if (j < i) sum += below[k];
        }
        sum = block_sum(sum, room);
        if (o.carries(sample, i))
            later +=
                o.decay_from_start(sample, head, i) * sandwich(o, dy, state, o.c_of(sample, group, i), room);
        if (!threadIdx.x) da[i - first] = sum + (o.carries(sample, i) ? later : (R)0);
    }
    for (int64_t e = threadIdx.x; e < o.p * o.n; e += THREADS) earlier += after[e] * state[e];
    earlier = o.kept(sample, head, last) * block_sum(earlier, room);
    for (int64_t j = first; j <= last; j++) {
        if (!threadIdx.x) da[j - first] += earlier;
        if (j < o.first_of(sample, last)) continue;
        earlier += o.decay(sample, head, last, j) * o.delta[o.at(sample, head, j)] *
                   sandwich(o, o.x_of(sample, head, j), after, o.b_of(sample, group, j), room);
    }
    __syncthreads();
}

/* A block computes the gradients of a head's steps in one chunk, and the sums for the parameters. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) step_grads(Scan<T> o, Grads<T> g, StepGrads<T> out) {
    typedef Real<T> R;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ R room[32];
    R *da = (R *)shared, *below = da + o.q;
    for (int64_t unit = blockIdx.x; unit < o.b * o.h * o.chunks; unit += gridDim.x) {
        const int64_t chunk = unit % o.chunks, head = unit / o.chunks % o.h, sample = unit / o.chunks / o.h,
                      first = chunk * o.q, last = o.chunk_last(first);
        const R rate = o.rate(head);
        R sums[3] = {0, 0, 0};
        decay_grads(o, g, sample, head, chunk, da, below, room);
        for (int64_t t = first + threadIdx.x; t <= last; t += THREADS) {
            const R raw = o.raw(sample, head, t), step = softplus(raw), a = da[t - first];
            const bool clamped = step < o.least || step > o.most;
            const R draw = clamped ? (R)0 : (g.along[o.at(sample, head, t)] + rate * a) * softplus_slope(raw);
            sums[0] += draw;
            sums[1] += a * rate * o.delta[o.at(sample, head, t)];
            sums[2] += dot_of(dy_of(o, g, sample, head, t), o.x_of(sample, head, t), o.p);
            if (out.ddt) put(out.ddt + t * out.along_s + sample * out.along_b + head, draw, out.add);
        }
        for (int i = 0; i < 3; i++) {
            const R sum = block_sum(sums[i], room);
            if (!threadIdx.x) g.partial[((sample * o.chunks + chunk) * 3 + i) * o.h + head] = sum;
        }
    }
}

extern "C" size_t cuda_plans_ssd_scan_grad(const Call *c) {
    if (ssd_tiles_can(c, c->in + 1)) return ssd_tiles_grad_bytes(c);
    const ScanSizes size = scan_sizes((const ScanAttr *)c->attr, c->in + 1);
    return (size_t)(3 * size.steps + 2 * size.scores + 2 * size.states + size.sums) * size.element;
}

/* Computes all gradients except those of the parameters, for which it computes the partial sums. */
template <typename T> static void run_kernels(const Call *c, const Scan<T> &o, const Grads<T> &g) {
    const Tensor *dx = c->out[0], *ddt = c->out[1];
    const int64_t states = o.b * o.h * o.p * o.n, scores = o.b * o.g * o.s * o.q,
                  units = o.b * o.h * o.chunks;
    const size_t shared = 2 * (size_t)o.q * sizeof(Real<T>);
    CHECK(shared <= 40 * 1024, "ssd_scan_grad: a chunk has %lld positions", (long long)o.q);
    prepare_scan(c, o);
    chunk_gradients<T><<<grid_for(c, states * o.chunks, THREADS), THREADS, 0, stream_of(c)>>>(o, g);
    LAUNCHED();
    pass_states<T><<<grid_for(c, states, THREADS), THREADS, 0, stream_of(c)>>>(o, g.after, true);
    LAUNCHED();
    input_grad<T><<<grid_for(c, o.s * o.b * o.h, 1), THREADS, 0, stream_of(c)>>>(o, g, data_of<T>(dx),
                                                                                 accumulates(dx));
    LAUNCHED();
    if (dx) {
        pair_sums<T><<<grid_for(c, scores, THREADS), THREADS, 0, stream_of(c)>>>(o, g);
        LAUNCHED();
        group_grads<T><<<grid_for(c, o.s * o.b * o.g * o.n, THREADS), THREADS, 0, stream_of(c)>>>(
            o, g, data_of<T>(dx), accumulates(dx));
        LAUNCHED();
    }
    const StepGrads<T> out = {data_of<T>(ddt), ddt ? ddt->stride[0] : 0, ddt ? ddt->stride[1] : 0,
                              accumulates(ddt)};
    step_grads<T><<<grid_for(c, units, 1), THREADS, shared, stream_of(c)>>>(o, g, out);
    LAUNCHED();
}

template <typename T> static void backward(const Call *c) {
    const size_t bytes = cuda_plans_ssd_scan_grad(c);
    Real<T> *after;
    const Scan<T> o = scan_of<T>((const ScanAttr *)c->attr, c->in + 1,
                                 bytes ? cuda_scratch(c->device, bytes) : NULL, &after);
    Grads<T> g = {data_of<T>(c->in[0]), after};
    g.pairs = after + o.b * o.h * o.chunks * o.p * o.n, g.along = g.pairs + o.b * o.g * o.s * o.q;
    g.partial = g.along + o.b * o.h * o.s;
    if (tensor_count(c->in[1])) run_kernels(c, o, g);
    sum_columns(c, g.partial, o.b * o.chunks, 3 * o.h, {c->out[2], 0, 1}, {c->out[3], o.h, 1},
                {c->out[4], 2 * o.h, 1});
}

extern "C" void cuda_ssd_scan_grad(const Call *c) {
    for (int i = 0; i < 2; i++) same_type("ssd_scan_grad", c->in[1], c->out[i]);
    same_type("ssd_scan_grad", c->in[1], c->in[0]);
    if (ssd_tiles_can(c, c->in + 1))
        ssd_tiles_grad(c);
    else
        STORAGE_SWITCH(c->in[1]->dtype, backward<T>(c));
}
