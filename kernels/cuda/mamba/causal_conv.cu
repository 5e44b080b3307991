/* Computes the ops of kernels/cpu/causal_conv.c, which contains the formulas. A thread computes an element, and
 * recomputes the pre-activation values that it needs. */
#include "kernels/cuda/mamba/mamba.cuh"

template <typename T> struct Conv {
    typedef Real<T> R;
    const T *x;
    Cells w, bias; /* bias.data is NULL if there is no bias */
    const int64_t *start;
    int64_t s, b, c, k, along_s, along_b; /* the last two: strides of x */

    __device__ __forceinline__ int64_t start_of(int64_t t, int64_t sample) const {
        return start ? start[sample * s + t] : 0;
    }
    __device__ __forceinline__ R input(int64_t t, int64_t sample, int64_t j) const {
        return to_real<R>(x[t * along_s + sample * along_b + j]);
    }
    __device__ __forceinline__ R weight(int64_t j, int64_t i) const { return w.get<R>(j * k + i); }
    __device__ R pre(int64_t t, int64_t sample, int64_t j) const {
        const int64_t begin = start_of(t, sample);
        R sum = bias.data ? bias.get<R>(j) : (R)0;
        for (int64_t i = 0; i < k; i++) {
            const int64_t from = t - k + 1 + i;
            if (from >= begin) sum += weight(j, i) * input(from, sample, j);
        }
        return sum;
    }
    __device__ R dpre(const T *dy, int64_t t, int64_t sample, int64_t j) const {
        const R v = pre(t, sample, j), gate = sigmoid(v);
        return to_real<R>(dy[(t * b + sample) * c + j]) * gate * (1 + v * (1 - gate));
    }
};

template <typename T> static Conv<T> conv_of(Tensor *const *in) {
    const Tensor *x = in[0], *w = in[1];
    CHECK(w->dim[1] <= CONV_TAPS, "causal_conv: %lld taps, but at most %d are supported",
          (long long)w->dim[1], CONV_TAPS);
    return {data_of<T>(x), cells(w),  cells(in[2]), ids_of(in[3]), x->dim[0],
            x->dim[1],     x->dim[2], w->dim[1],    x->stride[0],  x->stride[1]};
}

template <typename T> static __global__ void convolved(Conv<T> o, T *y) {
    GRID_LOOP(e, o.s * o.b * o.c) {
        const int64_t row = e / o.c;
        const Real<T> v = o.pre(row / o.b, row % o.b, e % o.c);
        y[e] = from_real<T>(v * sigmoid(v));
    }
}

template <typename T> static void forward(const Call *c) {
    const Conv<T> o = conv_of<T>(c->in);
    convolved<T>
        <<<grid_for(c, o.s * o.b * o.c, THREADS), THREADS, 0, stream_of(c)>>>(o, data_of<T>(c->out[0]));
    LAUNCHED();
}

extern "C" void cuda_causal_conv(const Call *c) {
    same_type("causal_conv", c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

template <typename T>
static __global__ void input_grad(Conv<T> o, const T *dy, T *dx, int64_t along_s, int64_t along_b, bool add) {
    GRID_LOOP(e, o.s * o.b * o.c) {
        const int64_t j = e % o.c, t = e / o.c / o.b, sample = e / o.c % o.b;
        T *to = dx + t * along_s + sample * along_b + j;
        Real<T> sum = add ? to_real<Real<T>>(*to) : (Real<T>)0;
        for (int64_t later = t; later < t + o.k && later < o.s && o.start_of(later, sample) <= t; later++)
            sum += o.weight(j, o.k - 1 - (later - t)) * o.dpre(dy, later, sample, j);
        *to = from_real<T>(sum);
    }
}

/* Writes partial [b,parts,k+1,c]: the sums of the gradients of the taps and of the bias. */
template <typename T>
static __global__ void channel_sums(Conv<T> o, const T *dy, Real<T> *partial, int64_t parts) {
    GRID_LOOP(e, o.b * parts * o.c) {
        const int64_t j = e % o.c, part = e / o.c % parts, sample = e / o.c / parts;
        Real<T> sum[CONV_TAPS + 1] = {};
        for (int64_t t = part * PART; t < (part + 1) * PART && t < o.s; t++) {
            const Real<T> d = o.dpre(dy, t, sample, j);
#pragma unroll
            for (int i = 0; i < CONV_TAPS; i++) {
                const int64_t from = t - o.k + 1 + i;
                if (i < o.k && from >= o.start_of(t, sample)) sum[i] += d * o.input(from, sample, j);
            }
            sum[CONV_TAPS] += d;
        }
        Real<T> *to = partial + (sample * parts + part) * (o.k + 1) * o.c + j;
#pragma unroll
        for (int i = 0; i < CONV_TAPS; i++)
            if (i < o.k) to[i * o.c] = sum[i];
        to[o.k * o.c] = sum[CONV_TAPS];
    }
}

extern "C" size_t cuda_plans_causal_conv_grad(const Call *c) {
    const Tensor *x = c->in[1], *w = c->in[2];
    if (!c->out[1] && !c->out[2]) return 0;
    return (size_t)(x->dim[1] * ceil_div(x->dim[0], PART) * (w->dim[1] + 1) * x->dim[2]) *
           (x->dtype == F64 ? sizeof(double) : sizeof(float));
}

template <typename T> static void backward(const Call *c) {
    const Conv<T> o = conv_of<T>(c->in + 1);
    const Tensor *dx = c->out[0];
    const T *dy = data_of<T>(c->in[0]);
    if (dx) {
        input_grad<T><<<grid_for(c, o.s * o.b * o.c, THREADS), THREADS, 0, stream_of(c)>>>(
            o, dy, data_of<T>(dx), dx->stride[0], dx->stride[1], accumulates(dx));
        LAUNCHED();
    }
    if (!c->out[1] && !c->out[2]) return;
    const size_t bytes = cuda_plans_causal_conv_grad(c);
    const int64_t parts = ceil_div(o.s, PART);
    Real<T> *partial = bytes ? (Real<T> *)cuda_scratch(c->device, bytes) : NULL;
    channel_sums<T>
        <<<grid_for(c, o.b * parts * o.c, THREADS), THREADS, 0, stream_of(c)>>>(o, dy, partial, parts);
    LAUNCHED();
    add_samples(c, partial, o.b, parts, (o.k + 1) * o.c, 0, o.k, c->out[1]);
    add_samples(c, partial, o.b, parts, (o.k + 1) * o.c, o.k * o.c, 1, c->out[2]);
}

extern "C" void cuda_causal_conv_grad(const Call *c) {
    same_type("causal_conv_grad", c->in[1], c->in[0]);
    same_type("causal_conv_grad", c->in[1], c->out[0]);
    STORAGE_SWITCH(c->in[1]->dtype, backward<T>(c));
}
