/* Experts' linear layers in FP8 against separate linear layers of quantized tensors, in double (fp8_reference.h). */
#include "tape/tape_backward.h"
#include "unit/recording.h"

#include <string.h>

#include "kernels/ops.h"
#include "ops/fp8.h"
#include "ops/grouped.h"
#include "param/fp8_weights.h"
#include "unit/ops/fp8_layer.h"
#include "unit/zero_grads.h"

enum { MOST_EXPERTS = 256 };

/* Expert e has `rows[e % n]` rows. `tail` rows follow those of the last expert. */
typedef struct Shape {
    int64_t in, out, experts, n, rows[5], tail;
} Shape;

static const Shape SHAPES[] = {
    {.in = 260, .out = 133, .experts = 4, .n = 4, .rows = {131, 0, 1, 300}, .tail = 9},
    {.in = 128, .out = 256, .experts = 3, .n = 3, .rows = {128, 256, 128}},
    {.in = 48, .out = 40, .experts = 5, .n = 5, .rows = {0, 0, 333, 0, 0}},
    {.in = 16, .out = 24, .experts = 3, .n = 1, .rows = {0}, .tail = 2},
    {.in = 16, .out = 16, .experts = MOST_EXPERTS, .n = 5, .rows = {3, 0, 130, 1, 2}, .tail = 3},
};

/* The rows of each expert are larger than those of the previous one, so that no scale fits two experts. */
static double *unequal(const int64_t *offset, const Shape *s, int64_t width, int64_t rows, uint64_t site) {
    double *x = numbers(rows * width, site, 1);
    for (int64_t e = 0; e < s->experts; e++)
        for (int64_t i = offset[e] * width; i < offset[e + 1] * width; i++) x[i] *= ldexp(1.37, (int)(e % 7));
    for (int64_t i = offset[s->experts] * width; i < rows * width; i++) x[i] *= 1e6; /* belong to no expert */
    return x;
}

static void experts_open(Layer *l, QuantSpec spec, const Shape *s) {
    const ParamSpec weight = {.dim = {s->experts * s->out, s->in},
                              .expert = true,
                              .groups = s->experts,
                              .n_parts = 1,
                              .parts = {{"whole", s->out}}};
    layer_open(l, spec, weight, FP8_GEMM_EXPERTS);
    double *w = l->w->master.data;
    for (int64_t i = 0, each = s->out * s->in; i < s->experts * each; i++)
        w[i] *= ldexp(1.21, (int)(i / each % 5));
}

/* The operands of one step and its results. */
typedef struct Step {
    int64_t offset[MOST_EXPERTS + 1], rows;
    double *x, *dy, *y, *dx;
    const double *w, *dw;
} Step;

static void count_casts(void *arg, const OpDef *op, const Call *c) {
    (void)c;
    *(int *)arg += op == &OPS[OP_fp8_expert_cast] || op == &OPS[OP_fp8_cast];
}

/* Returns the number of casts. */
static int run_step(Layer *l, const Shape *s, Step *p, int64_t tail) {
    int casts = 0;
    zero_grads(l->registry);
    tape_begin(l->tape, &RECORDING);
    tape_trace(l->tape, count_casts, &casts);
    Tensor *x = tape_input(l->tape, NULL, F64, 3, (int64_t[]){p->rows, 1, s->in}, 0);
    memcpy(x->data, p->x, tensor_bytes(x));
    Tensor offset = tensor_make(p->offset, I64, 1, &(int64_t){s->experts + 1});
    Tensor *y =
        op_grouped_linear(l->tape, x, (GroupedLayer){&l->w->value, .quantiser = l->quantiser}, &offset);
    Tensor seed = tensor_make(p->dy, F64, 3, y->dim);
    memcpy(p->y, y->data, tensor_bytes(y));
    tape_backward(l->tape, y, &seed, NEED_ALL);
    memcpy(p->dx, tape_grad(l->tape, x)->data, tensor_bytes(x));
    for (int64_t i = 0; i < tail * s->out; i++) assert_true(p->y[(p->rows - tail) * s->out + i] == 0);
    for (int64_t i = 0; i < tail * s->in; i++) assert_true(p->dx[(p->rows - tail) * s->in + i] == 0);
    tape_end(l->tape);
    return casts;
}

/* Compares the results of one expert with those of a linear layer. */
static void expect_expert(const Step *p, const Shape *s, QuantSpec spec, int64_t e) {
    const int64_t first = p->offset[e], n = p->offset[e + 1] - first, all = INT64_C(1) << 40, in = s->in,
                  out = s->out;
    const bool blocks = spec.recipe == QUANT_BLOCKWISE;
    const int64_t high = blocks ? BLOCK : all, one = blocks ? 1 : all;
    const Fp8Type grad = spec.format == QUANT_HYBRID ? E5M2 : E4M3;
    const double *x0 = p->x + first * in, *dy0 = p->dy + first * out;
    double *x = mem_alloc((size_t)(n * in + 1) * sizeof *x),
           *dy = mem_alloc((size_t)(n * out + 1) * sizeof *dy),
           *w = mem_alloc((size_t)(out * in) * sizeof *w);
    quantised(E4M3, p->w + e * out * in, out, in, high, high, blocks, w);
    quantised(E4M3, x0, n, in, one, high, blocks, x);
    quantised(grad, dy0, n, out, one, high, blocks, dy);
    expect_gemm("y", p->y + first * out, (ExpectedGemm){x, w, n, out, in, true, true});
    expect_gemm("dx", p->dx + first * in, (ExpectedGemm){dy, w, n, in, out, true, false});
    quantised(E4M3, x0, n, in, high, one, blocks, x);
    quantised(grad, dy0, n, out, high, one, blocks, dy);
    expect_gemm("dw", p->dw + e * out * in,
                (ExpectedGemm){spec.wgrad ? dy : dy0, spec.wgrad ? x : x0, out, in, n, false, false});
    free(x), free(dy), free(w);
}

static void check_experts(QuantSpec spec, const Shape *s) {
    Layer l;
    Step p = {0};
    experts_open(&l, spec, s);
    for (int64_t e = 0; e < s->experts; e++) p.offset[e + 1] = p.offset[e] + s->rows[e % s->n];
    p.rows = p.offset[s->experts] + s->tail;
    p.x = unequal(p.offset, s, s->in, p.rows, 1), p.dy = unequal(p.offset, s, s->out, p.rows, 2);
    p.y = numbers(p.rows * s->out, 0, 0), p.dx = numbers(p.rows * s->in, 0, 0);
    p.w = l.w->master.data, p.dw = l.w->main_grad.data;
    const StateContext state = {.device = l.device, .tokens = p.rows, .training = true};
    states_prepare(l.registry, &state);
    for (int pass = 0; pass < 2; pass++) { /* a delayed scale is 1 until the first step has ended */
        fp8_weights_cast(l.registry, NULL);
        states_refresh(l.registry, &state);
        const int casts = run_step(&l, s, &p, s->tail),
                  again = spec.wgrad && !spec.keep_inputs ? 1 : 0; /* x in the backward pass */
        const bool is_kept = spec.keep_weights && s->in % 16 == 0 && s->out % 16 == 0;
        const char *why;
        assert_int_equal(quantize_layers(l.registry, p.rows, &why), 1);
        assert_int_equal(!why, s->in % 16 == 0 && s->out % 16 == 0);
        assert_int_equal(casts, (is_kept || spec.store_weights ? 2 : 4) + again);
        states_end_step(l.registry, &state);
        for (int64_t e = 0; e < s->experts && (pass || spec.recipe != QUANT_DELAYED); e++)
            expect_expert(&p, s, spec, e);
    }
    free(p.x), free(p.dy), free(p.y), free(p.dx);
    layer_close(&l);
}

TEST(experts_are_separate_layers) {
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (QuantRecipe recipe = QUANT_DELAYED; recipe <= QUANT_BLOCKWISE; recipe++)
            for (int which = 0; which < 5; which++)
                check_experts((QuantSpec){.format = which & 1 ? QUANT_HYBRID : QUANT_E4M3,
                                          .recipe = recipe,
                                          .history = 3,
                                          .most_recent = which & 1,
                                          .wgrad = which != 3,
                                          .keep_weights = which & 2,
                                          .store_weights = which == 4,
                                          .keep_inputs = which == 2 && recipe != QUANT_BLOCKWISE},
                              &SHAPES[i]);
}
