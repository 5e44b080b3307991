/* Computes GEMMs in a fixed order of summation (LinearAttr), for the logits of routers, and for all linear
 * layers in batch-invariant mode. Narrow GEMMs (for a router's few experts, or for few rows) use narrow
 * tiles. c is written or accumulated. */
#include "kernels/cuda/gemm/ordered_gemm.cuh"
#include "kernels/cuda/gemm/gemm_plan.cuh"

enum { TALL = 64, NARROW = 16 };

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
    if (width == NARROW)
        REAL_SWITCH(lead_type(c),
                    multiply<R, NARROW, 1><<<(unsigned)tiles, ORDERED_THREADS, 0, stream_of(c)>>>(p, across));
    else
        REAL_SWITCH(lead_type(c),
                    multiply<R, TALL, 4><<<(unsigned)tiles, ORDERED_THREADS, 0, stream_of(c)>>>(p, across));
    LAUNCHED();
}
