/* Computes the ops of kernels/cpu/quantized.c. Scales and casts are bitwise equal to the CPU's. If the
 * tensor-core kernels do not support a GEMM's types or sizes, the weight is first expanded to the type of x,
 * and the sums are scaled at the end. */
#include <cuda_fp8.h>

#include "kernels/cuda/gemm/gemm_plan.cuh"
#include "kernels/cuda/gemm/gemm_quantized.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vectors.cuh"
#include "kernels/row_scale.h"

enum { THREADS = 256, MANY_THREADS = 512 };

/* ---- rows ---- */

/* A block of SIZE threads processes one row. If RUNS is not 0, each thread keeps RUNS runs in registers, so
 * that the block reads the row only once. */
template <typename T, int SIZE, int RUNS> struct Row {
    static constexpr int N = VEC<T>;
    const T *x;
    int64_t n;
    bool aligned;
    Run<T, N> kept[RUNS ? RUNS : 1];

    __device__ __forceinline__ Row(const T *all, int64_t n, bool aligned)
        : x(all + blockIdx.x * n), n(n), aligned(aligned) {
#pragma unroll
        for (int i = 0; i < RUNS; i++)
            kept[i] = load_run<T, N>(x, ((int64_t)i * SIZE + threadIdx.x) * N, n, aligned);
    }
    /* Calls f for each run, with the index of the run's first element. */
    template <typename F> __device__ __forceinline__ void each(F f) const {
        if constexpr (RUNS > 0) {
#pragma unroll
            for (int i = 0; i < RUNS; i++) f(((int64_t)i * SIZE + threadIdx.x) * N, kept[i]);
        } else {
            for (int64_t i = (int64_t)threadIdx.x * N; i < n; i += SIZE * N)
                f(i, load_run<T, N>(x, i, n, aligned));
        }
    }
    /* Returns, in all threads, the largest |x|, or NaN if an element is not finite. */
    __device__ __forceinline__ Real<T> amax() const {
        typedef Real<T> R;
        __shared__ R room[32];
        R most = 0;
        each([&](int64_t, const Run<T, N> &r) {
#pragma unroll
            for (int k = 0; k < N; k++) most = larger((R)fabs(r.get(k)), most);
        });
        most = block_max(most, room);
        return most <= (sizeof(R) == 8 ? (R)DBL_MAX : (R)FLT_MAX) ? most : (R)NAN;
    }
    /* Casts the row if `finite` is true; otherwise writes zeros. */
    __device__ __forceinline__ void cast(float scale, bool finite, bool integers, uint8_t *all) const {
        uint8_t *q = all + blockIdx.x * n;
        each([&](int64_t i, const Run<T, N> &r) {
            Vec<uint8_t, N> out;
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float y = finite ? __fmul_rn((float)r.get(k), scale) : 0;
                out.v[k] = integers ? (uint8_t)(int8_t)rintf(fminf(fmaxf(y, -ROW_LARGEST_I8), ROW_LARGEST_I8))
                                    : __nv_cvt_float_to_fp8(y, __NV_SATFINITE, __NV_E4M3);
            }
            if (aligned && i < n) *(Vec<uint8_t, N> *)(q + i) = out;
#pragma unroll
            for (int k = 0; k < N && !aligned; k++)
                if (i + k < n) q[i + k] = out.v[k];
        });
    }
};

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    amax_rows(const T *x, int64_t n, bool aligned, Real<T> *out) {
    const Real<T> amax = Row<T, THREADS, 0>(x, n, aligned).amax();
    if (threadIdx.x == 0) out[blockIdx.x] = amax;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    cast_rows(const T *x, int64_t n, bool aligned, bool integers, uint8_t *q, Real<T> *inverse) {
    const float amax = (float)inverse[blockIdx.x], largest = integers ? ROW_LARGEST_I8 : ROW_LARGEST_E4M3;
    Row<T, THREADS, 0>(x, n, aligned).cast(row_scale(amax, largest), amax <= FLT_MAX, integers, q);
    __syncthreads();
    if (threadIdx.x == 0) inverse[blockIdx.x] = (Real<T>)row_inverse(amax, largest);
}

/* Rounds rows to FP8. amaxes: NULL, or the largest |x| of each row. The next kernel may start early, because
 * every kernel waits until the preceding kernel ends. */
template <typename T, int RUNS>
static __global__ void __launch_bounds__(MANY_THREADS)
    round_rows(const T *x, int64_t n, bool aligned, const Real<T> *amaxes, uint8_t *q, Real<T> *inverse) {
    allow_next_kernel();
    wait_for_kernel_before();
    const Row<T, MANY_THREADS, RUNS> row(x, n, aligned);
    const float amax = (float)(amaxes ? amaxes[blockIdx.x] : row.amax());
    row.cast(row_scale(amax, ROW_LARGEST_E4M3), amax <= FLT_MAX, false, q);
    if (threadIdx.x == 0) inverse[blockIdx.x] = (Real<T>)row_inverse(amax, ROW_LARGEST_E4M3);
}

/* Returns true if all rows of x and q can be accessed in vectors. */
static bool are_aligned(const Tensor *x, const void *q) {
    return tensor_width(x) % 16 == 0 && aligned_16(x->data) && aligned_16(q);
}

static void check_precise(const Call *c, const Tensor *t) {
    CHECK(t->dtype == (lead_type(c) == F64 ? F64 : F32), "%s: a factor is %s", "quantized",
          dtype_name((DType)t->dtype));
}

extern "C" void cuda_row_amax(const Call *c) {
    const Tensor *x = c->in[0], *out = c->out[0];
    const int64_t rows = tensor_rows(x), n = tensor_width(x);
    check_precise(c, out);
    if (!rows) return;
    STORAGE_SWITCH(x->dtype, amax_rows<T><<<(unsigned)rows, THREADS, 0, stream_of(c)>>>(
                                 data_of<T>(x), n, are_aligned(x, NULL), data_of<Real<T>>(out)));
    LAUNCHED();
}

extern "C" void cuda_row_cast(const Call *c) {
    const Tensor *x = c->in[0], *q = c->out[0], *inverse = c->out[1];
    const int64_t rows = tensor_rows(x), n = tensor_width(x);
    check_precise(c, inverse);
    if (!rows) return;
    STORAGE_SWITCH(x->dtype, cast_rows<T><<<(unsigned)rows, THREADS, 0, stream_of(c)>>>(
                                 data_of<T>(x), n, are_aligned(x, q->data), q->dtype == I8,
                                 data_of<uint8_t>(q), data_of<Real<T>>(inverse)));
    LAUNCHED();
}

/* ---- GEMMs ---- */

/* Converts one-byte numbers to type T, with N numbers per thread. */
template <typename T, int N>
static __global__ void expand(const uint8_t *q, bool integers, int64_t n, T *out) {
    constexpr int V = N < VEC<T> ? N : VEC<T>;
    GRID_LOOP(i, n / N) {
        const Vec<uint8_t, N> from = ((const Vec<uint8_t, N> *)q)[i];
#pragma unroll
        for (int first = 0; first < N; first += V) {
            Vec<T, V> to;
#pragma unroll
            for (int k = 0; k < V; k++) {
                const uint8_t x = from.v[first + k];
                to.v[k] =
                    from_real<T>(integers ? (float)(int8_t)x
                                          : __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3))));
            }
            ((Vec<T, V> *)out)[(i * N + first) / V] = to;
        }
    }
}

template <typename R>
static __global__ void finish(const R *sums, int64_t m, int64_t n, const R *of_row, const R *of_column,
                              Cells bias, Cells y) {
    GRID_LOOP(i, m * n) {
        const R sum = (of_row ? sums[i] * of_row[i / n] : sums[i]) * of_column[i % n];
        y.put(i, bias.data ? sum + bias.get<R>(i % n) : sum);
    }
}

static bool has_many_rows(const Call *c) {
    enum { MANY_ROWS = 256 };
    return c->in[1]->dtype == I8 && tensor_rows(c->in[0]) > MANY_ROWS;
}

/* The parts of the scratch memory. q, inverse: x as FP8 numbers, and the factors 1 / scale. w: the weight in
 * the type of x, if there are many rows. Without a tensor-core kernel, the scratch memory also contains x and
 * w in the type of x, and the sums. */
typedef struct Parts {
    size_t q, inverse, x, w, sums, end;
} Parts;

static size_t add_part(Parts *p, size_t bytes) {
    const size_t at = p->end;
    p->end += (bytes + 255) / 256 * 256;
    return at;
}

static Parts parts_of(const Call *c, bool fits) {
    const Tensor *x = c->in[0], *w = c->in[1];
    const size_t m = (size_t)tensor_rows(x), n = (size_t)w->dim[0], k = (size_t)w->dim[1],
                 size = dtype_size((DType)x->dtype),
                 precise = x->dtype == F64 ? sizeof(double) : sizeof(float);
    const bool rounds = w->dtype == F8E4M3;
    Parts p = {};
    p.q = add_part(&p, rounds ? m * k : 0);
    p.inverse = add_part(&p, rounds ? m * precise : 0);
    p.x = add_part(&p, rounds && !fits ? m * k * size : 0);
    p.w = add_part(&p, !fits || has_many_rows(c) ? n * k * size : 0);
    p.sums = add_part(&p, !fits ? m * n * precise : 0);
    return p;
}

static QuantizedGemm quantized_gemm_of(const Call *c) {
    const Tensor *x = c->in[0], *w = c->in[1];
    QuantizedGemm g = {};
    g.m = tensor_rows(x), g.n = w->dim[0], g.k = w->dim[1];
    g.x = x, g.w = w, g.bias = c->in[2], g.y = c->out[0];
    g.of_column = data_of<float>(c->in[3]);
    g.steady = ((const LinearAttr *)c->attr)->steady;
    return g;
}

static Gemm expanded_gemm(const Call *c, Tensor *x, Tensor *w, Tensor *sums) {
    const QuantizedGemm q = quantized_gemm_of(c);
    Gemm g = {};
    *x = *q.x, *w = *q.w, *sums = *q.y;
    w->dtype = x->dtype, sums->dtype = x->dtype == F64 ? F64 : F32;
    g.op = "linear_quantized";
    g.transpose_b = true;
    g.fixed_order = ((const LinearAttr *)c->attr)->fixed_order;
    g.m = q.m, g.n = q.n, g.k = q.k;
    g.a = x, g.b = w, g.c = sums;
    return g;
}

template <typename T, int RUNS> static void launch_round(const Call *c, uint8_t *q, void *inverse) {
    const Tensor *x = c->in[0], *amaxes = c->in[4];
    launch_pdl(c, dim3((unsigned)tensor_rows(x)), dim3(MANY_THREADS), 0, round_rows<T, RUNS>,
               (const T *)data_of<T>(x), tensor_width(x), are_aligned(x, q),
               (const Real<T> *)data_of<Real<T>>(amaxes), q, (Real<T> *)inverse);
}

template <typename T> static void round_x(const Call *c, uint8_t *q, void *inverse) {
    const int64_t runs = ceil_div(tensor_width(c->in[0]), MANY_THREADS * VEC<T>);
    if (runs <= 1)
        launch_round<T, 1>(c, q, inverse);
    else if (runs <= 2)
        launch_round<T, 2>(c, q, inverse);
    else if (runs <= 4)
        launch_round<T, 4>(c, q, inverse);
    else
        launch_round<T, 0>(c, q, inverse);
}

static void expand_to(const Call *c, DType type, const void *q, bool integers, int64_t n, void *out) {
    enum { N = 16 };
    const unsigned blocks = grid_for(c, n, N * 256);
    const uint8_t *from = (const uint8_t *)q;
    if (n % N == 0 && aligned_16(q))
        STORAGE_SWITCH(type, expand<T, N><<<blocks, 256, 0, stream_of(c)>>>(from, integers, n, (T *)out));
    else
        STORAGE_SWITCH(type, expand<T, 1><<<blocks, 256, 0, stream_of(c)>>>(from, integers, n, (T *)out));
    LAUNCHED();
}

/* Converts an integer weight, then multiplies the rows by it. For many rows, the conversion takes only a small
 * part of the time. */
static void run_many_rows(const Call *c, char *scratch, const Parts &p) {
    Tensor x, w, sums;
    Gemm g = expanded_gemm(c, &x, &w, &sums);
    w.data = scratch + p.w;
    g.bias = c->in[2], g.c = c->out[0], g.of_column = data_of<float>(c->in[3]);
    expand_to(c, (DType)w.dtype, c->in[1]->data, true, g.n * g.k, w.data);
    gemm_invariant(c, &g);
}

static void run_expanded(const Call *c, char *scratch, const Parts &p) {
    Tensor x, w, sums;
    const Gemm g = expanded_gemm(c, &x, &w, &sums);
    const bool rounds = c->in[1]->dtype == F8E4M3;
    const void *of_row = rounds ? scratch + p.inverse : NULL;
    if (rounds) {
        x.data = scratch + p.x;
        expand_to(c, (DType)x.dtype, scratch + p.q, false, g.m * g.k, x.data);
    }
    w.data = scratch + p.w, sums.data = scratch + p.sums;
    expand_to(c, (DType)w.dtype, c->in[1]->data, !rounds, g.n * g.k, w.data);
    gemm_run(c, &g);
    REAL_SWITCH(x.dtype, finish<R><<<grid_for(c, g.m * g.n, 256), 256, 0, stream_of(c)>>>(
                             (const R *)sums.data, g.m, g.n, (const R *)of_row, data_of<R>(c->in[3]),
                             cells(c->in[2]), cells(c->out[0])));
    LAUNCHED();
}

/* Returns true if the tensor-core kernel can run. Scratch memory is always aligned. */
static bool can(const Call *c) {
    const QuantizedGemm g = quantized_gemm_of(c);
    return gemm_quantized_can(c, &g);
}

extern "C" size_t cuda_plans_linear_quantized(const Call *c) {
    const bool fits = can(c);
    if (!fits) {
        Tensor x, w, sums;
        const Gemm g = expanded_gemm(c, &x, &w, &sums);
        x.data = w.data = sums.data = NULL;
        gemm_plan(c, &g);
    }
    return parts_of(c, fits).end;
}

extern "C" void cuda_linear_quantized(const Call *c) {
    QuantizedGemm g = quantized_gemm_of(c);
    const bool fits = can(c), rounds = g.w->dtype == F8E4M3;
    const Parts p = parts_of(c, fits);
    char *scratch = p.end ? (char *)cuda_scratch(c->device, p.end) : NULL;
    Tensor q;
    if (!g.m || !g.n) return;
    check_precise(c, c->in[3]);
    if (rounds) STORAGE_SWITCH(g.x->dtype, round_x<T>(c, (uint8_t *)scratch + p.q, scratch + p.inverse));
    if (!fits) {
        run_expanded(c, scratch, p);
    } else if (has_many_rows(c)) {
        run_many_rows(c, scratch, p);
    } else {
        if (rounds) {
            q = *g.x, q.dtype = F8E4M3, q.data = scratch + p.q;
            g.x = &q, g.of_row = (const float *)(scratch + p.inverse);
        }
        gemm_quantized(c, &g);
    }
    gemm_activate(c, c->out[0], c->out[1], ((const LinearAttr *)c->attr)->activation);
}
