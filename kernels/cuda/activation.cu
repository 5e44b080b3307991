/* Computes the ops of kernels/cpu/activation.c, which contains the formulas. y is written. dx is written or
 * accumulated, and may share the memory of dy unless the activation is gated. */
#include <math.h>

#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vectors.cuh"

enum { THREADS = 256 };

/* Approximations for 16-bit storage, where the exact functions would take longer than the memory accesses. For
 * results other than 0, the relative errors of exp and of the division are below 2^-17, 1/64 of fp16's rounding
 * error. Subnormal numbers are replaced by 0. */
__device__ __forceinline__ float rough_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
__device__ __forceinline__ float rough_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* In this file, T is the storage type. The storage type determines the necessary accuracy. */
template <typename T> __device__ __forceinline__ Real<T> exponential(Real<T> x) {
    if constexpr (sizeof(T) == 2)
        return rough_exp(x);
    else
        return exp(x);
}

template <typename T> __device__ __forceinline__ Real<T> sigmoid(Real<T> x) {
    if constexpr (sizeof(T) == 2)
        return rough_reciprocal(1 + rough_exp(-x));
    else
        return 1 / (1 + exp(-x));
}

template <typename R> __device__ __forceinline__ R normal_cdf(R x) {
    return (R)0.5 * (1 + erf(x * (R)0.70710678118654752440));
}

#define GELU_LINEAR ((R)1.5957691216057307117598) /* 2 sqrt(2/pi) */
#define GELU_CUBIC  ((R)(0.044715 * 1.5957691216057307117598))
#define GELU_QUICK  ((R)1.702)

template <Activation KIND, typename T> __device__ __forceinline__ Real<T> value(Real<T> x) {
    typedef Real<T> R;
    if constexpr (KIND == ACT_GELU_TANH) return x * sigmoid<T>(x * (GELU_LINEAR + GELU_CUBIC * x * x));
    if constexpr (KIND == ACT_GELU_ERF) return x * normal_cdf(x);
    if constexpr (KIND == ACT_QUICK_GELU) return x * sigmoid<T>(GELU_QUICK * x);
    if constexpr (KIND == ACT_TANH) return tanh(x);
    if constexpr (KIND == ACT_SQUARED_RELU) return x > 0 ? x * x : 0;
    return x > 0 ? x : 0;
}

/* Returns the derivative of x sigmoid(t(x)), given t and its derivative dt. */
template <typename T> __device__ __forceinline__ Real<T> gated_slope(Real<T> x, Real<T> t, Real<T> dt) {
    const Real<T> p = sigmoid<T>(t);
    return p + x * p * (1 - p) * dt;
}

template <Activation KIND, typename T> __device__ __forceinline__ Real<T> slope(Real<T> x) {
    typedef Real<T> R;
    if constexpr (KIND == ACT_GELU_TANH)
        return gated_slope<T>(x, x * (GELU_LINEAR + GELU_CUBIC * x * x),
                              GELU_LINEAR + 3 * GELU_CUBIC * x * x);
    if constexpr (KIND == ACT_GELU_ERF)
        return normal_cdf(x) + x * exponential<T>((R)-0.5 * x * x) * (R)0.3989422804014326779399;
    if constexpr (KIND == ACT_QUICK_GELU) return gated_slope<T>(x, GELU_QUICK * x, GELU_QUICK);
    if constexpr (KIND == ACT_TANH) return 1 - tanh(x) * tanh(x);
    if constexpr (KIND == ACT_SQUARED_RELU) return x > 0 ? 2 * x : 0;
    return x > 0 ? 1 : 0;
}

/* ---- one operand ---- */

template <Activation KIND, typename T> __device__ __forceinline__ void values(Run<T, VEC<T>> *x) {
#pragma unroll
    for (int k = 0; k < VEC<T>; k++) x->put(k, value<KIND, T>(x->get(k)));
}

template <typename T>
__global__ void __launch_bounds__(THREADS) map(Activation kind, const T *x, T *y, int64_t n, bool aligned) {
    start_pdl();
    constexpr int N = VEC<T>;
    GRID_LOOP(i, (n + N - 1) / N) {
        Run<T, N> v = load_run<T, N>(x, i * N, n, aligned);
        switch (kind) {
        case ACT_GELU_TANH:
            values<ACT_GELU_TANH>(&v);
            break;
        case ACT_GELU_ERF:
            values<ACT_GELU_ERF>(&v);
            break;
        case ACT_QUICK_GELU:
            values<ACT_QUICK_GELU>(&v);
            break;
        case ACT_TANH:
            values<ACT_TANH>(&v);
            break;
        case ACT_SQUARED_RELU:
            values<ACT_SQUARED_RELU>(&v);
            break;
        default:
            values<ACT_RELU>(&v);
        }
        store_run(y, i * N, n, aligned, v);
    }
}

template <Activation KIND, typename T>
__device__ __forceinline__ void slopes(const Run<T, VEC<T>> &dy, const Run<T, VEC<T>> &x, Run<T, VEC<T>> *dx,
                                       bool add) {
#pragma unroll
    for (int k = 0; k < VEC<T>; k++) {
        const Real<T> d = dy.get(k) * slope<KIND, T>(x.get(k));
        dx->put(k, add ? dx->get(k) + d : d);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    map_grad(Activation kind, const T *dy, const T *x, T *dx, int64_t n, bool add, bool aligned) {
    start_pdl();
    constexpr int N = VEC<T>;
    GRID_LOOP(i, (n + N - 1) / N) {
        const Run<T, N> d = load_run<T, N>(dy, i * N, n, aligned), v = load_run<T, N>(x, i * N, n, aligned);
        Run<T, N> out;
        if (add) out = load_run<T, N>(dx, i * N, n, aligned);
        switch (kind) {
        case ACT_GELU_TANH:
            slopes<ACT_GELU_TANH>(d, v, &out, add);
            break;
        case ACT_GELU_ERF:
            slopes<ACT_GELU_ERF>(d, v, &out, add);
            break;
        case ACT_QUICK_GELU:
            slopes<ACT_QUICK_GELU>(d, v, &out, add);
            break;
        case ACT_TANH:
            slopes<ACT_TANH>(d, v, &out, add);
            break;
        case ACT_SQUARED_RELU:
            slopes<ACT_SQUARED_RELU>(d, v, &out, add);
            break;
        default:
            slopes<ACT_RELU>(d, v, &out, add);
        }
        store_run(dx, i * N, n, aligned, out);
    }
}

/* ---- gated activations (SiLU if KIND is SWIGLU, else KIND): a row consists of f gates, then f elements of
 * `up` ---- */

/* The limit and offset of ActivationAttr. */
template <typename T> struct Limits { Real<T> limit, offset; };

template <typename T> static Limits<T> limits_of(const Call *c) {
    const ActivationAttr *a = (const ActivationAttr *)c->attr;
    return {a->limit > 0 ? (Real<T>)a->limit : (Real<T>)INFINITY, (Real<T>)a->offset};
}

/* Compute act(gate) and its derivative. */
template <Activation KIND, typename T> __device__ __forceinline__ Real<T> gate_value(Real<T> g) {
    if constexpr (KIND == ACT_SWIGLU)
        return g * sigmoid<T>(g);
    else
        return value<KIND, T>(g);
}

template <Activation KIND, typename T>
__device__ __forceinline__ void gate_value_and_slope(Real<T> g, Real<T> *y, Real<T> *dy) {
    if constexpr (KIND == ACT_SWIGLU) {
        const Real<T> p = sigmoid<T>(g);
        *y = g * p, *dy = p + *y * (1 - p);
    } else
        *y = value<KIND, T>(g), *dy = slope<KIND, T>(g);
}

/* Computes the gated activation, with the limit and the offset if LIMITED. */
template <Activation KIND, bool LIMITED, typename T>
__global__ void __launch_bounds__(THREADS)
    gated(const T *x, T *y, int64_t rows, int64_t f, bool aligned, Limits<T> limits) {
    constexpr int N = VEC<T>;
    start_pdl();
    const int64_t runs = (f + N - 1) / N;
    GRID_LOOP(i, rows * runs) {
        const int64_t row = i / runs, first = i % runs * N;
        Run<T, N> gate = load_run<T, N>(x + row * 2 * f, first, f, aligned);
        const Run<T, N> up = load_run<T, N>(x + row * 2 * f + f, first, f, aligned);
#pragma unroll
        for (int k = 0; k < N; k++) {
            Real<T> g = gate.get(k), u = up.get(k);
            if constexpr (LIMITED) {
                const Real<T> most = limits.limit;
                g = g > most ? most : g;
                u = (u > most ? most : u < -most ? -most : u) + limits.offset;
            }
            gate.put(k, gate_value<KIND, T>(g) * u);
        }
        store_run(y + row * f, first, f, aligned, gate);
    }
}

template <Activation KIND, bool LIMITED, typename T>
__global__ void __launch_bounds__(THREADS) gated_grad(const T *dy, const T *x, T *dx, int64_t rows, int64_t f,
                                                      bool add, bool aligned, Limits<T> limits) {
    constexpr int N = VEC<T>;
    typedef Real<T> R;
    start_pdl();
    const int64_t runs = (f + N - 1) / N;
    GRID_LOOP(i, rows * runs) {
        const int64_t row = i / runs, first = i % runs * N;
        T *dgate = dx + row * 2 * f, *dup = dgate + f;
        const Run<T, N> d = load_run<T, N>(dy + row * f, first, f, aligned),
                        gate = load_run<T, N>(x + row * 2 * f, first, f, aligned),
                        up = load_run<T, N>(x + row * 2 * f + f, first, f, aligned);
        Run<T, N> of_gate, of_up;
        if (add)
            of_gate = load_run<T, N>(dgate, first, f, aligned),
            of_up = load_run<T, N>(dup, first, f, aligned);
#pragma unroll
        for (int k = 0; k < N; k++) {
            R g = gate.get(k), u = up.get(k), act, slope;
            bool gate_moves = true, up_moves = true;
            if constexpr (LIMITED) {
                const R most = limits.limit;
                gate_moves = !(g > most), up_moves = !(u > most || u < -most);
                g = gate_moves ? g : most;
                u = (up_moves ? u : u > 0 ? most : -most) + limits.offset;
            }
            gate_value_and_slope<KIND, T>(g, &act, &slope);
            const R a = gate_moves ? d.get(k) * u * slope : (R)0, b = up_moves ? d.get(k) * act : (R)0;
            of_gate.put(k, add ? of_gate.get(k) + a : a);
            of_up.put(k, add ? of_up.get(k) + b : b);
        }
        store_run(dgate, first, f, aligned, of_gate);
        store_run(dup, first, f, aligned, of_up);
    }
}

/* ---- launches ---- */

static Activation kind_of(const Call *c) { return ((const ActivationAttr *)c->attr)->kind; }

static bool is_limited(const Call *c) {
    const ActivationAttr *a = (const ActivationAttr *)c->attr;
    return a->limit > 0 || a->offset != 0;
}

/* Returns the kernel's instance for the call's gated activation. GeGLU never has limits (see
 * op_activation). */
#define GATED(c, kernel, T)                                                                                  \
    (kind_of(c) == ACT_QUICK_GEGLU  ? kernel<ACT_QUICK_GELU, true, T>                                        \
     : kind_of(c) == ACT_GEGLU_TANH ? kernel<ACT_GELU_TANH, false, T>                                        \
     : kind_of(c) == ACT_GEGLU_ERF  ? kernel<ACT_GELU_ERF, false, T>                                         \
     : is_limited(c)                ? kernel<ACT_SWIGLU, true, T>                                            \
                                    : kernel<ACT_SWIGLU, false, T>)

static void same_type(const Tensor *a, const Tensor *b) {
    CHECK(a->dtype == b->dtype, "activation: the operands have different types, %s and %s",
          dtype_name((DType)a->dtype), dtype_name((DType)b->dtype));
}

template <typename T> static void forward(const Call *c) {
    const T *x = data_of<T>(c->in[0]);
    T *y = data_of<T>(c->out[0]);
    const int64_t n = tensor_count(c->out[0]), f = tensor_width(c->out[0]), rows = tensor_rows(c->out[0]);
    const bool aligned = aligned_16(x) && aligned_16(y);
    if (activation_is_gated(kind_of(c)))
        launch_pdl(c, grid_for(c, rows * ceil_div(f, VEC<T>), THREADS), THREADS, 0, GATED(c, gated, T), x, y,
                   rows, f, aligned && f % VEC<T> == 0, limits_of<T>(c));
    else
        launch_pdl(c, grid_for(c, ceil_div(n, VEC<T>), THREADS), THREADS, 0, map<T>, kind_of(c), x, y, n,
                   aligned);
}

extern "C" void cuda_activation(const Call *c) {
    same_type(c->in[0], c->out[0]);
    if (tensor_count(c->out[0])) STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

template <typename T> static void backward(const Call *c) {
    const T *dy = data_of<T>(c->in[0]), *x = data_of<T>(c->in[1]);
    T *dx = data_of<T>(c->out[0]);
    const int64_t n = tensor_count(c->in[0]), f = tensor_width(c->in[0]), rows = tensor_rows(c->in[0]);
    const bool add = accumulates(c->out[0]), aligned = aligned_16(dy) && aligned_16(x) && aligned_16(dx);
    if (activation_is_gated(kind_of(c)))
        launch_pdl(c, grid_for(c, rows * ceil_div(f, VEC<T>), THREADS), THREADS, 0, GATED(c, gated_grad, T),
                   dy, x, dx, rows, f, add, aligned && f % VEC<T> == 0, limits_of<T>(c));
    else
        launch_pdl(c, grid_for(c, ceil_div(n, VEC<T>), THREADS), THREADS, 0, map_grad<T>, kind_of(c), dy, x,
                   dx, n, add, aligned);
}

extern "C" void cuda_activation_grad(const Call *c) {
    same_type(c->in[0], c->in[1]), same_type(c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, backward<T>(c));
}
