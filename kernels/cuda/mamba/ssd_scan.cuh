/* The operands of the scan, and the kernels that its forward and backward passes share. kernels/cpu/ssd_scan.c
 * contains the formulas. */
#pragma once

#include "kernels/cuda/mamba/mamba.cuh"

template <typename T> struct Scan {
    typedef Real<T> R;
    const T *x, *dt;
    Cells dt_bias, a_log, d;
    const int64_t *start;
    int64_t s, b, h, g, p, n, q, chunks, width; /* q: positions per chunk; width: of a row of x */
    int64_t dt_s, dt_b;                         /* strides of dt */
    R least, most;
    R *delta, *sum; /* [b,h,s]: delta and c */
    R *scores;      /* [b,g,s,q]: row i holds C[i].B[j] for each j <= i in the chunk of i */
    R *states;      /* [b,h,chunks,p,n]: the states before the chunks */

    __device__ __forceinline__ int64_t group_of(int64_t head) const { return head / (h / g); }
    __device__ __forceinline__ const T *x_of(int64_t sample, int64_t head, int64_t t) const {
        return x + (t * b + sample) * width + head * p;
    }
    __device__ __forceinline__ const T *b_of(int64_t sample, int64_t group, int64_t t) const {
        return x + (t * b + sample) * width + h * p + group * n;
    }
    __device__ __forceinline__ const T *c_of(int64_t sample, int64_t group, int64_t t) const {
        return b_of(sample, group, t) + g * n;
    }
    __device__ __forceinline__ int64_t start_of(int64_t sample, int64_t t) const {
        return start ? start[sample * s + t] : 0;
    }
    __device__ __forceinline__ int64_t chunk_first(int64_t t) const { return t / q * q; }
    __device__ __forceinline__ int64_t chunk_last(int64_t t) const {
        return least_of(chunk_first(t) + q, s) - 1;
    }
    /* Returns the first position in t's chunk that is in t's document. */
    __device__ __forceinline__ int64_t first_of(int64_t sample, int64_t t) const {
        const int64_t begin = start_of(sample, t), first = chunk_first(t);
        return begin > first ? begin : first;
    }
    /* Returns whether position t depends on the state before its chunk. */
    __device__ __forceinline__ bool carries(int64_t sample, int64_t t) const {
        return start_of(sample, t) < chunk_first(t);
    }
    __device__ __forceinline__ int64_t at(int64_t sample, int64_t head, int64_t t) const {
        return (sample * h + head) * s + t;
    }
    __device__ __forceinline__ R raw(int64_t sample, int64_t head, int64_t t) const {
        return to_real<R>(dt[t * dt_s + sample * dt_b + head]) + dt_bias.get<R>(head);
    }
    __device__ __forceinline__ R rate(int64_t head) const { return -exp(a_log.get<R>(head)); }
    __device__ __forceinline__ R skip(int64_t head) const { return d.get<R>(head); }
    /* exp(c[i] - c[j]) */
    __device__ __forceinline__ R decay(int64_t sample, int64_t head, int64_t i, int64_t j) const {
        return exp(sum[at(sample, head, i)] - sum[at(sample, head, j)]);
    }
    /* exp(c[t]) */
    __device__ __forceinline__ R decay_from_start(int64_t sample, int64_t head, int64_t t) const {
        return exp(sum[at(sample, head, t)]);
    }
    /* Returns the factor by which the chunk that ends at position `last` multiplies the state. */
    __device__ __forceinline__ R kept(int64_t sample, int64_t head, int64_t last) const {
        return carries(sample, last) ? decay_from_start(sample, head, last) : (R)0;
    }

  private:
    static __device__ __forceinline__ int64_t least_of(int64_t a, int64_t c) { return a < c ? a : c; }
};

/* Returns the operands, and sets `end` to the memory after the shared scratch. */
template <typename T>
static Scan<T> scan_of(const ScanAttr *a, Tensor *const *in, void *scratch, Real<T> **end) {
    const Tensor *x = in[0], *dt = in[1];
    Scan<T> o = {};
    same_type("ssd_scan", x, dt);
    o.x = data_of<T>(x), o.dt = data_of<T>(dt), o.dt_bias = cells(in[2]), o.a_log = cells(in[3]),
    o.d = cells(in[4]);
    o.start = ids_of(in[5]);
    o.s = x->dim[0], o.b = x->dim[1], o.width = x->dim[2], o.h = tensor_width(dt);
    o.g = a->groups, o.p = a->head_dim, o.n = a->state, o.q = a->chunk, o.chunks = ceil_div(o.s, o.q);
    o.dt_s = dt->stride[0], o.dt_b = dt->stride[1];
    o.least = (Real<T>)a->least, o.most = (Real<T>)a->most;
    o.delta = (Real<T> *)scratch, o.sum = o.delta + o.b * o.h * o.s, o.scores = o.sum + o.b * o.h * o.s;
    o.states = o.scores + o.b * o.g * o.s * o.q;
    *end = o.states + o.b * o.h * o.chunks * o.p * o.n;
    return o;
}

/* The sizes of the parts of the scratch memory, in elements. */
struct ScanSizes {
    int64_t steps, scores, states, sums; /* one of each; sums: partial sums of the parameters' gradients */
    size_t element;
};
static inline ScanSizes scan_sizes(const ScanAttr *a, Tensor *const *in) {
    const Tensor *x = in[0];
    const int64_t s = x->dim[0], b = x->dim[1], h = tensor_width(in[1]), chunks = ceil_div(s, a->chunk);
    return {b * h * s, b * a->groups * s * a->chunk, b * h * chunks * a->head_dim * a->state,
            3 * b * h * chunks, x->dtype == F64 ? sizeof(double) : sizeof(float)};
}

/* A thread computes delta and c for a head in one chunk. */
template <typename T> static __global__ void scan_steps(Scan<T> o) {
    typedef Real<T> R;
    GRID_LOOP(e, o.b * o.h * o.chunks) {
        const int64_t first = e % o.chunks * o.q, head = e / o.chunks % o.h, sample = e / o.chunks / o.h;
        const R rate = o.rate(head);
        R sum = 0;
        for (int64_t t = first; t <= o.chunk_last(first); t++) {
            const R step = softplus(o.raw(sample, head, t)), delta = step < o.least  ? o.least
                                                                     : step > o.most ? o.most
                                                                                     : step;
            sum += rate * delta;
            o.delta[o.at(sample, head, t)] = delta;
            o.sum[o.at(sample, head, t)] = sum;
        }
    }
}

template <typename T> static __global__ void scan_scores(Scan<T> o) {
    typedef Real<T> R;
    GRID_LOOP(e, o.b * o.g * o.s * o.q) {
        const int64_t i = e / o.q % o.s, j = o.chunk_first(i) + e % o.q, group = e / o.q / o.s % o.g,
                      sample = e / o.q / o.s / o.g;
        if (j > i) continue;
        const T *c = o.c_of(sample, group, i), *b = o.b_of(sample, group, j);
        R sum = 0;
        for (int64_t k = 0; k < o.n; k++) sum += to_real<R>(c[k]) * to_real<R>(b[k]);
        o.scores[e] = sum;
    }
}

/* Computes what each chunk adds to the state. */
template <typename T> static __global__ void chunk_states(Scan<T> o) {
    typedef Real<T> R;
    const int64_t size = o.p * o.n;
    GRID_LOOP(e, o.b * o.h * o.chunks * size) {
        const int64_t k = e % o.n, i = e / o.n % o.p, chunk = e / size % o.chunks,
                      head = e / size / o.chunks % o.h, sample = e / size / o.chunks / o.h,
                      last = o.chunk_last(chunk * o.q);
        R sum = 0;
        for (int64_t j = o.first_of(sample, last); j <= last; j++)
            sum += o.decay(sample, head, last, j) * o.delta[o.at(sample, head, j)] *
                   to_real<R>(o.x_of(sample, head, j)[i]) *
                   to_real<R>(o.b_of(sample, o.group_of(head), j)[k]);
        o.states[e] = sum;
    }
}

/* Replaces what each chunk adds with the state before the chunk or, in reverse order, with the gradient of the state
 * after it. */
template <typename T> static __global__ void pass_states(Scan<T> o, Real<T> *states, bool reverse) {
    typedef Real<T> R;
    const int64_t size = o.p * o.n;
    GRID_LOOP(e, o.b * o.h * size) {
        const int64_t head = e / size % o.h, sample = e / size / o.h;
        R *at = states + (sample * o.h + head) * o.chunks * size + e % size, running = 0;
        for (int64_t i = 0; i < o.chunks; i++) {
            const int64_t chunk = reverse ? o.chunks - 1 - i : i;
            const R added = at[chunk * size];
            at[chunk * size] = running;
            running = o.kept(sample, head, o.chunk_last(chunk * o.q)) * running + added;
        }
    }
}

/* Computes the scratch operands. */
template <typename T> static void prepare_scan(const Call *c, const Scan<T> &o) {
    const int64_t states = o.b * o.h * o.p * o.n, scores = o.b * o.g * o.s * o.q;
    scan_steps<T><<<grid_for(c, o.b * o.h * o.chunks, THREADS), THREADS, 0, stream_of(c)>>>(o);
    LAUNCHED();
    scan_scores<T><<<grid_for(c, scores, THREADS), THREADS, 0, stream_of(c)>>>(o);
    LAUNCHED();
    chunk_states<T><<<grid_for(c, states * o.chunks, THREADS), THREADS, 0, stream_of(c)>>>(o);
    LAUNCHED();
    pass_states<T><<<grid_for(c, states, THREADS), THREADS, 0, stream_of(c)>>>(o, o.states, false);
    LAUNCHED();
}
