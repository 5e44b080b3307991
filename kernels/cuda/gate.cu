/* Computes the ops of kernels/cpu/gate.c, which contains the formulas. Threads access operands element by element. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 256 };

template <typename R> struct Gate {
    R open, value, slope; /* sigmoid(z), act(z), act'(z) */
    __device__ __forceinline__ Gate(R z, bool silu)
        : open(1 / (1 + exp(-z))), value(silu ? z * open : open),
          slope(open * (silu ? 1 + z * (1 - open) : 1 - open)) {}
};

static bool is_silu(const Call *c) { return ((const GateAttr *)c->attr)->silu; }

static void same_type(const Tensor *a, const Tensor *b) {
    CHECK(!b || a->dtype == b->dtype, "gate: operands are %s and %s", dtype_name((DType)a->dtype),
          dtype_name((DType)b->dtype));
}

template <typename T>
static __global__ void gated(const T *x, const T *z, T *y, Rows rows, int64_t n, bool silu) {
    typedef Real<T> R;
    GRID_LOOP(e, n) {
        const R gate = to_real<R>(z[rows(e / rows.width) + e % rows.width]);
        y[e] = from_real<T>(to_real<R>(x[e]) * Gate<R>(gate, silu).value);
    }
}

template <typename T> static void forward(const Call *c) {
    const int64_t n = tensor_count(c->in[0]);
    gated<T><<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(
        data_of<T>(c->in[0]), data_of<T>(c->in[1]), data_of<T>(c->out[0]), rows_of(c->in[1]), n, is_silu(c));
    LAUNCHED();
}

extern "C" void cuda_gate(const Call *c) {
    same_type(c->in[0], c->in[1]);
    same_type(c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

template <typename T> struct Grad {
    T *at; /* NULL if not needed */
    Rows rows;
    bool add;

    explicit Grad(const Tensor *t) : at(data_of<T>(t)), rows(), add(accumulates(t)) {
        if (t) rows = rows_of(t);
    }
    __device__ __forceinline__ void put(int64_t e, Real<T> value) const {
        if (!at) return;
        T *to = at + rows(e / rows.width) + e % rows.width;
        *to = from_real<T>(add ? to_real<Real<T>>(*to) + value : value);
    }
};

template <typename T>
static __global__ void gated_grad(const T *dy, const T *x, const T *z, Rows rows, Grad<T> dx, Grad<T> dz,
                                  int64_t n, bool silu) {
    typedef Real<T> R;
    GRID_LOOP(e, n) {
        const Gate<R> gate(to_real<R>(z[rows(e / rows.width) + e % rows.width]), silu);
        const R d = to_real<R>(dy[e]), in = to_real<R>(x[e]);
        dx.put(e, d * gate.value);
        dz.put(e, d * in * gate.slope);
    }
}

template <typename T> static void backward(const Call *c) {
    const int64_t n = tensor_count(c->in[1]);
    gated_grad<T><<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(
        data_of<T>(c->in[0]), data_of<T>(c->in[1]), data_of<T>(c->in[2]), rows_of(c->in[2]),
        Grad<T>(c->out[0]), Grad<T>(c->out[1]), n, is_silu(c));
    LAUNCHED();
}

extern "C" void cuda_gate_grad(const Call *c) {
    for (int i = 0; i < 2; i++) same_type(c->in[1], c->in[2 * i]), same_type(c->in[1], c->out[i]);
    if (tensor_count(c->in[1])) STORAGE_SWITCH(c->in[1]->dtype, backward<T>(c));
}
