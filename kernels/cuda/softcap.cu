/* Computes the ops of kernels/cpu/softcap.c, which contains the formulas. y and dx are written. */
#include "kernels/cuda/vectors.cuh"

enum { THREADS = 256 };

template <typename T> __global__ void capped(const T *x, T *y, int64_t n, Real<T> cap, bool aligned) {
    constexpr int N = VEC<T>;
    GRID_LOOP(i, (n + N - 1) / N) {
        Run<T, N> v = load_run<T, N>(x, i * N, n, aligned);
#pragma unroll
        for (int k = 0; k < N; k++) v.put(k, cap * tanh(v.get(k) / cap));
        store_run(y, i * N, n, aligned, v);
    }
}

template <typename T>
__global__ void capped_grad(const T *dy, const T *x, T *dx, int64_t n, Real<T> cap, bool aligned) {
    constexpr int N = VEC<T>;
    GRID_LOOP(i, (n + N - 1) / N) {
        const Run<T, N> d = load_run<T, N>(dy, i * N, n, aligned);
        Run<T, N> v = load_run<T, N>(x, i * N, n, aligned);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const Real<T> t = tanh(v.get(k) / cap);
            v.put(k, d.get(k) * (1 - t * t));
        }
        store_run(dx, i * N, n, aligned, v);
    }
}

template <typename T> static void forward(const Call *c, double cap) {
    const T *x = data_of<T>(c->in[0]);
    T *y = data_of<T>(c->out[0]);
    const int64_t n = tensor_count(c->in[0]);
    capped<T><<<grid_for(c, ceil_div(n, VEC<T>), THREADS), THREADS, 0, stream_of(c)>>>(
        x, y, n, (Real<T>)cap, aligned_16(x) && aligned_16(y));
    LAUNCHED();
}

extern "C" void cuda_softcap(const Call *c) {
    CHECK(c->in[0]->dtype == c->out[0]->dtype, "softcap: x is %s, but y is %s",
          dtype_name((DType)c->in[0]->dtype), dtype_name((DType)c->out[0]->dtype));
    if (tensor_count(c->in[0]))
        STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c, ((const SoftcapAttr *)c->attr)->cap));
}

template <typename T> static void backward(const Call *c, double cap) {
    const T *dy = data_of<T>(c->in[0]), *x = data_of<T>(c->in[1]);
    T *dx = data_of<T>(c->out[0]);
    const int64_t n = tensor_count(c->in[0]);
    capped_grad<T><<<grid_for(c, ceil_div(n, VEC<T>), THREADS), THREADS, 0, stream_of(c)>>>(
        dy, x, dx, n, (Real<T>)cap, aligned_16(dy) && aligned_16(x) && aligned_16(dx));
    LAUNCHED();
}

extern "C" void cuda_softcap_grad(const Call *c) {
    CHECK(c->in[0]->dtype == c->in[1]->dtype && c->in[1]->dtype == c->out[0]->dtype,
          "softcap_grad: dy is %s, but x is %s", dtype_name((DType)c->in[0]->dtype),
          dtype_name((DType)c->in[1]->dtype));
    if (tensor_count(c->in[0]))
        STORAGE_SWITCH(c->in[0]->dtype, backward<T>(c, ((const SoftcapAttr *)c->attr)->cap));
}
