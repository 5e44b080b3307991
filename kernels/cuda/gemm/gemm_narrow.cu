/* Computes linear layers with few outputs, such as routers, in F32: y = x w^T + bias, dx = dy w and dw = dy^T x. An element
 * of y or dx is one chain of multiply-adds, as in gemm_ordered. For dw, the sums of chunks of rows are added in order. */
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/mma.cuh"

/* For dw and dx, a block computes V adjacent columns per thread, and processes STEP or ROWS rows of dy at a time. For
 * y, a block computes LINES rows, and reads slices of SLICE bytes per row. The largest number of outputs is FEW for y,
 * and MOST for dx and dw. */
enum { V = 4, THREADS = 128, STEP = 32, ROWS = 8, SLICE = 128, LINES = 64, STAGES = 3, FEW = 16, MOST = 512 };
enum { MOST_BYTES = 32 << 20 /* of scratch memory for chunks */ };

/* Slices of x and w in shared memory. A line has SLICE bytes of x or the same terms of w, and is padded so that threads
 * read different banks. */
template <typename X, typename W, int COUNT> struct Slice {
    enum {
        TERMS = SLICE / (int)sizeof(X),
        X_LINE = SLICE + 16,
        W_LINE = TERMS * (int)sizeof(W),
        W_AT = LINES * X_LINE,
        BYTES = W_AT + COUNT * W_LINE
    };
};

/* Computes y [rows,m] for LINES rows. COUNT is m or larger. A thread computes PART outputs of one row. */
template <typename X, typename W, int COUNT>
static __global__ void __launch_bounds__(2 * LINES)
    y_of_rows(const X *x, const W *w, Cells bias, float *y, int64_t rows, int m, int64_t n) {
    typedef Slice<X, W, COUNT> S;
    enum { PART = COUNT / 2, WIDE = VEC<X>, X_PIECES = SLICE / 16, W_PIECES = S::W_LINE / 16 };
    extern __shared__ char memory[];
    const int64_t first = (int64_t)blockIdx.x * LINES, slices = (n + S::TERMS - 1) / S::TERMS;
    const auto load = [&](int64_t slice) {
        char *const to = memory + slice % STAGES * S::BYTES;
        for (int i = threadIdx.x; slice < slices && i < LINES * X_PIECES; i += 2 * LINES) {
            const int64_t row = first + i / X_PIECES, p = slice * S::TERMS + i % X_PIECES * WIDE;
            const bool there = row < rows && p < n;
            copy_async<16>(shared_address(to + i / X_PIECES * S::X_LINE + i % X_PIECES * 16),
                           x + (there ? row * n + p : 0), there);
        }
        for (int i = threadIdx.x; slice < slices && i < COUNT * W_PIECES; i += 2 * LINES) {
            const int64_t output = i / W_PIECES, p = slice * S::TERMS + i % W_PIECES * VEC<W>;
            const bool there = output < m && p < n;
            copy_async<16>(shared_address(to + S::W_AT + i * 16), w + (there ? output * n + p : 0), there);
        }
        copies_begun();
    };
    const int line = threadIdx.x % LINES, output = threadIdx.x / LINES * PART;
    float sum[PART] = {};
    for (int i = 0; i < STAGES - 1; i++) load(i);
    for (int64_t slice = 0; slice < slices; slice++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        load(slice + STAGES - 1);
        const char *const from = memory + slice % STAGES * S::BYTES, *const of_x = from + line * S::X_LINE,
                          *const of_w = from + S::W_AT + output * S::W_LINE;
#pragma unroll
        for (int piece = 0; piece < X_PIECES; piece++) {
            const auto v = *(const Vec<X, WIDE> *)(of_x + piece * 16);
            Vec<W, WIDE> u[PART];
#pragma unroll
            for (int i = 0; i < PART; i++)
                u[i] = *(const Vec<W, WIDE> *)(of_w + i * S::W_LINE + piece * WIDE * sizeof(W));
#pragma unroll
            for (int k = 0; k < WIDE; k++)
#pragma unroll
                for (int i = 0; i < PART; i++)
                    sum[i] = fma(to_real<float>(v.v[k]), to_real<float>(u[i].v[k]), sum[i]);
        }
    }
    if (first + line >= rows) return;
#pragma unroll
    for (int i = 0; i < PART; i++)
        if (output + i < m)
            y[(first + line) * m + output + i] = bias.data ? sum[i] + bias.get<float>(output + i) : sum[i];
}

/* Sums the products of a chunk for COUNT rows of dw [m,n]. Chunk blockIdx.y consists of `each` rows of x and dy. The
 * sums are written to `partial` [gridDim.y,m,n], or to dw if there is one chunk. */
template <typename T, int COUNT>
static __global__ void __launch_bounds__(THREADS)
    dw_of_chunk(const float *dy, const T *x, float *partial, Cells dw, bool add, int64_t rows, int64_t m,
                int64_t n, int64_t each) {
    __shared__ alignas(16) float of[STEP][COUNT];
    const int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V,
                  output = (int64_t)blockIdx.z * COUNT, begin = each * blockIdx.y,
                  end = least(rows, begin + each);
    float sum[COUNT][V] = {};
    for (int64_t first = begin; first < end; first += STEP) {
        __syncthreads();
        for (int i = threadIdx.x; i < STEP * COUNT; i += THREADS) {
            const int64_t row = first + i / COUNT, at = output + i % COUNT;
            of[i / COUNT][i % COUNT] = row < end && at < m ? dy[row * m + at] : 0;
        }
        __syncthreads();
        if (column >= n) continue;
#pragma unroll 8
        for (int r = 0; r < least(STEP, end - first); r++) {
            const Vec<T, V> v = *(const Vec<T, V> *)(x + (first + r) * n + column);
#pragma unroll
            for (int p = 0; p < COUNT; p++)
#pragma unroll
                for (int i = 0; i < V; i++) sum[p][i] = fma(of[r][p], to_real<float>(v.v[i]), sum[p][i]);
        }
    }
    if (column >= n) return;
#pragma unroll
    for (int p = 0; p < COUNT; p++)
#pragma unroll
        for (int i = 0; i < V; i++) {
            const int64_t at = (output + p) * n + column + i;
            if (output + p >= m) continue;
            if (partial)
                partial[blockIdx.y * m * n + at] = sum[p][i];
            else
                dw.put_or_add(at, sum[p][i], add);
        }
}

/* Computes V columns of ROWS rows of dx [rows,n]. */
template <typename W, typename Y>
static __global__ void __launch_bounds__(THREADS)
    dx_of_rows(const float *dy, const W *w, Y *dx, bool add, int64_t rows, int m, int64_t n) {
    __shared__ float of[ROWS][MOST];
    const int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * V,
                  first = (int64_t)blockIdx.x * ROWS;
    const int count = (int)least(ROWS, rows - first);
    for (int i = threadIdx.x; i < count * m; i += THREADS) of[i / m][i % m] = dy[first * m + i];
    Vec<Y, V> old[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (add && r < count && column < n) old[r] = *(const Vec<Y, V> *)(dx + (first + r) * n + column);
    __syncthreads();
    if (column >= n) return;
    float sum[ROWS][V] = {};
#pragma unroll 4
    for (int p = 0; p < m; p++) {
        const Vec<W, V> v = *(const Vec<W, V> *)(w + p * n + column);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < V; i++) sum[r][i] = fma(of[r][p], to_real<float>(v.v[i]), sum[r][i]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= count) continue;
        Vec<Y, V> v;
#pragma unroll
        for (int i = 0; i < V; i++)
            v.v[i] = from_real<Y>((add ? to_real<float>(old[r].v[i]) : 0) + sum[r][i]);
        *(Vec<Y, V> *)(dx + (first + r) * n + column) = v;
    }
}

/* Computes dx [rows,n] for EACH rows and N columns per thread. m is at most COUNT. */
template <typename W, typename Y, int COUNT>
static __global__ void __launch_bounds__(THREADS)
    dx_of_few(const float *dy, const W *w, Y *dx, bool add, int64_t rows, int m, int64_t n) {
    enum { N = VEC<Y>, EACH = 32 };
    __shared__ alignas(16) float of[EACH][COUNT];
    const int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * N,
                  first = (int64_t)blockIdx.x * EACH;
    const int count = (int)least(EACH, rows - first);
    for (int i = threadIdx.x; i < EACH * COUNT; i += THREADS)
        of[i / COUNT][i % COUNT] =
            i / COUNT < count && i % COUNT < m ? dy[(first + i / COUNT) * m + i % COUNT] : 0;
    float weight[COUNT][N];
#pragma unroll
    for (int p = 0; p < COUNT; p++)
#pragma unroll
        for (int i = 0; i < N; i++)
            weight[p][i] = p < m && column < n ? to_real<float>(w[p * n + column + i]) : 0;
    __syncthreads();
    if (column >= n) return;
#pragma unroll 1
    for (int r = 0; r < count; r += ROWS) {
        Vec<Y, N> *const to = (Vec<Y, N> *)(dx + (first + r) * n + column);
        const int64_t next = n / N;
        Vec<Y, N> v[ROWS] = {};
#pragma unroll
        for (int q = 0; q < ROWS; q++)
            if (add && r + q < count) v[q] = to[q * next];
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            float sum[N] = {};
#pragma unroll
            for (int p = 0; p < COUNT; p++)
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] = fma(of[r + q][p], weight[p][i], sum[i]);
#pragma unroll
            for (int i = 0; i < N; i++)
                v[q].v[i] = from_real<Y>((add ? to_real<float>(v[q].v[i]) : 0) + sum[i]);
            if (r + q < count) to[q * next] = v[q];
        }
    }
}

/* ---- launches ---- */

static bool is_vectors(const Tensor *x, int64_t wide) {
    return (x->dtype == F32 || dtype_is_16bit((DType)x->dtype)) && tensor_width(x) % wide == 0 &&
           aligned_16(x->data);
}

static bool is_dw(const Gemm *g) { return g->transpose_a && !g->transpose_b; }
static bool is_y(const Gemm *g) { return !g->transpose_a && g->transpose_b; }

bool gemm_is_narrow(const Gemm *g) {
    if (!g->m || !g->n || !g->k || !g->fixed_order || g->pre || g->act) return false;
    if (is_y(g))
        return g->n <= FEW && g->c->dtype == F32 && !accumulates(g->c) && is_vectors(g->a, 8) &&
               is_vectors(g->b, 8);
    if (g->a->dtype != F32 || !is_vectors(g->b, V)) return false;
    return is_dw(g) ? g->by_chunks && g->m <= MOST : g->k <= MOST && is_vectors(g->c, V);
}

/* Returns the number of rows of a chunk. With one chunk, no scratch memory is needed. */
static int64_t chunk_rows(const Gemm *g) {
    const int64_t bytes = g->m * g->n * (int64_t)sizeof(float),
                  chunks = least(ceil_div(g->k, 256), MOST_BYTES / bytes);
    return chunks > 1 ? ceil_div(g->k, chunks) : g->k;
}

size_t gemm_narrow_scratch(const Gemm *g) {
    const int64_t chunks = is_dw(g) ? ceil_div(g->k, chunk_rows(g)) : 1;
    return chunks > 1 ? (size_t)(chunks * g->m * g->n) * sizeof(float) : 0;
}

template <typename T, int COUNT> static void launch_dw(const Call *c, const Gemm *g) {
    const int64_t each = chunk_rows(g), chunks = ceil_div(g->k, each);
    float *partial = chunks > 1 ? (float *)cuda_scratch(c->device, gemm_narrow_scratch(g)) : NULL;
    const dim3 grid((unsigned)ceil_div(g->n, THREADS * V), (unsigned)chunks, (unsigned)ceil_div(g->m, COUNT));
    dw_of_chunk<T, COUNT><<<grid, THREADS, 0, stream_of(c)>>>(data_of<float>(g->a), data_of<T>(g->b), partial,
                                                              cells(g->c), accumulates(g->c), g->k, g->m,
                                                              g->n, each);
    LAUNCHED();
    if (partial) sum_chunks(c, partial, chunks, g->m * g->n, g->c);
}

template <typename W, typename Y> static void launch_dx(const Call *c, const Gemm *g) {
    const bool few = g->k <= FEW / 2 && g->n % VEC<Y> == 0;
    const dim3 grid((unsigned)ceil_div(g->m, few ? 32 : ROWS),
                    (unsigned)ceil_div(g->n, THREADS * (few ? VEC<Y> : V)));
    (few ? dx_of_few<W, Y, FEW / 2> : dx_of_rows<W, Y>)<<<grid, THREADS, 0, stream_of(c)>>>(
        data_of<float>(g->a), data_of<W>(g->b), data_of<Y>(g->c), accumulates(g->c), g->m, (int)g->k, g->n);
    LAUNCHED();
}

template <typename X, typename W> static void launch_y(const Call *c, const Gemm *g) {
    const auto launch = [&](auto kernel, int bytes) {
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        kernel<<<(unsigned)ceil_div(g->m, LINES), 2 * LINES, (size_t)bytes, stream_of(c)>>>(
            data_of<X>(g->a), data_of<W>(g->b), cells(g->bias), data_of<float>(g->c), g->m, (int)g->n, g->k);
        LAUNCHED();
    };
    if (g->n <= FEW / 2)
        launch(y_of_rows<X, W, FEW / 2>, STAGES * Slice<X, W, FEW / 2>::BYTES);
    else
        launch(y_of_rows<X, W, FEW>, STAGES * Slice<X, W, FEW>::BYTES);
}

/* Types other than F64. */
#define NARROW_SWITCH(dtype, ...)                                                                            \
    do {                                                                                                     \
        if ((dtype) == F32) {                                                                                \
            typedef float N;                                                                                 \
            __VA_ARGS__;                                                                                     \
        } else if ((dtype) == BF16) {                                                                        \
            typedef bf16 N;                                                                                  \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            typedef fp16 N;                                                                                  \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

template <typename X> static void run_y(const Call *c, const Gemm *g) {
    NARROW_SWITCH(g->b->dtype, launch_y<X, N>(c, g));
}
template <typename W> static void run_dx(const Call *c, const Gemm *g) {
    NARROW_SWITCH(g->c->dtype, launch_dx<W, N>(c, g));
}

void gemm_narrow(const Call *c, const Gemm *g) {
    CHECK(g->m <= INT32_MAX && g->n <= INT32_MAX && g->k <= INT32_MAX,
          "%s: a GEMM of [%lld,%lld] and %lld terms is too large", g->op, (long long)g->m, (long long)g->n,
          (long long)g->k);
    if (is_y(g))
        NARROW_SWITCH(g->a->dtype, run_y<N>(c, g));
    else if (is_dw(g))
        NARROW_SWITCH(g->b->dtype, g->m <= FEW / 2 ? launch_dw<N, FEW / 2>(c, g) : launch_dw<N, FEW>(c, g));
    else
        NARROW_SWITCH(g->b->dtype, run_dx<N>(c, g));
}
