/* Computes the ops of kernels/cpu/linear.c: y = x w^T + bias over the last dimension, and its gradients dx =
 * dy w (or the gradient of pre), dw = dy^T x, dbias = sum of dy. The op `bias` computes y = x + bias. y and
 * act are written; dx (without pre), dw and dbias are written or accumulated. dbias is summed in two stages:
 * over chunks of rows, then over the chunks in order. With fixed_order and without by_chunks, dbias is summed as
 * on the CPU. */
#include "kernels/cuda/gemm/gemm.cuh"
extern "C" {
#include "kernels/cuda/gemm/linear_algos.h"
#include "kernels/ops.h"
}

#include <algorithm>

/* A block has 32 x 8 threads: 32 columns of vectors (of N elements each) in 8 rows. */
enum { LANES = 32, LINES = 8, THREADS = LANES * LINES };

static bool fixed_order(const Call *c) { return ((const LinearAttr *)c->attr)->fixed_order; }

/* ---- GEMMs ---- */

static Gemm forward(const Call *c) {
    const Tensor *x = c->in[0], *w = c->in[1];
    Gemm g = {};
    g.op = "linear";
    g.transpose_b = true;
    g.fixed_order = fixed_order(c);
    g.steady = ((const LinearAttr *)c->attr)->steady;
    g.m = tensor_rows(x), g.n = w->dim[0], g.k = w->dim[1];
    g.a = x, g.b = w, g.bias = c->in[2], g.c = c->out[0];
    g.act = c->out[1], g.activation = ((const LinearAttr *)c->attr)->activation;
    return g;
}

static Gemm dgrad(const Call *c) {
    const Tensor *dy = c->in[0], *w = c->in[1];
    Gemm g = {};
    CHECK(!c->in[2] || !accumulates(c->out[0]), "linear_dgrad: the gradient of pre cannot be accumulated");
    g.op = "linear_dgrad";
    g.fixed_order = fixed_order(c);
    g.m = tensor_rows(dy), g.n = w->dim[1], g.k = w->dim[0];
    g.a = dy, g.b = w, g.pre = c->in[2], g.c = c->out[0];
    g.activation = ((const LinearAttr *)c->attr)->activation;
    return g;
}

static Gemm wgrad(const Call *c) {
    const Tensor *dy = c->in[0], *x = c->in[1];
    Gemm g = {};
    g.op = "linear_wgrad";
    g.transpose_a = true;
    g.fixed_order = fixed_order(c), g.by_chunks = ((const LinearAttr *)c->attr)->by_chunks;
    g.m = tensor_width(dy), g.n = tensor_width(x), g.k = tensor_rows(dy);
    g.a = dy, g.b = x, g.c = c->out[0], g.dbias = c->out[1];
    return g;
}

extern "C" void cuda_activation(const Call *);
extern "C" void cuda_activation_grad(const Call *);

static void run_activation(KernelFn *kernel, const Call *c, Tensor *x, Tensor *pre, Tensor *out,
                           Activation activation) {
    const ActivationAttr attr = {activation};
    Call call = {};
    call.in[0] = x, call.in[1] = pre, call.out[0] = out, call.attr = &attr, call.device = c->device;
    kernel(&call);
}

void gemm_activate(const Call *c, Tensor *y, Tensor *act, Activation activation) {
    if (act) run_activation(cuda_activation, c, y, NULL, act, activation);
}

void gemm_through_activation(const Call *c, Tensor *dx, Tensor *pre, Activation activation) {
    if (pre) run_activation(cuda_activation_grad, c, dx, pre, dx, activation);
}

static void run(const Call *c, const Gemm &g) { gemm_run(c, &g); }
static size_t plan(const Call *c, const Gemm &g) { return gemm_plan(c, &g); }

extern "C" void cuda_linear(const Call *c) { run(c, forward(c)); }
extern "C" size_t cuda_plans_linear(const Call *c) { return plan(c, forward(c)); }

extern "C" void cuda_linear_dgrad(const Call *c) { run(c, dgrad(c)); }
extern "C" size_t cuda_plans_linear_dgrad(const Call *c) { return plan(c, dgrad(c)); }

/* ---- dbias ---- */

/* Sums columns over one chunk: `each` rows, beginning at row each * blockIdx.y. The sums are written to `out`
 * if there is only one chunk, otherwise to row blockIdx.y of `partial`. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    sum_rows(const T *dy, int64_t rows, int64_t n, int64_t each, Real<T> *partial, Cells out, bool add) {
    typedef Real<T> R;
    __shared__ R room[LINES][LANES * N];
    const int lane = threadIdx.x % LANES, line = threadIdx.x / LANES;
    const int64_t first = (int64_t)blockIdx.x * LANES * N, column = first + lane * N,
                  begin = blockIdx.y * each, end = begin + each < rows ? begin + each : rows;
    R sum[N] = {};
    if (column < n) {
#pragma unroll 4
        for (int64_t r = begin + line; r < end; r += LINES) {
            const Vec<T, N> x = *(const Vec<T, N> *)(dy + r * n + column);
#pragma unroll
            for (int k = 0; k < N; k++) sum[k] += to_real<R>(x.v[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) room[line][lane * N + k] = sum[k];
    __syncthreads();
    for (int i = threadIdx.x; i < LANES * N && first + i < n; i += THREADS) {
        R all = 0;
#pragma unroll
        for (int k = 0; k < LINES; k++) all += room[k][i];
        if (gridDim.y == 1)
            out.put_or_add(first + i, all, add);
        else
            partial[blockIdx.y * n + first + i] = all;
    }
}

template <typename R>
static __global__ void sum_partial(const R *partial, int64_t chunks, int64_t n, Cells out, bool add) {
    GRID_LOOP(i, n) {
        R all = 0;
#pragma unroll 8
        for (int64_t k = 0; k < chunks; k++) all += partial[k * n + i];
        out.put_or_add(i, all, add);
    }
}

/* For each sample, sums over the positions in order, then adds this sum to the total of the preceding
 * samples. */
template <typename R>
static __global__ void sum_samples(Cells dy, int64_t s, int64_t b, int64_t n, Cells out, bool add) {
    GRID_LOOP(i, n) {
        R all = add ? out.get<R>(i) : (R)0;
        for (int64_t sample = 0; sample < b; sample++) {
            R sum = 0;
            for (int64_t p = 0; p < s; p++) sum += dy.get<R>((p * b + sample) * n + i);
            all += sum;
        }
        out.put(i, all);
    }
}

/* Returns the number of chunks. If there are many rows, the number of chunks is large enough to keep a GPU
 * busy, but small enough for a single second stage that sums the chunks. */
static int64_t chunks_of(int64_t rows, int64_t n, int vector) {
    const int64_t wide = ceil_div(n, LANES * vector);
    return std::max<int64_t>(1, std::min({ceil_div(1024, wide), ceil_div(rows, 8 * LINES), (int64_t)128}));
}

static int vector_of(const Tensor *dy) {
    const int n = 16 / (int)dtype_size((DType)dy->dtype);
    return tensor_width(dy) % n == 0 && aligned_16(dy->data) ? n : 1;
}

template <typename R>
static void launch_sum(const Call *c, const R *partial, int64_t chunks, int64_t n, const Tensor *out) {
    sum_partial<<<grid_for(c, n, 128), 128, 0, stream_of(c)>>>(partial, chunks, n, cells(out),
                                                               accumulates(out));
    LAUNCHED();
}

void sum_chunks(const Call *c, const float *partial, int64_t chunks, int64_t n, const Tensor *out) {
    launch_sum(c, partial, chunks, n, out);
}

template <typename T, int N> static void sum_columns(const Call *c, const Tensor *dy, const Tensor *dbias) {
    typedef Real<T> R;
    const int64_t rows = tensor_rows(dy), n = tensor_width(dy), chunks = chunks_of(rows, n, N);
    R *partial = chunks > 1 ? (R *)cuda_scratch(c->device, (size_t)(chunks * n) * sizeof(R)) : NULL;
    const dim3 grid((unsigned)ceil_div(n, LANES * N), (unsigned)chunks);
    sum_rows<T, N><<<grid, THREADS, 0, stream_of(c)>>>(data_of<T>(dy), rows, n, ceil_div(rows, chunks),
                                                       partial, cells(dbias), accumulates(dbias));
    LAUNCHED();
    if (chunks > 1) launch_sum(c, partial, chunks, n, dbias);
}

void bias_gradient(const Call *c, const Tensor *dy, const Tensor *dbias, bool fixed_order) {
    const int64_t n = tensor_width(dy);
    if (!n) return;
    if (fixed_order) {
        REAL_SWITCH(dy->dtype, sum_samples<R><<<grid_for(c, n, 32), 32, 0, stream_of(c)>>>(
                                   cells(dy), dy->dim[0], dy->dim[1], n, cells(dbias), accumulates(dbias)));
        LAUNCHED();
    } else if (vector_of(dy) > 1) {
        STORAGE_SWITCH(dy->dtype, sum_columns<T, VEC<T>>(c, dy, dbias));
    } else {
        STORAGE_SWITCH(dy->dtype, sum_columns<T, 1>(c, dy, dbias));
    }
}

size_t bias_gradient_scratch(const Tensor *dy, bool fixed_order) {
    const int64_t n = tensor_width(dy);
    if (!n || fixed_order) return 0;
    const int64_t chunks = chunks_of(tensor_rows(dy), n, vector_of(dy));
    return chunks > 1 ? (size_t)(chunks * n) * (dy->dtype == F64 ? sizeof(double) : sizeof(float)) : 0;
}

static bool in_order(const Gemm &g) { return g.fixed_order && !g.by_chunks; }

/* dw is NULL if the weight is not trained. */
extern "C" void cuda_linear_wgrad(const Call *c) {
    if (c->out[0])
        run(c, wgrad(c));
    else if (c->out[1])
        bias_gradient(c, c->in[0], c->out[1], in_order(wgrad(c)));
}

extern "C" size_t cuda_plans_linear_wgrad(const Call *c) {
    if (c->out[0]) return plan(c, wgrad(c));
    return c->out[1] ? bias_gradient_scratch(c->in[0], in_order(wgrad(c))) : 0;
}

/* ---- algorithms ---- */

extern "C" int linear_take_algo(const OpDef *op, const Call *c, int n) {
    const Gemm g = op->number == OP_linear ? forward(c) : op->number == OP_linear_dgrad ? dgrad(c) : wgrad(c);
    return gemm_take_algo(c, &g, n);
}

/* ---- bias ---- */

/* Each thread processes the same columns in every gridDim.y * LINES-th row. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    add_bias(const T *x, const T *bias, T *y, int64_t rows, int64_t n) {
    typedef Real<T> R;
    const int64_t column = ((int64_t)blockIdx.x * LANES + threadIdx.x % LANES) * N;
    if (column >= n) return;
    const Vec<T, N> b = *(const Vec<T, N> *)(bias + column);
    for (int64_t r = (int64_t)blockIdx.y * LINES + threadIdx.x / LANES; r < rows;
         r += (int64_t)gridDim.y * LINES) {
        Vec<T, N> sum = b;
        if (x) {
            const Vec<T, N> v = *(const Vec<T, N> *)(x + r * n + column);
#pragma unroll
            for (int k = 0; k < N; k++) sum.v[k] = from_real<T>(to_real<R>(v.v[k]) + to_real<R>(b.v[k]));
        }
        *(Vec<T, N> *)(y + r * n + column) = sum;
    }
}

template <typename T, int N>
static void launch_bias(cudaStream_t stream, const T *x, const T *bias, T *y, int64_t rows, int64_t n) {
    const int64_t wide = ceil_div(n, LANES * N), most = std::max<int64_t>(1, 4096 / wide);
    const dim3 grid((unsigned)wide, (unsigned)std::min(ceil_div(rows, LINES), most));
    add_bias<T, N><<<grid, THREADS, 0, stream>>>(x, bias, y, rows, n);
    LAUNCHED();
}

void rows_plus_bias(cudaStream_t stream, DType dtype, const void *x, const void *bias, void *y, int64_t rows,
                    int64_t n) {
    if (!rows || !n) return;
    STORAGE_SWITCH(dtype, if (n % VEC<T> == 0 && aligned_16(x) && aligned_16(bias) && aligned_16(y))
                              launch_bias<T, VEC<T>>(stream, (const T *)x, (const T *)bias, (T *)y, rows, n);
                   else launch_bias<T, 1>(stream, (const T *)x, (const T *)bias, (T *)y, rows, n));
}

extern "C" void cuda_bias(const Call *c) {
    const Tensor *x = c->in[0], *bias = c->in[1], *y = c->out[0];
    CHECK(x->dtype == y->dtype && bias->dtype == y->dtype,
          "bias: x is %s, the bias is %s, and the output is %s", dtype_name((DType)x->dtype),
          dtype_name((DType)bias->dtype), dtype_name((DType)y->dtype));
    rows_plus_bias(stream_of(c), (DType)y->dtype, x->data, bias->data, y->data, tensor_rows(x),
                   tensor_width(x));
}
