/* Computes the ops of kernels/cpu/xielu.c, which contains the formulas. A block computes the sums over a row
 * in a fixed order. y and the sums are written; dx is written or accumulated. */
#include <math.h>

#include "kernels/cuda/vectors.cuh"

enum { THREADS = 256 };

/* The tensors alpha_p, alpha_n, beta and eps. */
struct Numbers {
    Cells alpha_p, alpha_n, beta, eps;
};
static Numbers numbers_of(Tensor *const *in) {
    Numbers x = {cells(in[0]), cells(in[1]), cells(in[2]), cells(in[3])};
    return x;
}

template <typename R> struct Curve {
    R p, n, dp, dn, beta, eps; /* dp and dn are the derivatives of softplus */

    __device__ __forceinline__ explicit Curve(const Numbers &x) {
        const R a = x.alpha_p.get<R>(0), b = x.alpha_n.get<R>(0);
        beta = x.beta.get<R>(0), eps = x.eps.get<R>(0);
        p = softplus(a), n = beta + softplus(b);
        dp = softplus_slope(a), dn = softplus_slope(b);
    }
    /* Returns the factor by which n is multiplied in y. */
    __device__ __forceinline__ R tail(R x) const { return expm1(x < eps ? x : eps) - x; }
    __device__ __forceinline__ R value(R x) const { return beta * x + (x > 0 ? p * x * x : n * tail(x)); }
    __device__ __forceinline__ R slope(R x) const {
        return beta + (x > 0 ? 2 * p * x : n * (x < eps ? expm1(x) : (R)-1));
    }

  private:
    static __device__ __forceinline__ R softplus(R a) { return a > 20 ? a : log1p(exp(a)); }
    static __device__ __forceinline__ R softplus_slope(R a) { return a > 20 ? (R)1 : 1 / (1 + exp(-a)); }
};

template <typename T>
__global__ void __launch_bounds__(THREADS)
    curved(const T *x, T *y, int64_t n, Numbers numbers, bool aligned) {
    constexpr int N = VEC<T>;
    const Curve<Real<T>> curve(numbers);
    GRID_LOOP(i, (n + N - 1) / N) {
        Run<T, N> v = load_run<T, N>(x, i * N, n, aligned);
#pragma unroll
        for (int k = 0; k < N; k++) v.put(k, curve.value(v.get(k)));
        store_run(y, i * N, n, aligned, v);
    }
}

template <typename T> struct Gradient {
    const T *dy, *x;
    T *dx;          /* NULL if not needed */
    Real<T> *p, *n; /* a sum for each row; NULL if not needed */
    int64_t rows, f;
    bool add, aligned;
};

/* A block computes entire rows. Elements past the end of a row are treated as 0 and contribute 0 to the
 * sums. */
template <typename T> __global__ void __launch_bounds__(THREADS) curved_grad(Gradient<T> g, Numbers numbers) {
    typedef Real<T> R;
    constexpr int N = VEC<T>;
    __shared__ R room[32];
    const Curve<R> curve(numbers);
    for (int64_t row = blockIdx.x; row < g.rows; row += gridDim.x) {
        const T *dy = g.dy + row * g.f, *x = g.x + row * g.f;
        R sum_p = 0, sum_n = 0;
        for (int64_t i = (int64_t)threadIdx.x * N; i < g.f; i += THREADS * N) {
            const Run<T, N> d = load_run<T, N>(dy, i, g.f, g.aligned),
                            v = load_run<T, N>(x, i, g.f, g.aligned);
            Run<T, N> out;
            out.clear();
            if (g.dx && g.add) out = load_run<T, N>(g.dx + row * g.f, i, g.f, g.aligned);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const R a = d.get(k), b = v.get(k);
                if (b > 0)
                    sum_p += a * b * b;
                else
                    sum_n += a * curve.tail(b);
                out.put(k, out.get(k) + a * curve.slope(b));
            }
            if (g.dx) store_run(g.dx + row * g.f, i, g.f, g.aligned, out);
        }
        sum_p = block_sum(sum_p, room);
        sum_n = block_sum(sum_n, room);
        if (threadIdx.x) continue;
        if (g.p) g.p[row] = curve.dp * sum_p;
        if (g.n) g.n[row] = curve.dn * sum_n;
    }
}

template <typename T> static void forward(const Call *c) {
    const T *x = data_of<T>(c->in[0]);
    T *y = data_of<T>(c->out[0]);
    const int64_t n = tensor_count(c->in[0]);
    curved<T><<<grid_for(c, ceil_div(n, VEC<T>), THREADS), THREADS, 0, stream_of(c)>>>(
        x, y, n, numbers_of(&c->in[1]), aligned_16(x) && aligned_16(y));
    LAUNCHED();
}

extern "C" void cuda_xielu(const Call *c) {
    CHECK(c->in[0]->dtype == c->out[0]->dtype, "xielu: x is %s, but y is %s",
          dtype_name((DType)c->in[0]->dtype), dtype_name((DType)c->out[0]->dtype));
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

template <typename T> static Real<T> *sums_of(const Tensor *t) { return t ? data_of<Real<T>>(t) : NULL; }

template <typename T> static void backward(const Call *c) {
    const Tensor *dx = c->out[0];
    Gradient<T> g = {data_of<T>(c->in[0]), data_of<T>(c->in[1]), dx ? data_of<T>(dx) : NULL,
                     sums_of<T>(c->out[1]), sums_of<T>(c->out[2])};
    g.rows = tensor_rows(c->in[1]), g.f = tensor_width(c->in[1]);
    g.add = dx && accumulates(dx);
    g.aligned = g.f % VEC<T> == 0 && aligned_16(g.dy) && aligned_16(g.x) && aligned_16(g.dx);
    curved_grad<T>
        <<<grid_for(c, g.rows * THREADS, THREADS), THREADS, 0, stream_of(c)>>>(g, numbers_of(&c->in[2]));
    LAUNCHED();
}

extern "C" void cuda_xielu_grad(const Call *c) {
    CHECK(c->in[0]->dtype == c->in[1]->dtype && (!c->out[0] || c->in[1]->dtype == c->out[0]->dtype),
          "xielu_grad: dy is %s, but x is %s", dtype_name((DType)c->in[0]->dtype),
          dtype_name((DType)c->in[1]->dtype));
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, backward<T>(c));
}
