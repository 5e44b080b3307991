/* Computes the ops of kernels/cpu/activation.c, which contains the formulas. y is written. dx is written or
 * accumulated, and may share the memory of dy unless the activation is gated or scaled. With a scale, results are
 * bitwise equal to those of two ops, the activation and scale_rows, as on the CPU. */
#include <math.h>

#include "kernels/cuda/logistic.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vectors.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

template <typename R> __device__ __forceinline__ R normal_cdf(R x) {
    return (R)0.5 * (1 + erf(x * (R)0.70710678118654752440));
}

#define GELU_LINEAR ((R)1.5957691216057307117598) /* 2 sqrt(2/pi) */
#define GELU_CUBIC  ((R)(0.044715 * 1.5957691216057307117598))
#define GELU_QUICK  ((R)1.702)

template <Activation KIND, typename T> __device__ __forceinline__ Real<T> value(Real<T> x) {
    typedef Real<T> R;
    if constexpr (KIND == ACT_GELU_TANH) return x * logistic<T>(x * (GELU_LINEAR + GELU_CUBIC * x * x));
    if constexpr (KIND == ACT_GELU_ERF) return x * normal_cdf(x);
    if constexpr (KIND == ACT_QUICK_GELU) return x * logistic<T>(GELU_QUICK * x);
    if constexpr (KIND == ACT_TANH) return tanh(x);
    if constexpr (KIND == ACT_SQUARED_RELU) return x > 0 ? x * x : 0;
    return x > 0 ? x : 0;
}

/* Returns the derivative of x sigmoid(t(x)), given t and its derivative dt. */
template <typename T> __device__ __forceinline__ Real<T> gated_slope(Real<T> x, Real<T> t, Real<T> dt) {
    const Real<T> p = logistic<T>(t);
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

/* ---- runs ---- */

/* Activations are types with these members:
 *   PARTS     the number of runs of x that a run of y needs
 *   forward   computes a run of y
 *   backward  writes the gradients of the runs of x or, if `add`, adds to them */

/* An activation without a gate. */
template <typename T> struct Plain {
    typedef Run<T, VEC<T>> Elements;
    static constexpr int PARTS = 1;
    Activation kind;

    __device__ __forceinline__ Elements forward(const Elements *x) const {
        switch (kind) {
        case ACT_GELU_TANH:
            return values<ACT_GELU_TANH>(*x);
        case ACT_GELU_ERF:
            return values<ACT_GELU_ERF>(*x);
        case ACT_QUICK_GELU:
            return values<ACT_QUICK_GELU>(*x);
        case ACT_TANH:
            return values<ACT_TANH>(*x);
        case ACT_SQUARED_RELU:
            return values<ACT_SQUARED_RELU>(*x);
        default:
            return values<ACT_RELU>(*x);
        }
    }

    __device__ __forceinline__ void backward(const Elements &dy, const Elements *x, Elements *dx,
                                             bool add) const {
        switch (kind) {
        case ACT_GELU_TANH:
            slopes<ACT_GELU_TANH>(dy, *x, dx, add);
            break;
        case ACT_GELU_ERF:
            slopes<ACT_GELU_ERF>(dy, *x, dx, add);
            break;
        case ACT_QUICK_GELU:
            slopes<ACT_QUICK_GELU>(dy, *x, dx, add);
            break;
        case ACT_TANH:
            slopes<ACT_TANH>(dy, *x, dx, add);
            break;
        case ACT_SQUARED_RELU:
            slopes<ACT_SQUARED_RELU>(dy, *x, dx, add);
            break;
        default:
            slopes<ACT_RELU>(dy, *x, dx, add);
        }
    }

  private:
    template <Activation KIND> static __device__ __forceinline__ Elements values(Elements x) {
#pragma unroll
        for (int k = 0; k < VEC<T>; k++) x.put(k, value<KIND, T>(x.get(k)));
        return x;
    }
    template <Activation KIND>
    static __device__ __forceinline__ void slopes(const Elements &dy, const Elements &x, Elements *dx,
                                                  bool add) {
#pragma unroll
        for (int k = 0; k < VEC<T>; k++) {
            const Real<T> d = dy.get(k) * slope<KIND, T>(x.get(k));
            dx->put(k, add ? dx->get(k) + d : d);
        }
    }
};

/* Compute act(gate) and its derivative: SiLU if KIND is SWIGLU, else KIND. */
template <Activation KIND, typename T> __device__ __forceinline__ Real<T> gate_value(Real<T> g) {
    if constexpr (KIND == ACT_SWIGLU)
        return g * logistic<T>(g);
    else
        return value<KIND, T>(g);
}

template <Activation KIND, typename T>
__device__ __forceinline__ void gate_value_and_slope(Real<T> g, Real<T> *y, Real<T> *dy) {
    if constexpr (KIND == ACT_SWIGLU) {
        const Real<T> p = logistic<T>(g);
        *y = g * p, *dy = p + *y * (1 - p);
    } else
        *y = value<KIND, T>(g), *dy = slope<KIND, T>(g);
}

/* A gated activation, with the limit and the offset of ActivationAttr if LIMITED. A row of x consists of f gates,
 * then f elements of `up`. */
template <Activation KIND, bool LIMITED, typename T> struct Gated {
    typedef Run<T, VEC<T>> Elements;
    static constexpr int PARTS = 2;
    Real<T> limit, offset;

    __device__ __forceinline__ Elements forward(const Elements *x) const {
        Elements y = x[0];
#pragma unroll
        for (int k = 0; k < VEC<T>; k++) {
            Real<T> g = x[0].get(k), u = x[1].get(k);
            if constexpr (LIMITED) {
                g = g > limit ? limit : g;
                u = (u > limit ? limit : u < -limit ? -limit : u) + offset;
            }
            y.put(k, gate_value<KIND, T>(g) * u);
        }
        return y;
    }

    __device__ __forceinline__ void backward(const Elements &dy, const Elements *x, Elements *dx,
                                             bool add) const {
        typedef Real<T> R;
#pragma unroll
        for (int k = 0; k < VEC<T>; k++) {
            R g = x[0].get(k), u = x[1].get(k), act, slope;
            bool gate_moves = true, up_moves = true;
            if constexpr (LIMITED) {
                gate_moves = !(g > limit), up_moves = !(u > limit || u < -limit);
                g = gate_moves ? g : limit;
                u = (up_moves ? u : u > 0 ? limit : -limit) + offset;
            }
            gate_value_and_slope<KIND, T>(g, &act, &slope);
            const R a = gate_moves ? dy.get(k) * u * slope : (R)0, b = up_moves ? dy.get(k) * act : (R)0;
            dx[0].put(k, add ? dx[0].get(k) + a : a);
            dx[1].put(k, add ? dx[1].get(k) + b : b);
        }
    }
};

/* ---- kernels: x has `rows` rows of PARTS * f elements, and y has rows of f elements ---- */

template <typename T> __device__ __forceinline__ void scale_run(Run<T, VEC<T>> *x, Real<T> by) {
#pragma unroll
    for (int k = 0; k < VEC<T>; k++) x->put(k, x->get(k) * by);
}

/* Loads the runs of x, or of dx, that belong to elements [first, first + VEC<T>) of a row of y. */
template <int PARTS, typename T>
__device__ __forceinline__ void load_parts(Run<T, VEC<T>> *to, const T *row, int64_t first, int64_t f,
                                           bool aligned) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) to[p] = load_run<T, VEC<T>>(row + p * f, first, f, aligned);
}

template <int PARTS, typename T>
__device__ __forceinline__ void store_parts(T *row, const Run<T, VEC<T>> *from, int64_t first, int64_t f,
                                            bool aligned) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) store_run(row + p * f, first, f, aligned, from[p]);
}

template <typename A, typename T>
__global__ void __launch_bounds__(THREADS)
    activate(A act, const T *x, Cells scale, T *y, int64_t rows, int64_t f, bool aligned) {
    constexpr int N = VEC<T>;
    start_pdl();
    const int64_t runs = (f + N - 1) / N;
    GRID_LOOP(i, rows * runs) {
        const int64_t row = rows > 1 ? i / runs : 0, first = (i - row * runs) * N;
        const Real<T> by = scale.data ? scale.get<Real<T>>(row) : (Real<T>)1;
        Run<T, N> v[A::PARTS];
        load_parts<A::PARTS>(v, x + row * A::PARTS * f, first, f, aligned);
        Run<T, N> out = act.forward(v);
        if (scale.data) scale_run(&out, by);
        store_run(y + row * f, first, f, aligned, out);
    }
}

template <typename A, typename T>
__global__ void __launch_bounds__(THREADS)
    activate_grad(A act, const T *dy, const T *x, T *dx, int64_t rows, int64_t f, bool add, bool aligned) {
    constexpr int N = VEC<T>;
    start_pdl();
    const int64_t runs = (f + N - 1) / N;
    GRID_LOOP(i, rows * runs) {
        const int64_t row = rows > 1 ? i / runs : 0, first = (i - row * runs) * N, at = row * A::PARTS * f;
        const Run<T, N> d = load_run<T, N>(dy + row * f, first, f, aligned);
        Run<T, N> v[A::PARTS], out[A::PARTS];
        load_parts<A::PARTS>(v, x + at, first, f, aligned);
        if (add) load_parts<A::PARTS>(out, dx + at, first, f, aligned);
        act.backward(d, v, out, add);
        store_parts<A::PARTS>(dx + at, out, first, f, aligned);
    }
}

/* The operands of DEPTH runs of one thread. */
template <int PARTS, int DEPTH, typename T> struct Loaded {
    Run<T, VEC<T>> dy[DEPTH], x[DEPTH][PARTS], dx[DEPTH][PARTS];

    template <bool WHOLE>
    __device__ __forceinline__ void load(const T *dy_row, const T *x_row, const T *dx_row, int64_t first,
                                         int64_t f) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int64_t at = first + 32 * VEC<T> * d;
            dy[d] = load_or_clear<WHOLE, VEC<T>>(dy_row, at, f);
#pragma unroll
            for (int p = 0; p < PARTS; p++) x[d][p] = load_or_clear<WHOLE, VEC<T>>(x_row + p * f, at, f);
#pragma unroll
            for (int p = 0; p < PARTS && dx_row; p++)
                dx[d][p] = load_or_clear<WHOLE, VEC<T>>(dx_row + p * f, at, f);
        }
    }
};

/* Each warp processes one row at a time. dscale is a sum over the row, in the order of scale_rows_grad. */
template <typename A, typename T>
__global__ void __launch_bounds__(THREADS)
    scaled_grad(A act, const T *dy, const T *x, Cells scale, T *dx, Cells dscale, int64_t rows, int64_t f,
                bool add, bool add_dscale, bool aligned) {
    constexpr int N = VEC<T>, DEPTH = 2;
    typedef Real<T> R;
    start_pdl();
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < rows;
         row += (int64_t)gridDim.x * WARPS) {
        const R by = scale.get<R>(row);
        const T *dy_row = dy + row * f, *x_row = x + row * A::PARTS * f;
        T *dx_row = dx ? dx + row * A::PARTS * f : NULL;
        R dot = 0;
        for (int64_t first = threadIdx.x % 32 * N; first < f; first += 32 * N * DEPTH) {
            Loaded<A::PARTS, DEPTH, T> v;
            if (aligned)
                v.template load<true>(dy_row, x_row, add ? dx_row : NULL, first, f);
            else
                v.template load<false>(dy_row, x_row, add ? dx_row : NULL, first, f);
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const Run<T, N> y = act.forward(v.x[d]);
#pragma unroll
                for (int k = 0; k < N; k++) dot += v.dy[d].get(k) * y.get(k);
                scale_run(&v.dy[d], by);
                act.backward(v.dy[d], v.x[d], v.dx[d], add);
                if (dx) store_parts<A::PARTS>(dx_row, v.dx[d], first + 32 * N * d, f, aligned);
            }
        }
        if (!dscale.data) continue;
        dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0) dscale.put_or_add(row, dot, add_dscale);
    }
}

/* ---- launches ---- */

static void same_type(const Tensor *a, const Tensor *b) {
    CHECK(a->dtype == b->dtype, "activation: the operands have different types, %s and %s",
          dtype_name((DType)a->dtype), dtype_name((DType)b->dtype));
}

/* Calls run(act) with the call's activation. GeGLU never has limits (see op_activation). */
template <typename T, typename F> static void with_activation(const Call *c, F run) {
    typedef Real<T> R;
    const ActivationAttr *a = (const ActivationAttr *)c->attr;
    const R limit = a->limit > 0 ? (R)a->limit : (R)INFINITY, offset = (R)a->offset;
    if (!activation_is_gated(a->kind))
        run(Plain<T>{a->kind});
    else if (a->kind == ACT_QUICK_GEGLU)
        run(Gated<ACT_QUICK_GELU, true, T>{limit, offset});
    else if (a->kind == ACT_GEGLU_TANH)
        run(Gated<ACT_GELU_TANH, false, T>{limit, offset});
    else if (a->kind == ACT_GEGLU_ERF)
        run(Gated<ACT_GELU_ERF, false, T>{limit, offset});
    else if (a->limit > 0 || a->offset != 0)
        run(Gated<ACT_SWIGLU, true, T>{limit, offset});
    else
        run(Gated<ACT_SWIGLU, false, T>{limit, offset});
}

/* The rows of y. Without a gate or a scale, all elements are one row. */
struct Shape {
    int64_t rows, f;
    bool whole; /* whether all rows begin at the start of a 16-byte vector if the operands do */
};

template <typename T> static Shape shape_of(const Call *c, const Tensor *y, const Cells &scale) {
    const int64_t f = tensor_width(y);
    if (activation_is_gated(((const ActivationAttr *)c->attr)->kind) || scale.data)
        return {tensor_rows(y), f, f % VEC<T> == 0};
    return {1, tensor_count(y), true};
}

template <typename T> static unsigned grid_of_runs(const Call *c, const Shape &s) {
    return grid_for(c, s.rows * ceil_div(s.f, VEC<T>), THREADS);
}

template <typename T> static void forward(const Call *c) {
    const T *x = data_of<T>(c->in[0]);
    T *y = data_of<T>(c->out[0]);
    const Cells scale = cells(c->in[1]);
    const Shape s = shape_of<T>(c, c->out[0], scale);
    const bool aligned = aligned_16(x) && aligned_16(y) && s.whole;
    with_activation<T>(c, [&](auto act) {
        launch_pdl(c, grid_of_runs<T>(c, s), THREADS, 0, activate<decltype(act), T>, act, x, scale, y, s.rows,
                   s.f, aligned);
    });
}

extern "C" void cuda_activation(const Call *c) {
    same_type(c->in[0], c->out[0]);
    if (tensor_count(c->out[0])) STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

template <typename T> static void backward(const Call *c) {
    const T *dy = data_of<T>(c->in[0]), *x = data_of<T>(c->in[1]);
    T *dx = data_of<T>(c->out[0]);
    const Cells scale = cells(c->in[2]), dscale = cells(c->out[1]);
    const Shape s = shape_of<T>(c, c->in[0], scale);
    const bool add = accumulates(c->out[0]), add_dscale = accumulates(c->out[1]),
               aligned = aligned_16(dy) && aligned_16(x) && aligned_16(dx) && s.whole;
    with_activation<T>(c, [&](auto act) {
        if (scale.data)
            launch_pdl(c, grid_for(c, s.rows, WARPS), THREADS, 0, scaled_grad<decltype(act), T>, act, dy, x,
                       scale, dx, dscale, s.rows, s.f, add, add_dscale, aligned);
        else
            launch_pdl(c, grid_of_runs<T>(c, s), THREADS, 0, activate_grad<decltype(act), T>, act, dy, x, dx,
                       s.rows, s.f, add, aligned);
    });
}

extern "C" void cuda_activation_grad(const Call *c) {
    same_type(c->in[0], c->in[1]);
    if (c->out[0]) same_type(c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, backward<T>(c));
}
