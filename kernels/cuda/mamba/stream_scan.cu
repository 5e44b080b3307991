/* Computes the ops of kernels/cpu/stream_scan.c, which describes them. The tokens of a request are adjacent; the kernels
 * find a request's first and last token by its slot. */
#include "kernels/cuda/mamba/mamba.cuh"

template <typename T> struct Stream {
    typedef Real<T> R;
    const T *x;
    Cells w, bias; /* bias.data is NULL if there is no bias */
    const int64_t *slot, *position;
    R *states;
    int64_t s, c, k, along; /* along: the stride of x */

    /* Returns the number of tokens of t's request up to t, but at most k. */
    __device__ int64_t rank_of(int64_t t) const {
        int64_t n = 1;
        while (n < k && t >= n && slot[t - n] == slot[t]) n++;
        return n;
    }
    /* Returns the input `back` tokens before token t. The stream contains `n` tokens of the request up to t. */
    __device__ R input(int64_t t, int64_t n, int64_t back, int64_t j) const {
        if (back < n) return to_real<R>(x[(t - back) * along + j]);
        return states[(slot[t] * (k - 1) + k - 2 - (back - n)) * c + j];
    }
};

template <typename T> static __global__ void convolved(Stream<T> o, T *y) {
    typedef Real<T> R;
    GRID_LOOP(e, o.s * o.c) {
        const int64_t t = e / o.c, j = e % o.c, n = o.rank_of(t);
        R sum = o.bias.data ? o.bias.template get<R>(j) : (R)0;
        for (int64_t i = 0; i < o.k; i++) {
            const int64_t back = o.k - 1 - i;
            if (o.position[t] >= back) sum += o.w.template get<R>(j * o.k + i) * o.input(t, n, back, j);
        }
        y[e] = from_real<T>(sum * sigmoid(sum));
    }
}

/* Stores the last k - 1 inputs of each request, the oldest first. */
template <typename T> static __global__ void kept_inputs(Stream<T> o) {
    GRID_LOOP(e, o.s * o.c) {
        const int64_t t = e / o.c, j = e % o.c, n = o.rank_of(t);
        if (t + 1 < o.s && o.slot[t + 1] == o.slot[t]) continue;
        for (int64_t i = 0; i < o.k - 1; i++)
            o.states[(o.slot[t] * (o.k - 1) + i) * o.c + j] = o.input(t, n, o.k - 2 - i, j);
    }
}

template <typename T> static void conv(const Call *c) {
    const Tensor *x = c->in[0];
    const Stream<T> o = {data_of<T>(x),    cells(c->in[1]),  cells(c->in[2]),
                         ids_of(c->in[3]), ids_of(c->in[4]), data_of<Real<T>>(c->out[1]),
                         x->dim[0],        x->dim[2],        c->in[1]->dim[1],
                         x->stride[0]};
    const int blocks = grid_for(c, o.s * o.c, THREADS);
    convolved<T><<<blocks, THREADS, 0, stream_of(c)>>>(o, data_of<T>(c->out[0]));
    LAUNCHED();
    kept_inputs<T><<<blocks, THREADS, 0, stream_of(c)>>>(o);
    LAUNCHED();
}

extern "C" void cuda_stream_conv(const Call *c) {
    same_type("stream_conv", c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, conv<T>(c));
}

template <typename T> struct Heads {
    typedef Real<T> R;
    const T *x, *dt;
    Cells dt_bias, a_log, d;
    const int64_t *slot, *position;
    R *states;
    int64_t s, h, g, p, n, along; /* along: the stride of dt */
    R least, most;
};

/* A warp computes an element of a head for all tokens of a request. A warp's lanes share a row of the state. */
template <typename T> static __global__ void scanned(Heads<T> o, T *y) {
    typedef Real<T> R;
    const int64_t lane = threadIdx.x % 32, step = (int64_t)gridDim.x * blockDim.x / 32;
    for (int64_t e = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; e < o.s * o.h * o.p; e += step) {
        const int64_t i = e % o.p, head = e / o.p % o.h, first = e / o.p / o.h,
                      width = o.h * o.p + 2 * o.g * o.n;
        if (first && o.slot[first - 1] == o.slot[first]) continue;
        const R rate = -exp(o.a_log.template get<R>(head)), skip = o.d.template get<R>(head);
        R *state = o.states + ((o.slot[first] * o.h + head) * o.p + i) * o.n;
        for (int64_t t = first; t < o.s && o.slot[t] == o.slot[first]; t++) {
            const T *row = o.x + t * width, *b = row + o.h * o.p + head / (o.h / o.g) * o.n,
                    *c = b + o.g * o.n;
            const R own = to_real<R>(row[head * o.p + i]),
                    raw = softplus(to_real<R>(o.dt[t * o.along + head]) + o.dt_bias.template get<R>(head)),
                    delta = raw < o.least  ? o.least
                            : raw > o.most ? o.most
                                           : raw,
                    kept = o.position[t] ? exp(rate * delta) : (R)0, added = delta * own;
            R sum = 0;
            for (int64_t k = lane; k < o.n; k += 32) {
                const R before = o.position[t] ? state[k] : (R)0,
                        after = kept * before + added * to_real<R>(b[k]);
                state[k] = after;
                sum += after * to_real<R>(c[k]);
            }
            sum = warp_sum(sum);
            if (!lane) y[(t * o.h + head) * o.p + i] = from_real<T>(sum + skip * own);
        }
    }
}

template <typename T> static void scan(const Call *c) {
    const ScanAttr *a = (const ScanAttr *)c->attr;
    const Tensor *x = c->in[0], *dt = c->in[1];
    Heads<T> o = {};
    o.x = data_of<T>(x), o.dt = data_of<T>(dt), o.dt_bias = cells(c->in[2]), o.a_log = cells(c->in[3]),
    o.d = cells(c->in[4]), o.slot = ids_of(c->in[5]), o.position = ids_of(c->in[6]);
    o.states = data_of<Real<T>>(c->out[1]);
    o.s = x->dim[0], o.h = tensor_width(dt), o.g = a->groups, o.p = a->head_dim, o.n = a->state,
    o.along = dt->stride[0];
    o.least = (Real<T>)a->least, o.most = (Real<T>)a->most;
    scanned<T>
        <<<grid_for(c, o.s * o.h * o.p * 32, THREADS), THREADS, 0, stream_of(c)>>>(o, data_of<T>(c->out[0]));
    LAUNCHED();
}

extern "C" void cuda_stream_scan(const Call *c) {
    same_type("stream_scan", c->in[0], c->in[1]);
    same_type("stream_scan", c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, scan<T>(c));
}
