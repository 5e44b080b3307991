/* Computes the op of kernels/cpu/stream_delta_rule.c, which describes it. A thread computes a column of a value head
 * for all tokens of a request; columns are independent. */
#include "kernels/cuda/mamba/mamba.cuh"

template <typename T> struct Stream {
    typedef Real<T> R;
    const T *qkv, *alpha, *beta;
    Cells a_log, dt_bias;
    const int64_t *slot, *position;
    R *states;
    int64_t s, hk, hv, d, n, alpha_s, beta_s; /* the last two: strides */
    bool normalize;
    R eps;

    __device__ R row_scale(const T *x) const {
        R sum = eps;
        for (int64_t m = 0; m < d; m++) sum += to_real<R>(x[m]) * to_real<R>(x[m]);
        return normalize ? 1 / sqrt(sum) : (R)1;
    }
    __device__ R decay(int64_t t, int64_t head) const {
        const R raw = to_real<R>(alpha[t * alpha_s + head]) + dt_bias.template get<R>(head);
        return exp(-exp(a_log.template get<R>(head)) * softplus(raw));
    }
};

template <typename T> static __global__ void advanced(Stream<T> o, T *y) {
    typedef Real<T> R;
    GRID_LOOP(e, o.s * o.hv * o.n) {
        const int64_t column = e % o.n, head = e / o.n % o.hv, first = e / o.n / o.hv;
        if (first && o.slot[first - 1] == o.slot[first]) continue;
        R *state = o.states + (o.slot[first] * o.hv + head) * o.d * o.n + column;
        for (int64_t t = first; t < o.s && o.slot[t] == o.slot[first]; t++) {
            const T *row = o.qkv + t * (2 * o.hk * o.d + o.hv * o.n), *q = row + head / (o.hv / o.hk) * o.d,
                    *k = q + o.hk * o.d;
            const R of_q = o.row_scale(q) / sqrt((R)o.d), of_k = o.row_scale(k), kept = o.decay(t, head);
            R error = to_real<R>(row[2 * o.hk * o.d + head * o.n + column]), sum = 0;
            for (int64_t m = 0; m < o.d; m++) {
                const R before = o.position[t] ? kept * state[m * o.n] : (R)0;
                error -= of_k * to_real<R>(k[m]) * before;
                state[m * o.n] = before;
            }
            error *= sigmoid(to_real<R>(o.beta[t * o.beta_s + head]));
            for (int64_t m = 0; m < o.d; m++) {
                const R after = state[m * o.n] + of_k * to_real<R>(k[m]) * error;
                state[m * o.n] = after;
                sum += of_q * to_real<R>(q[m]) * after;
            }
            y[(t * o.hv + head) * o.n + column] = from_real<T>(sum);
        }
    }
}

template <typename T> static void stream(const Call *c) {
    const DeltaRuleAttr *a = (const DeltaRuleAttr *)c->attr;
    const Tensor *qkv = c->in[0], *alpha = c->in[1], *beta = c->in[2];
    Stream<T> o = {};
    o.qkv = data_of<T>(qkv), o.alpha = data_of<T>(alpha), o.beta = data_of<T>(beta);
    o.a_log = cells(c->in[3]), o.dt_bias = cells(c->in[4]);
    o.slot = ids_of(c->in[5]), o.position = ids_of(c->in[6]), o.states = data_of<Real<T>>(c->out[1]);
    o.s = qkv->dim[0], o.hk = a->key_heads, o.hv = tensor_width(alpha), o.d = a->key_dim, o.n = a->value_dim;
    o.alpha_s = alpha->stride[0], o.beta_s = beta->stride[0];
    o.normalize = a->normalize, o.eps = (Real<T>)a->eps;
    advanced<T>
        <<<grid_for(c, o.s * o.hv * o.n, THREADS), THREADS, 0, stream_of(c)>>>(o, data_of<T>(c->out[0]));
    LAUNCHED();
}

extern "C" void cuda_stream_delta_rule(const Call *c) {
    for (int i = 1; i < 3; i++) same_type("stream_delta_rule", c->in[0], c->in[i]);
    same_type("stream_delta_rule", c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, stream<T>(c));
}
