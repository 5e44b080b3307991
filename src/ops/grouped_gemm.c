#include "ops/grouped_gemm.h"

#include "kernels/ops.h"
#include "tape/tape_ops.h"

enum { OVER_COLUMNS = 1 << QUANT_OVER_COLUMNS, OVER_ROWS = 1 << QUANT_OVER_ROWS };

static bool quantises_dw(const GroupedGemm *g) { return g->quantiser && g->quantiser->spec.wgrad; }

static Fp8GemmAttr attr_of(const GroupedGemm *g, QuantOperand a, QuantOperand b, bool fast) {
    const QuantSpec *s = &g->quantiser->spec;
    return (Fp8GemmAttr){.a = a.blocks,
                         .b = b.blocks,
                         .fast = fast && a.blocks == FP8_WHOLE,
                         .fixed_order = s->emulated || s->fixed_order};
}

static void multiply(Tape *t, const GroupedGemm *g, QuantOperand a, QuantOperand b, Tensor *bias,
                     Tensor *scale, bool fast, Tensor *c) {
    const Fp8GemmAttr attr = attr_of(g, a, b, fast);
    tape_call(t, &OPS[OP_fp8_grouped_linear],
              (Call){.in = {a.values, b.values, a.inverse, b.inverse, g->rows.offset, bias, scale},
                     .out = {c},
                     .attr = &attr});
}

static QuantValues weight_values(Tape *t, const GroupedGemm *g, Tensor *w, unsigned sums, bool first) {
    return quantize_values(t, g->quantiser, QUANT_W, w, NULL, g->w_state,
                           (QuantWanted){.sums = sums, .first = first});
}

static void fp8_forward(Tape *t, GroupedGemm *g, const Call *call) {
    const Quantiser *q = g->quantiser;
    Tensor *x = call->in[0], *w = call->in[1];
    const unsigned kept = quantises_dw(g) && q->spec.keep_inputs && tape_is_recording(t) ? OVER_ROWS : 0;
    g->rows.padded = tape_tensor(t, I64, 1, g->rows.offset->dim);
    tape_call(t, &OPS[OP_fp8_pad_offsets], (Call){.in = {g->rows.offset}, .out = {g->rows.padded}});
    g->x_state = quantize_state(t, q, QUANT_X, x, &g->rows, x->spmd, true);
    g->w_state = quantize_state(t, q, QUANT_W, w, NULL, w->spmd, true);
    QuantValues xs = quantize_values(t, q, QUANT_X, x, &g->rows, g->x_state,
                                     (QuantWanted){OVER_COLUMNS | kept, kept, .first = true}),
                ws = weight_values(t, g, w, OVER_COLUMNS, true);
    g->x_rows = xs.by[QUANT_OVER_ROWS];
    multiply(t, g, xs.by[QUANT_OVER_COLUMNS], ws.by[QUANT_OVER_COLUMNS], call->in[3], call->in[4], true,
             call->out[0]);
    quantize_drop(t, &ws);
    quantize_drop(t, &xs);
}

void grouped_gemm_forward(Tape *t, GroupedGemm *g, Call call) {
    call.attr = g;
    if (g->quantiser)
        fp8_forward(t, g, &call);
    else
        tape_call(t, &OPS[OP_grouped_linear], call);
}

GroupedGradient grouped_gemm_gradient(Tape *t, const GroupedGemm *g, Tensor *dy, SpmdType type, bool dx,
                                      bool dw) {
    GroupedGradient r = {.dy = dy};
    const unsigned sums = (dx ? OVER_COLUMNS : 0u) | (dw && quantises_dw(g) ? OVER_ROWS : 0u);
    if (!g->quantiser || !sums) return r;
    Tensor *state = quantize_state(t, g->quantiser, QUANT_DY, dy, &g->rows, type, true);
    r.values = quantize_values(t, g->quantiser, QUANT_DY, dy, &g->rows, state,
                               (QuantWanted){.sums = sums, .first = true});
    return r;
}

void grouped_gemm_dx(Tape *t, const GroupedGemm *g, const GroupedGradient *r, Tensor *w, Tensor *dx) {
    if (!g->quantiser) {
        tape_call(t, &OPS[OP_grouped_linear_dgrad],
                  (Call){.in = {r->dy, w, g->rows.offset}, .out = {dx}, .attr = g});
        return;
    }
    QuantValues ws = weight_values(t, g, w, OVER_ROWS, false);
    multiply(t, g, r->values.by[QUANT_OVER_COLUMNS], ws.by[QUANT_OVER_ROWS], NULL, NULL, false, dx);
    quantize_drop(t, &ws);
}

void grouped_gemm_dw(Tape *t, const GroupedGemm *g, const GroupedGradient *r, Tensor *x, Tensor *dw) {
    if (!quantises_dw(g)) {
        tape_call(t, &OPS[OP_grouped_linear_wgrad],
                  (Call){.in = {r->dy, x, g->rows.offset}, .out = {dw}, .attr = g});
        return;
    }
    QuantValues xs = {.by[QUANT_OVER_ROWS] = g->x_rows, .kept = OVER_ROWS};
    if (!g->x_rows.values)
        xs = quantize_values(t, g->quantiser, QUANT_X, x, &g->rows, g->x_state,
                             (QuantWanted){.sums = OVER_ROWS});
    const QuantOperand a = r->values.by[QUANT_OVER_ROWS], b = xs.by[QUANT_OVER_ROWS];
    const Fp8GemmAttr attr = attr_of(g, a, b, false);
    tape_call(
        t, &OPS[OP_fp8_grouped_wgrad],
        (Call){.in = {a.values, b.values, a.inverse, b.inverse, g->rows.padded}, .out = {dw}, .attr = &attr});
    quantize_drop(t, &xs);
}
