/* Computes GEMMs in a fixed order of summation (LinearAttr), for the logits of routers, and for all linear
 * layers in batch-invariant mode. Narrow GEMMs (for a router's few experts, or for few rows) use narrow
 * tiles. c is written or accumulated. */
#include "kernels/cuda/gemm/ordered_gemm.cuh"
#include "kernels/cuda/gemm/gemm_plan.cuh"

enum { TALL = 64, NARROW = 16 };

/* ---- F32 sums of aligned operands ---- */

/* A block computes SIDE x SIDE elements, and a thread 2 x 2 squares of 4 x 4 that are SIDE / 2 apart. */
enum { SIDE = 128, DEPTH = 16, THREADS = 256, LINE = SIDE + 4 };

/* A thread's share of the DEPTH terms of SIDE lines of an operand whose elements are adjacent in the direction of the
 * terms, or of the lines. Elements outside the operand are 0. */
template <typename T, bool along> struct Piece {
    enum { N = VEC<T>, ACROSS = (along ? DEPTH : SIDE) / N, COUNT = SIDE * DEPTH / N / THREADS };
    Vec<T, N> v[COUNT];

    static __device__ __forceinline__ int line(int q) {
        const int i = threadIdx.x + q * THREADS;
        return along ? i / ACROSS : i % ACROSS * N;
    }
    static __device__ __forceinline__ int term(int q) {
        const int i = threadIdx.x + q * THREADS;
        return along ? i % ACROSS * N : i / ACROSS;
    }
    /* The operand has `lines` lines and `terms` terms from here on. */
    __device__ __forceinline__ void load(const T *x, int64_t stride, int64_t lines, int64_t terms) {
#pragma unroll
        for (int q = 0; q < COUNT; q++)
            v[q] = line(q) < lines && term(q) < terms
                       ? *(const Vec<T, N> *)(x + (along ? line(q) * stride + term(q)
                                                         : term(q) * stride + line(q)))
                       : Vec<T, N>{};
    }
    __device__ __forceinline__ void keep(float (*to)[LINE]) const {
#pragma unroll
        for (int q = 0; q < COUNT; q++)
#pragma unroll
            for (int i = 0; i < N; i++)
                to[term(q) + (along ? i : 0)][line(q) + (along ? 0 : i)] = to_real<float>(v[q].v[i]);
    }
};

template <typename A, typename B, bool a_along, bool b_along>
static __global__ void __launch_bounds__(THREADS) multiply_aligned(OrderedGemm g, int64_t across) {
    __shared__ alignas(16) float of_a[2][DEPTH][LINE], of_b[2][DEPTH][LINE];
    const int64_t i0 = blockIdx.x / across * SIDE, j0 = blockIdx.x % across * SIDE,
                  a_stride = a_along ? g.a_row : g.a_col, b_stride = b_along ? g.b_col : g.b_row;
    const A *const a = (const A *)g.a.data + i0 * g.a_row;
    const B *const b = (const B *)g.b.data + j0 * g.b_col;
    const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
    Piece<A, a_along> next_a;
    Piece<B, b_along> next_b;
    float sum[2][4][2][4] = {};
    const auto load = [&](int64_t p) {
        next_a.load(a + p * g.a_col, a_stride, g.m - i0, g.k - p);
        next_b.load(b + p * g.b_row, b_stride, g.n - j0, g.k - p);
    };
    load(0);
    for (int64_t p0 = 0; p0 < g.k; p0 += DEPTH) {
        const int at = p0 / DEPTH % 2;
        next_a.keep(of_a[at]);
        next_b.keep(of_b[at]);
        __syncthreads();
        if (p0 + DEPTH < g.k) load(p0 + DEPTH);
#pragma unroll
        for (int p = 0; p < DEPTH; p++) {
            Vec<float, 4> x[2], y[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                x[h] = *(const Vec<float, 4> *)&of_a[at][p][row + h * SIDE / 2];
                y[h] = *(const Vec<float, 4> *)&of_b[at][p][column + h * SIDE / 2];
            }
#pragma unroll
            for (int i = 0; i < 64; i++) {
                float &s = sum[i / 32][i / 8 % 4][i / 4 % 2][i % 4];
                s = fma(x[i / 32].v[i / 8 % 4], y[i / 4 % 2].v[i % 4], s);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int64_t r = i0 + row + i / 32 * (SIDE / 2) + i / 8 % 4,
                      q = j0 + column + i / 4 % 2 * (SIDE / 2) + i % 4;
        if (r >= g.m || q >= g.n) continue;
        const float s = sum[i / 32][i / 8 % 4][i / 4 % 2][i % 4];
        g.c.put_or_add(r * g.c_row + q * g.c_col,
                       g.bias.data ? s + g.bias.get<float>(g.bias_of_rows ? r : q) : s, g.add);
    }
}

static bool is_aligned(const Tensor *x) {
    return (x->dtype == F32 || dtype_is_16bit((DType)x->dtype)) && aligned_16(x->data) &&
           tensor_width(x) % (16 / (int64_t)dtype_size((DType)x->dtype)) == 0;
}

template <typename A, typename B> static void launch_aligned(const Call *c, const OrderedGemm &g) {
    const int64_t across = ceil_div(g.n, SIDE), tiles = ceil_div(g.m, SIDE) * across;
    const auto launch = [&](auto kernel) {
        kernel<<<(unsigned)tiles, THREADS, 0, stream_of(c)>>>(g, across);
        LAUNCHED();
    };
    if (g.a_col == 1)
        g.b_row == 1 ? launch(multiply_aligned<A, B, true, true>)
                     : launch(multiply_aligned<A, B, true, false>);
    else
        g.b_row == 1 ? launch(multiply_aligned<A, B, false, true>)
                     : launch(multiply_aligned<A, B, false, false>);
}

template <typename A> static void launch_aligned_a(const Call *c, const OrderedGemm &g, DType b) {
    if (b == F32)
        launch_aligned<A, float>(c, g);
    else if (b == BF16)
        launch_aligned<A, bf16>(c, g);
    else
        launch_aligned<A, fp16>(c, g);
}

/* ---- any operands ---- */

template <typename R, int WIDTH, int COLUMNS>
static __global__ void __launch_bounds__(ORDERED_THREADS) multiply(OrderedGemm g, int64_t across) {
    ordered_tile<R, TALL, WIDTH, 4, COLUMNS>(g, blockIdx.x / across * TALL, blockIdx.x % across * WIDTH);
}

/* Returns the transposed GEMM, c^T = op(b)^T op(a)^T. */
static OrderedGemm turned(const OrderedGemm &g) {
    OrderedGemm t = g;
    t.a = g.b, t.a_at = g.b_at, t.a_row = g.b_col, t.a_col = g.b_row;
    t.b = g.a, t.b_at = g.a_at, t.b_row = g.a_col, t.b_col = g.a_row;
    t.c_row = g.c_col, t.c_col = g.c_row;
    t.m = g.n, t.n = g.m;
    t.bias_of_rows = !g.bias_of_rows;
    return t;
}

static OrderedGemm ordered_gemm_of(const Gemm *g) {
    OrderedGemm p = {};
    p.a = cells(g->a), p.b = cells(g->b), p.c = cells(g->c), p.bias = cells(g->bias);
    p.a_row = g->transpose_a ? 1 : g->k, p.a_col = g->transpose_a ? g->m : 1;
    p.b_row = g->transpose_b ? 1 : g->n, p.b_col = g->transpose_b ? g->k : 1;
    p.c_row = g->n, p.c_col = 1;
    p.m = g->m, p.n = g->n, p.k = g->k;
    p.add = accumulates(g->c);
    return p.m < p.n && p.m <= NARROW ? turned(p) : p;
}

void gemm_ordered(const Call *c, const Gemm *g) {
    const OrderedGemm p = ordered_gemm_of(g);
    const int64_t width = p.n <= NARROW ? NARROW : TALL, across = ceil_div(p.n, width),
                  tiles = ceil_div(p.m, TALL) * across;
    CHECK(tiles <= INT32_MAX, "%s: a GEMM of [%lld,%lld] in a fixed order is too large", g->op,
          (long long)g->m, (long long)g->n);
    if (width == TALL && g->c->dtype != F64 && p.n >= SIDE && is_aligned(g->a) && is_aligned(g->b)) {
        if (g->a->dtype == F32)
            launch_aligned_a<float>(c, p, (DType)g->b->dtype);
        else if (g->a->dtype == BF16)
            launch_aligned_a<bf16>(c, p, (DType)g->b->dtype);
        else
            launch_aligned_a<fp16>(c, p, (DType)g->b->dtype);
        return;
    }
    if (width == NARROW)
        REAL_SWITCH(lead_type(c),
                    multiply<R, NARROW, 1><<<(unsigned)tiles, ORDERED_THREADS, 0, stream_of(c)>>>(p, across));
    else
        REAL_SWITCH(lead_type(c),
                    multiply<R, TALL, 4><<<(unsigned)tiles, ORDERED_THREADS, 0, stream_of(c)>>>(p, across));
    LAUNCHED();
}
