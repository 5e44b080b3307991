/* y = x w^T + bias. Backward: dx = dy w; dw = dy^T x and dbias = sum of dy, dbias in the canonical order of
 * kernels/ops.def. Where x is an activation that nobody else reads, the gradient of what it was taken of
 * stands in dx's place. dx is written or added to, dw and dbias are added to the main gradients. */
#include "ops/linear.h"

#include "base/fault.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "ops/fp8.h"
#include "ops/redistribute.h"

typedef struct LayerAttr {
    LinearAttr linear;               /* first: the kernels read it */
    bool gathers, reduces, sequence; /* over tensor-parallel ranks */
    const Quantiser *quantiser;      /* NULL: operands are not rounded */
    bool native;                     /* the device multiplies FP8 values */
    Tensor *x_state, *w_state;       /* that they were quantised by */
    QuantOperand x_rows;             /* x's transpose in FP8, if the forward kept it */
    Tensor *pre;                     /* in[PRE] of the node: dx goes through the activation that x is */
} LayerAttr;

enum { PRE = 3 }; /* an operand of the node */

static Tensor *scratch(Tape *t, const Tensor *like, int64_t s, int64_t width, Spmd tp) {
    Tensor *x = tape_scratch(t, (DType)like->dtype, 3, (int64_t[]){s, like->dim[1], width});
    x->spmd = spmd_with(like->spmd, AXIS_TP, tp);
    return x;
}

/* All of dy, as the GEMMs take it. */
typedef struct Gradient {
    Tensor *dy, *state;
    QuantValues values;
} Gradient;

/* ---- native FP8 GEMMs ----
 * The backward casts x's transpose from x again, unless the quantiser keeps inputs. Keeping saves reading x
 * once more, two bytes an element and about 0.5 % of a step with long rows. It costs one byte an element for
 * as long as x is kept. */

enum { OVER_COLUMNS = 1 << QUANT_OVER_COLUMNS, OVER_ROWS = 1 << QUANT_OVER_ROWS };

static bool quantises_wgrad(const LayerAttr *a) { return a->quantiser && a->quantiser->spec.wgrad; }

/* An x that is gathered again in the backward has no FP8 values from the forward. */
static bool keeps_input(const Tape *t, const LayerAttr *a) {
    return quantises_wgrad(a) && a->quantiser->spec.keep_inputs && tape_is_recording(t) &&
           !(a->gathers && a->sequence);
}

static void multiply_fp8(Tape *t, const Call *call, LayerAttr *a) {
    const Quantiser *q = a->quantiser;
    const unsigned kept = keeps_input(t, a) ? OVER_ROWS : 0;
    QuantValues x = quantize_values(t, q, QUANT_X, call->in[0], a->x_state,
                                    (QuantWanted){OVER_COLUMNS | kept, kept, .first = true}),
                w = quantize_values(t, q, QUANT_W, call->in[1], a->w_state,
                                    (QuantWanted){.sums = OVER_COLUMNS, .first = true});
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

static void dgrad_fp8(Tape *t, const Node *n, const Gradient *g, Tensor *dx) {
    const LayerAttr *a = n->call.attr;
    QuantValues w = quantize_values(t, a->quantiser, QUANT_W, n->call.in[1], a->w_state,
                                    (QuantWanted){.sums = OVER_ROWS});
    quantize_multiply(
        t, &(QuantGemm){.a = g->values.by[QUANT_OVER_COLUMNS], .b = w.by[QUANT_OVER_ROWS], .c = dx});
    quantize_drop(t, &w);
}

static void wgrad_fp8(Tape *t, const LayerAttr *a, const Gradient *g, Tensor *x, Tensor *dw) {
    QuantValues values = {.by[QUANT_OVER_ROWS] = a->x_rows, .kept = OVER_ROWS};
    if (!a->x_rows.values)
        values = quantize_values(t, a->quantiser, QUANT_X, x, a->x_state, (QuantWanted){.sums = OVER_ROWS});
    quantize_multiply(
        t, &(QuantGemm){.a = g->values.by[QUANT_OVER_ROWS], .b = values.by[QUANT_OVER_ROWS], .c = dw});
    quantize_drop(t, &values);
}

/* ---- GEMMs ---- */

static void multiply(Tape *t, Call call, LayerAttr *a) {
    const Quantiser *q = a->quantiser;
    Tensor *x = call.in[0], *w = call.in[1];
    a->native =
        q && !quantize_emulation(tape_context(t)->device, q->spec, tensor_rows(x), w->dim[1], w->dim[0]);
    a->x_state = quantize_state(t, q, QUANT_X, x, x->spmd, a->native);
    a->w_state = quantize_state(t, q, QUANT_W, w, w->spmd, a->native);
    if (a->native) {
        multiply_fp8(t, &call, a);
        return;
    }
    call.in[0] = quantize_run(t, q, QUANT_X, x, a->x_state, QUANT_OVER_COLUMNS);
    call.in[1] = quantize_run(t, q, QUANT_W, w, a->w_state, QUANT_OVER_COLUMNS);
    tape_call(t, &OPS[OP_linear], call);
    tape_drop_unless(t, call.in[1], w);
    tape_drop_unless(t, call.in[0], x);
}

static void dgrad_gemm(Tape *t, const Node *n, const Gradient *g, Tensor *dx) {
    const LayerAttr *a = n->call.attr;
    if (a->native) {
        dgrad_fp8(t, n, g, dx);
        return;
    }
    Tensor *w = n->call.in[1], *dy = g->dy,
           *dy_q = quantize_run(t, a->quantiser, QUANT_DY, dy, g->state, QUANT_OVER_COLUMNS),
           *w_q = quantize_run(t, a->quantiser, QUANT_W, w, a->w_state, QUANT_OVER_ROWS);
    tape_call(t, &OPS[OP_linear_dgrad], (Call){.in = {dy_q, w_q, a->pre}, .out = {dx}, .attr = a});
    tape_drop_unless(t, w_q, w);
    tape_drop_unless(t, dy_q, dy);
}

/* dbias is no GEMM: it sums dy itself. */
static void wgrad_gemm(Tape *t, const Node *n, const Gradient *g, Tensor *x, Tensor *dw, Tensor *dbias) {
    const LayerAttr *a = n->call.attr;
    const Quantiser *q = dw && quantises_wgrad(a) ? a->quantiser : NULL;
    Tensor *dy = g->dy;
    if (q && a->native) {
        wgrad_fp8(t, a, g, x, dw);
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

/* ---- over tensor-parallel ranks ---- */

/* x or dy as the GEMMs need it: all of the sequence, R. Returns x itself if it is not sharded. */
static Tensor *gather_start(Tape *t, Tensor *x, bool is_sharded, PendingReshard *moving) {
    if (!is_sharded) return x;
    Tensor *whole = scratch(t, x, x->dim[0] * tape_axis(t, AXIS_TP), x->dim[2], SPMD_R);
    *moving = redistribute_start(t, x, whole, AXIS_TP, MOVE_GATHER, 0);
    return whole;
}

static Tensor *gathered(Tape *t, Tensor *x, bool is_sharded) {
    PendingReshard m = {0};
    Tensor *y = gather_start(t, x, is_sharded, &m);
    if (is_sharded) redistribute_finish(t, m);
    return y;
}

/* The gradient of x from a partial sum of it, or of pre. */
typedef struct InputGradient {
    Tensor *dx, *partial, *sum;
    PendingReshard moving;
} InputGradient;

static InputGradient input_gradient_start(Tape *t, const Node *n, const Gradient *dy, Need need) {
    const LayerAttr *a = n->call.attr;
    Tensor *x = a->pre ? a->pre : n->call.in[0];
    InputGradient g = {.dx = tape_grad_out(t, x, need)};
    if (!g.dx) return g;
    g.partial = a->gathers ? scratch(t, x, dy->dy->dim[0], x->dim[2], SPMD_P) : g.dx;
    dgrad_gemm(t, n, dy, g.partial);
    if (!a->gathers) return g;
    g.sum = tape_grad_sum_begin(t, x, g.dx, g.dx->flags & TENSOR_ACCUM);
    g.moving =
        redistribute_start(t, g.partial, g.sum, AXIS_TP, a->sequence ? MOVE_REDUCE_SCATTER : MOVE_REDUCE, 0);
    return g;
}

static void input_gradient_finish(Tape *t, InputGradient g) {
    if (!g.sum) return;
    redistribute_finish(t, g.moving);
    tape_grad_sum_end(t, g.sum, g.dx);
    tape_drop(t, g.partial);
}

/* dy, cast in one pass to the FP8 values that the GEMMs under `need` take. */
static Gradient gradient(Tape *t, const Node *n, Tensor *dy, Need need, const Tensor *dw) {
    const LayerAttr *a = n->call.attr;
    const bool dx = need & NEED_DX && n->call.in[0]->flags & TENSOR_NEEDS_GRAD;
    Gradient g = {.dy = dy};
    g.state = quantize_state(t, a->quantiser, QUANT_DY, dy, n->call.out[0]->spmd, a->native);
    const unsigned sums = (dx ? OVER_COLUMNS : 0u) | (dw && quantises_wgrad(a) ? OVER_ROWS : 0u);
    if (a->native && sums)
        g.values = quantize_values(t, a->quantiser, QUANT_DY, dy, g.state,
                                   (QuantWanted){.sums = sums, .first = true});
    return g;
}

/* Over ranks x is gathered while dx is computed, and dx is reduced while dw is computed. Else dx is last, so
 * that who reads it next finds some of it in a cache. */
static void linear_backward(Tape *t, const Node *n, Need need) {
    const LayerAttr *a = n->call.attr;
    Tensor *x = n->call.in[0], *w = n->call.in[1], *bias = n->call.in[2], *dy = tape_grad(t, n->call.out[0]);
    Tensor *dw = tape_grad_out(t, w, need), *dbias = bias ? tape_grad_out(t, bias, need) : NULL;
    PendingReshard gather = {0};
    InputGradient dx = {0};
    Tensor *all_dy = gathered(t, dy, a->reduces && a->sequence);
    Tensor *all_x = gather_start(t, x, dw && a->gathers && a->sequence, &gather);
    Gradient g = gradient(t, n, all_dy, need, dw);
    if (a->gathers) dx = input_gradient_start(t, n, &g, need);
    if (all_x != x) redistribute_finish(t, gather);
    if (dw || dbias) wgrad_gemm(t, n, &g, all_x, dw, dbias);
    if (!a->gathers) dx = input_gradient_start(t, n, &g, need);
    quantize_drop(t, &g.values);
    input_gradient_finish(t, dx);
    tape_drop_unless(t, all_x, x);
    tape_drop_unless(t, all_dy, dy);
}

/* What a collective inside the op begins with. */
static void check_type(const Tensor *x, const char *which, Spmd want) {
    const Spmd s = spmd_on(x->spmd, AXIS_TP);
    CHECK(s == want, "op 'linear', axis tp: the %s is %c, the collective takes %c", which, "IRVP"[s],
          "IRVP"[want]);
}

/* act: NULL, or gets the activation of the result, which is not recorded. */
static Tensor *linear_record(Tape *t, Tensor *x, Tensor *w, Tensor *bias, LayerAttr *a, Tensor **act) {
    if (a->gathers && a->sequence) check_type(x, "input", SPMD_V);
    Tensor *all_x = gathered(t, x, a->gathers && a->sequence);
    Tensor as_r = *all_x; /* I becomes R: nothing moves, and the backward reduces */
    if (a->gathers && spmd_on(as_r.spmd, AXIS_TP) == SPMD_I)
        as_r.spmd = spmd_with(as_r.spmd, AXIS_TP, SPMD_R);
    const int64_t s = all_x->dim[0] / (a->reduces && a->sequence ? tape_axis(t, AXIS_TP) : 1);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){s, x->dim[1], w->dim[0]});
    Tensor *out = a->reduces ? scratch(t, x, all_x->dim[0], w->dim[0], SPMD_P) : y;
    if (act) *act = tape_tensor(t, (DType)x->dtype, 3, y->dim);
    Call call = {.in = {&as_r, w, bias}, .out = {out, act ? *act : NULL}, .attr = a};
    tape_check(t, &OPS[OP_linear], &call);
    multiply(t, call, a);
    if (a->reduces) {
        check_type(out, "output", SPMD_P);
        y->spmd = spmd_with(out->spmd, AXIS_TP, a->sequence ? SPMD_V : SPMD_I);
        redistribute_run(t, out, y, AXIS_TP, a->sequence ? MOVE_REDUCE_SCATTER : MOVE_REDUCE, 0);
        tape_drop(t, out);
    }
    tape_drop_unless(t, all_x, x);
    call.in[0] = x, call.in[PRE] = a->pre, call.out[0] = y, call.out[1] = NULL;
    tape_record(t, &OPS[OP_linear], call, sizeof *a, linear_backward);
    return y;
}

/* ---- the op ---- */

static void bias_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *bias = n->call.in[1], *dy = tape_grad(t, n->call.out[0]);
    const LinearAttr attr = {0};
    Tensor *dbias = tape_grad_out(t, bias, need);
    if (dbias)
        tape_call(t, &OPS[OP_linear_wgrad], (Call){.in = {dy, x}, .out = {NULL, dbias}, .attr = &attr});
    tape_grad_share(t, x, dy, need);
}

static Tensor *add_bias(Tape *t, Tensor *x, Tensor *bias) {
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, x->dim);
    tape_run(t, &OPS[OP_bias], (Call){.in = {x, bias}, .out = {y}}, 0, bias_backward);
    return y;
}

static LayerAttr layer_attr(Tape *t, const Tensor *x, const LinearLayer *l) {
    const Tensor *w = l->w_oi, *bias = l->bias_o;
    CHECK(x->ndim == 3 && w->ndim == 2 && x->dim[2] == w->dim[1],
          "linear: x is %lld wide, the weight takes %lld", (long long)tensor_width(x),
          (long long)tensor_width(w));
    CHECK(!bias || bias->dim[0] == w->dim[0], "linear: the bias has %lld elements, the output %lld",
          (long long)bias->dim[0], (long long)w->dim[0]);
    const bool is_sharded = spmd_on(w->spmd, AXIS_TP) == SPMD_V;
    return (LayerAttr){
        .linear.fixed_order = tape_context(t)->batch_invariant,
        .gathers = is_sharded && l->flags & LINEAR_GATHER_IN,
        .reduces = is_sharded && l->flags & LINEAR_REDUCE_OUT,
        .sequence = l->flags & LINEAR_SEQUENCE,
        .quantiser = l->quantiser,
    };
}

/* A row-parallel layer adds its bias after the sum over ranks. */
static Tensor *record_with_bias(Tape *t, Tensor *x, const LinearLayer *l, LayerAttr *a) {
    if (!a->reduces) return linear_record(t, x, l->w_oi, l->bias_o, a, NULL);
    Tensor *y = linear_record(t, x, l->w_oi, NULL, a, NULL);
    return l->bias_o ? add_bias(t, y, l->bias_o) : y;
}

Tensor *op_linear(Tape *t, Tensor *x, const LinearLayer *l) {
    LayerAttr attr = layer_attr(t, x, l);
    return record_with_bias(t, x, l, &attr);
}

Tensor *op_linear_on_activated(Tape *t, Activated x, const LinearLayer *l) {
    LayerAttr attr = layer_attr(t, x.act, l);
    const bool at_once = x.pre && !l->quantiser && !attr.gathers;
    if (x.pre) activation_record(t, x.pre, x.act, x.kind, at_once);
    if (at_once) attr.pre = x.pre, attr.linear.activation = x.kind;
    return record_with_bias(t, x.act, l, &attr);
}

/* The exact precision mode takes the activation of what is on its grid. */
Activated op_linear_activated(Tape *t, Tensor *x, const LinearLayer *l, Activation activation) {
    LayerAttr attr = layer_attr(t, x, l);
    CHECK(!attr.reduces, "linear: partial sums have no activation");
    Activated out = {.kind = activation};
    if (activation_is_gated(activation) || tape_context(t)->exact) {
        out.act = op_activation(t, linear_record(t, x, l->w_oi, l->bias_o, &attr, NULL), activation);
        return out;
    }
    attr.linear.activation = activation;
    out.pre = linear_record(t, x, l->w_oi, l->bias_o, &attr, &out.act);
    return out;
}
