#include "bench/rates/grid.h"

#include <math.h>
#include <string.h>

#include "kernels/attr.h"

#define ADD(...) g->add(g->arg, &(KernelCase){__VA_ARGS__})

/* ---- operands ---- */

static CaseOperand operand(int dtype, int ndim, const int64_t *dim) {
    CaseOperand o = {.dtype = dtype, .ndim = ndim};
    memcpy(o.dim, dim, (size_t)ndim * sizeof *dim);
    return o;
}

static CaseOperand typed(int dtype, int64_t rows, int64_t columns) {
    return operand(dtype, 2, (int64_t[]){rows, columns});
}

static CaseOperand matrix(int64_t rows, int64_t columns) { return typed(CASE_STORAGE, rows, columns); }

static CaseOperand gradient(int64_t rows, int64_t columns) {
    CaseOperand o = typed(F32, rows, columns);
    o.updated = o.main_grad = true;
    return o;
}

/* Returns the scales of FP8 matrices with these rows each. */
static CaseOperand scales(Fp8Blocks blocks, int64_t matrices, int64_t rows, int64_t columns) {
    CaseOperand o = typed(F32, matrices, fp8_blocks_count(blocks, rows, columns));
    o.content = CONTENT_POSITIVE;
    return o;
}

/* Returns the first row of each expert, if each has the same number of rows. */
static CaseOperand offsets(int64_t experts, int64_t rows) {
    CaseOperand o = operand(I64, 1, (int64_t[]){experts + 1});
    o.content = CONTENT_OFFSETS, o.range = experts * rows;
    return o;
}

/* ---- GEMMs ---- */

static const LinearAttr ANY = {.fixed_order = false}, FIXED = {.fixed_order = true},
                        CHUNKS = {.fixed_order = true, .by_chunks = true};

/* Adds the three GEMMs of a linear layer, each with the result [m, n] and sums of k terms. */
static void add_linear(const GridCalls *g, const LinearAttr *a, int64_t m, int64_t n, int64_t k) {
    ADD(.op = OP_linear, .attr = a, .in = {matrix(m, k), matrix(n, k)}, .out = {matrix(m, n)});
    ADD(.op = OP_linear_dgrad, .attr = a, .in = {matrix(m, k), matrix(k, n)}, .out = {matrix(m, n)});
    ADD(.op = OP_linear_wgrad, .attr = a, .in = {matrix(k, m), matrix(k, n)}, .out = {gradient(m, n)});
}

static void add_any(const GridCalls *g, int64_t m, int64_t n, int64_t k) { add_linear(g, &ANY, m, n, k); }
static void add_fixed(const GridCalls *g, int64_t m, int64_t n, int64_t k) { add_linear(g, &FIXED, m, n, k); }

/* Adds a router's GEMMs, whose logits are F32. */
static void add_router(const GridCalls *g, int64_t tokens, int64_t experts, int64_t h) {
    const CaseOperand logits = typed(F32, tokens, experts), x = matrix(tokens, h), w = matrix(experts, h);
    ADD(.op = OP_linear, .attr = &FIXED, .in = {x, w}, .out = {logits});
    ADD(.op = OP_linear_dgrad, .attr = &FIXED, .in = {logits, w}, .out = {x});
    ADD(.op = OP_linear_wgrad, .attr = &CHUNKS, .in = {logits, x}, .out = {gradient(experts, h)});
}

/* Adds the three GEMMs of experts that receive `rows` rows each. */
static void add_experts(const GridCalls *g, const LinearAttr *a, int64_t experts, int64_t rows, int64_t n,
                        int64_t k) {
    const int64_t all = experts * rows;
    const CaseOperand first = offsets(experts, rows), y = matrix(all, n);
    ADD(.op = OP_grouped_linear, .attr = a, .in = {matrix(all, k), matrix(experts * n, k), first},
        .out = {y});
    ADD(.op = OP_grouped_linear_dgrad, .attr = a, .in = {matrix(all, k), matrix(experts * k, n), first},
        .out = {y});
    ADD(.op = OP_grouped_linear_wgrad, .attr = a, .in = {y, matrix(all, k), first},
        .out = {gradient(experts * n, k)});
}

/* ---- FP8 GEMMs ---- */

/* The GEMMs of a layer: the output, the input's gradient and the weight's gradient, first with one scale per operand,
 * then with blocks. */
static const struct {
    Fp8GemmAttr attr;
    DType first;
    bool of_weight;
} FP8_GEMMS[] = {{{.fast = true}, F8E4M3, false},
                 {{.fast = false}, F8E5M2, false},
                 {{.fast = false}, F8E5M2, true},
                 {{.a = FP8_ROWS, .b = FP8_SQUARES}, F8E4M3, false},
                 {{.a = FP8_ROWS, .b = FP8_ROWS}, F8E4M3, true}};
enum { N_FP8_GEMMS = sizeof FP8_GEMMS / sizeof *FP8_GEMMS };

static void add_fp8(const GridCalls *g, int64_t m, int64_t n, int64_t k) {
    for (int i = 0; i < N_FP8_GEMMS; i++) {
        const Fp8GemmAttr *a = &FP8_GEMMS[i].attr;
        ADD(.op = OP_fp8_gemm, .attr = a,
            .in = {typed(FP8_GEMMS[i].first, m, k), typed(F8E4M3, n, k), scales(a->a, 1, m, k),
                   scales(a->b, 1, n, k)},
            .out = {FP8_GEMMS[i].of_weight ? gradient(m, n) : typed(BF16, m, n)});
    }
}

static void add_fp8_experts(const GridCalls *g, int64_t experts, int64_t rows, int64_t n, int64_t k) {
    const int64_t all = experts * rows, padded = (rows + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK,
                  columns = (all + FP8_BLOCK - 1) / FP8_BLOCK * FP8_BLOCK + experts * FP8_BLOCK;
    for (int i = 0; i < N_FP8_GEMMS; i++) {
        const Fp8GemmAttr *a = &FP8_GEMMS[i].attr;
        const int first = (int)FP8_GEMMS[i].first;
        const bool blocks = a->a != FP8_WHOLE;
        const CaseOperand each = scales(FP8_WHOLE, experts, 1, 1);
        if (FP8_GEMMS[i].of_weight)
            ADD(.op = OP_fp8_grouped_wgrad, .attr = a,
                .in = {typed(first, n, columns), typed(F8E4M3, k, columns),
                       blocks ? scales(FP8_ROWS, 1, n, columns) : each,
                       blocks ? scales(FP8_ROWS, 1, k, columns) : each, offsets(experts, padded)},
                .out = {gradient(experts * n, k)});
        else
            ADD(.op = OP_fp8_grouped_linear, .attr = a,
                .in = {typed(first, all, k), typed(F8E4M3, experts * n, k),
                       blocks ? scales(FP8_ROWS, 1, all, k) : each, scales(a->b, experts, n, k),
                       offsets(experts, rows)},
                .out = {typed(BF16, all, n)});
    }
}

/* ---- attention ---- */

enum { BIASED_WIDTH = 64 }; /* the width of heads for which a relative position bias is also measured */

static void add_attention(const GridCalls *g, int64_t length, int64_t heads, int64_t width, bool causal) {
    AttentionAttr *a = arena_alloc(g->arena, sizeof *a);
    *a = (AttentionAttr){
        .scale = 1 / sqrt((double)width), .window_left = WINDOW_OFF, .window_right = causal ? 0 : WINDOW_OFF};
    const CaseOperand x = operand(CASE_STORAGE, 5, (int64_t[]){length, 1, heads, 1, width}),
                      sums = operand(CASE_PRECISE, 4, (int64_t[]){1, heads, 1, length});
    ADD(.op = OP_attention, .attr = a, .in = {x, x, x}, .out = {x, sums});
    ADD(.op = OP_attention_grad, .attr = a, .in = {x, x, x, x, x, sums}, .out = {x, x, x});
    if (width > BIASED_WIDTH) return;
    AttentionAttr *biased = arena_alloc(g->arena, sizeof *a);
    *biased = *a, biased->bias_max_distance = 128, biased->bias_bidirectional = !causal;
    const CaseOperand bias = typed(CASE_STORAGE, 32, heads);
    CaseOperand dbias = typed(CASE_PRECISE, 32, heads);
    dbias.updated = true;
    ADD(.op = OP_attention, .attr = biased, .in = {x, x, x, {0}, {0}, bias}, .out = {x, sums});
    ADD(.op = OP_attention_grad, .attr = biased, .in = {x, x, x, x, x, sums, {0}, {0}, bias},
        .out = {x, x, x, dbias});
}

/* ---- the grid ---- */

typedef struct List {
    int n;
    int64_t at[4];
} List;
/* `few` are the sides of GEMMs that fewer runs need. */
typedef struct Sizes {
    List side, few, rows, length, heads;
} Sizes;
static const Sizes
    CPU = {{3, {64, 512, 2048}}, {2, {64, 512}}, {2, {16, 128}}, {3, {64, 256, 1024}}, {2, {4, 16}}},
    GPU = {{4, {128, 1024, 4096, 16384}},
           {3, {128, 1024, 4096}},
           {3, {64, 1024, 8192}},
           {3, {512, 2048, 8192}},
           {2, {16, 128}}},
    GPU_F32 = {{3, {128, 1024, 4096}}, {2, {128, 1024}}, {2, {64, 1024}}, {2, {512, 2048}}, {2, {16, 128}}};

static void add_cube(const GridCalls *g, const List *side,
                     void add(const GridCalls *, int64_t m, int64_t n, int64_t k)) {
    const int n = side->n;
    for (int i = 0; i < n * n * n; i++) add(g, side->at[i / n / n], side->at[i / n % n], side->at[i % n]);
}

static void add_all_experts(const GridCalls *g, const Sizes *s, bool fp8) {
    for (int64_t experts = 8; experts <= 64; experts *= 8)
        for (int i = 0; i < 2 * s->rows.n; i++) {
            const int64_t rows = s->rows.at[i / 2], n = s->side.at[1], k = s->side.at[1 + i % 2];
            add_experts(g, &ANY, experts, rows, n, k);
            if (fp8) add_fp8_experts(g, experts, rows, n, k);
        }
    for (int i = 0; i < s->few.n * s->rows.n; i++)
        for (int64_t experts = 8; experts <= 128; experts *= 16)
            add_router(g, s->rows.at[i % s->rows.n], experts, s->few.at[i / s->rows.n]);
}

/* Adds GEMMs of batch-invariant mode. */
static void add_invariant(const GridCalls *g, const Sizes *s) {
    add_cube(g, &s->few, add_fixed);
    for (int64_t experts = 8; experts <= 64; experts *= 8)
        for (int i = 0; i < 4; i++)
            add_experts(g, &FIXED, experts, s->rows.at[i / 2], s->few.at[1], s->few.at[i % 2]);
}

static void add_all_attention(const GridCalls *g, const Sizes *s) {
    for (int i = 0; i < s->length.n * s->heads.n; i++)
        for (int kind = 0; kind < 4; kind++)
            add_attention(g, s->length.at[i / s->heads.n], s->heads.at[i % s->heads.n], kind / 2 ? 128 : 64,
                          kind % 2);
}

void rates_grid(const GridCalls *g) {
    const Sizes *s = !g->gpu ? &CPU : g->type == F32 ? &GPU_F32 : &GPU;
    const bool fp8 = g->gpu && g->type == BF16;
    add_cube(g, &s->side, add_any);
    add_all_attention(g, s);
    add_all_experts(g, s, fp8);
    if (fp8) add_cube(g, &s->few, add_fp8);
    add_invariant(g, s);
}
