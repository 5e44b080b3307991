/* The backward pass recomputes the FP8 values of x's transpose from x, unless the quantizer keeps inputs.
 * Keeping the transpose's FP8 values takes one more byte per element while x is kept. In return, it saves one
 * read of x (two bytes per element), and about 0.5 % of a step's time if rows are long. */
#include "ops/linear_gemm.h"

#include "kernels/ops.h"
#include "ops/quantized.h"
#include "tape/tape_ops.h"

enum { OVER_COLUMNS = 1 << QUANT_OVER_COLUMNS, OVER_ROWS = 1 << QUANT_OVER_ROWS };

static bool quantises_dw(const LinearGemm *a) { return a->quantiser && a->quantiser->spec.wgrad; }

static bool keeps_x(const Tape *t, const LinearGemm *a) {
    return quantises_dw(a) && a->quantiser->spec.keep_inputs && tape_is_recording(t) && !a->gathers_x;
}

static QuantValues values_of_w(Tape *t, const LinearGemm *a, Tensor *w, QuantWanted want) {
    QuantValues values = a->w;
    values.kept = OVER_COLUMNS | OVER_ROWS;
    return a->shares_w ? values : quantize_values(t, a->quantiser, QUANT_W, w, NULL, a->w_state, want);
}

static void fp8_forward(Tape *t, LinearGemm *a, const Call *call) {
    const Quantiser *q = a->quantiser;
    const unsigned kept = keeps_x(t, a) ? OVER_ROWS : 0;
    QuantValues x = quantize_values(t, q, QUANT_X, call->in[0], NULL, a->x_state,
                                    (QuantWanted){OVER_COLUMNS | kept, kept, .first = true}),
                w = values_of_w(t, a, call->in[1], (QuantWanted){.sums = OVER_COLUMNS, .first = true});
    a->x_rows = x.by[QUANT_OVER_ROWS];
    quantize_multiply(t, &(QuantGemm){.a = x.by[QUANT_OVER_COLUMNS],
                                      .b = w.by[QUANT_OVER_COLUMNS],
                                      .bias = call->in[2],
                                      .c = call->out[0],
                                      .act = call->out[1],
                                      .activation = a->linear.activation,
                                      .fast = true});
    quantize_drop(t, &w);
    quantize_drop(t, &x);
}

static void fp8_dx(Tape *t, const LinearGemm *a, const GemmGradient *g, Tensor *w, Tensor *dx) {
    QuantValues values = values_of_w(t, a, w, (QuantWanted){.sums = OVER_ROWS});
    quantize_multiply(
        t, &(QuantGemm){.a = g->values.by[QUANT_OVER_COLUMNS], .b = values.by[QUANT_OVER_ROWS], .c = dx});
    quantize_drop(t, &values);
}

static void fp8_dw(Tape *t, const LinearGemm *a, const GemmGradient *g, Tensor *x, Tensor *dw) {
    QuantValues values = {.by[QUANT_OVER_ROWS] = a->x_rows, .kept = OVER_ROWS};
    if (!a->x_rows.values)
        values =
            quantize_values(t, a->quantiser, QUANT_X, x, NULL, a->x_state, (QuantWanted){.sums = OVER_ROWS});
    quantize_multiply(
        t, &(QuantGemm){.a = g->values.by[QUANT_OVER_ROWS], .b = values.by[QUANT_OVER_ROWS], .c = dw});
    quantize_drop(t, &values);
}

/* Chooses FP8 GEMMs or their emulation, and computes the state that quantizes w. */
static void choose(Tape *t, LinearGemm *a, Tensor *w, int64_t rows) {
    const Quantiser *q = a->quantiser;
    a->is_fp8 = q && !quantize_emulation(tape_context(t)->device, q->spec, rows, w->dim[1], w->dim[0]);
    a->w_state = quantize_state(t, q, QUANT_W, w, NULL, w->spmd, a->is_fp8);
}

QuantValues linear_gemm_share_w(Tape *t, LinearGemm *a, Tensor *w, int64_t rows, bool dx) {
    a->shares_w = true;
    choose(t, a, w, rows);
    if (a->is_fp8)
        a->w = quantize_values(t, a->quantiser, QUANT_W, w, NULL, a->w_state,
                               (QuantWanted){.sums = OVER_COLUMNS | (dx ? OVER_ROWS : 0u), .first = true});
    return a->w;
}

void linear_gemm_forward(Tape *t, LinearGemm *a, Call call) {
    const Quantiser *q = a->quantiser;
    Tensor *x = call.in[0], *w = call.in[1];
    if (a->inverse) {
        quantized_forward(t, &a->linear, a->inverse, call);
        return;
    }
    if (!a->shares_w) choose(t, a, w, tensor_rows(x));
    a->x_state = quantize_state(t, q, QUANT_X, x, NULL, x->spmd, a->is_fp8);
    if (a->is_fp8) {
        fp8_forward(t, a, &call);
        return;
    }
    call.in[0] = quantize_run(t, q, QUANT_X, x, a->x_state, QUANT_OVER_COLUMNS);
    call.in[1] = quantize_run(t, q, QUANT_W, w, a->w_state, QUANT_OVER_COLUMNS);
    call.attr = a;
    tape_call(t, &OPS[OP_linear], call);
    tape_drop_unless(t, call.in[1], w);
    tape_drop_unless(t, call.in[0], x);
}

GemmGradient linear_gemm_gradient(Tape *t, const LinearGemm *a, Tensor *dy, SpmdType type, bool dx, bool dw) {
    GemmGradient g = {.dy = dy,
                      .state = quantize_state(t, a->quantiser, QUANT_DY, dy, NULL, type, a->is_fp8)};
    const unsigned sums = (dx ? OVER_COLUMNS : 0u) | (dw && quantises_dw(a) ? OVER_ROWS : 0u);
    if (a->is_fp8 && sums)
        g.values = quantize_values(t, a->quantiser, QUANT_DY, dy, NULL, g.state,
                                   (QuantWanted){.sums = sums, .first = true});
    return g;
}

void linear_gemm_dx(Tape *t, const LinearGemm *a, const GemmGradient *g, Tensor *w, Tensor *dx) {
    if (a->is_fp8) {
        fp8_dx(t, a, g, w, dx);
        return;
    }
    Tensor *dy = g->dy, *dy_q = quantize_run(t, a->quantiser, QUANT_DY, dy, g->state, QUANT_OVER_COLUMNS),
           *w_q = quantize_run(t, a->quantiser, QUANT_W, w, a->w_state, QUANT_OVER_ROWS);
    tape_call(t, &OPS[OP_linear_dgrad], (Call){.in = {dy_q, w_q, a->pre}, .out = {dx}, .attr = a});
    tape_drop_unless(t, w_q, w);
    tape_drop_unless(t, dy_q, dy);
}

/* dbias is summed from dy before quantization, without a GEMM. */
void linear_gemm_dw(Tape *t, const LinearGemm *a, const GemmGradient *g, Tensor *x, Tensor *dw,
                    Tensor *dbias) {
    const Quantiser *q = dw && quantises_dw(a) ? a->quantiser : NULL;
    Tensor *dy = g->dy;
    if (q && a->is_fp8) {
        fp8_dw(t, a, g, x, dw);
        dw = NULL;
        q = NULL;
    }
    if (!dw && !dbias) return;
    Tensor *dy_q = quantize_run(t, q, QUANT_DY, dy, g->state, QUANT_OVER_ROWS),
           *x_q = quantize_run(t, q, QUANT_X, x, a->x_state, QUANT_OVER_ROWS);
    if (q) tape_call(t, &OPS[OP_linear_wgrad], (Call){.in = {dy_q, x_q}, .out = {dw}, .attr = a});
    if (dbias || !q)
        tape_call(t, &OPS[OP_linear_wgrad], (Call){.in = {dy, x}, .out = {q ? NULL : dw, dbias}, .attr = a});
    tape_drop_unless(t, x_q, x);
    tape_drop_unless(t, dy_q, dy);
}
