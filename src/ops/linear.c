/* y = x w^T + bias: the GEMMs of ops/linear_gemm.h and the communication around them. dbias is summed in the
 * canonical order (kernels/ops.def). If x is an activation that no other op reads, the backward pass directly
 * computes the gradient of the activation's input. The backward pass overwrites or accumulates dx, dw and
 * dbias. */
#include "ops/linear.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/linear_gemm.h"
#include "ops/redistribute.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

typedef struct LayerAttr {
    LinearGemm gemm;                 /* must be first, because the kernels read its LinearAttr */
    bool gathers, reduces, sequence; /* collectives over tensor-parallel ranks */
    Tensor *all_x;                   /* the gathered input if this rank keeps it, otherwise NULL */
} LayerAttr;

enum { PRE = 3 }; /* the index of gemm.pre among the node's operands */

typedef Tensor *TakeTensor(Tape *, DType, int ndim, const int64_t *dim);

static Tensor *sized_by(TakeTensor *take, Tape *t, const Tensor *like, int64_t s, int64_t width, Spmd tp) {
    Tensor *x = take(t, (DType)like->dtype, 3, (int64_t[]){s, like->dim[1], width});
    x->spmd = spmd_with(like->spmd, AXIS_TP, tp);
    return x;
}

static Tensor *scratch(Tape *t, const Tensor *like, int64_t s, int64_t width, Spmd tp) {
    return sized_by(tape_scratch, t, like, s, width, tp);
}

/* ---- over tensor-parallel ranks ---- */

/* Starts the all-gather of x or dy along the sequence, because the GEMMs need type R. If `kept` is true, the
 * result is kept for the backward pass. */
static Tensor *gather_start(Tape *t, Tensor *x, bool kept, PendingReshard *moving) {
    const int64_t s = x->dim[0] * tape_axis(t, AXIS_TP);
    Tensor *whole = sized_by(kept ? tape_tensor : tape_scratch, t, x, s, x->dim[2], SPMD_R);
    *moving = redistribute_start(t, x, whole, AXIS_TP, MOVE_GATHER, 0);
    return whole;
}

/* Returns the input of the forward pass's GEMM, which is x itself if x is not sharded. */
static Tensor *gathered(Tape *t, Tensor *x, LayerAttr *a) {
    PendingReshard m;
    if (!a->gemm.gathers_x) return x;
    const bool kept = tape_context(t)->keeps_gathered && tape_is_recording(t);
    Tensor *whole = gather_start(t, x, kept, &m);
    redistribute_finish(t, m);
    if (kept) a->all_x = whole;
    return whole;
}

/* The gradient of x (or pre) while the ranks' partial sums are reduced. */
typedef struct InputGradient {
    Tensor *dx, *partial, *sum;
    PendingReshard moving;
} InputGradient;

static InputGradient input_gradient_start(Tape *t, const Node *n, const GemmGradient *dy, Need need) {
    const LayerAttr *a = n->call.attr;
    Tensor *x = a->gemm.pre ? a->gemm.pre : n->call.in[0];
    InputGradient g = {.dx = tape_grad_out(t, x, need)};
    if (!g.dx) return g;
    g.partial = a->gathers ? scratch(t, x, dy->dy->dim[0], x->dim[2], SPMD_P) : g.dx;
    linear_gemm_dx(t, &a->gemm, dy, n->call.in[1], g.partial);
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

/* A row-parallel layer's weight gradient. */
typedef struct WeightGradient {
    const LinearGemm *gemm;
    GemmGradient g;
    Tensor *all_dy, *x, *dw;
} WeightGradient;

static void weight_gradient(Tape *t, void *arg) {
    WeightGradient *r = arg;
    linear_gemm_dw(t, r->gemm, &r->g, r->x, r->dw, NULL);
    quantize_drop(t, &r->g.values);
    tape_drop(t, r->all_dy);
}

/* Gathers dy while an earlier layer's postponed weight gradient is computed. */
static Tensor *gathered_behind(Tape *t, Tensor *dy) {
    PendingReshard m;
    Tensor *all_dy = gather_start(t, dy, false, &m);
    tape_run_postponed(t);
    redistribute_finish(t, m);
    return all_dy;
}

/* The backward pass of a row-parallel layer whose output is sharded along the sequence. */
static void scattered_backward(Tape *t, const Node *n, Need need) {
    const LayerAttr *a = n->call.attr;
    Tensor *x = n->call.in[0], *all_dy = gathered_behind(t, tape_grad(t, n->call.out[0]));
    Tensor *dw = tape_grad_out(t, n->call.in[1], need);
    const GemmGradient g = linear_gemm_gradient(t, &a->gemm, all_dy, n->call.out[0]->spmd,
                                                need & NEED_DX && x->flags & TENSOR_NEEDS_GRAD, dw != NULL);
    input_gradient_finish(t, input_gradient_start(t, n, &g, need));
    WeightGradient rest = {&a->gemm, g, all_dy, x, dw};
    if (dw && need == NEED_ALL && tape_overlaps(t, AXIS_TP))
        tape_postpone(t, n, weight_gradient, &rest, sizeof rest);
    else
        weight_gradient(t, &rest);
}

/* On several ranks, x is gathered while dx is computed, and dx is reduced while dw is computed. On one rank, dx
 * is computed last, so that part of dx is still in the cache when the next op reads it. */
static void linear_backward(Tape *t, const Node *n, Need need) {
    const LayerAttr *a = n->call.attr;
    if (a->reduces && a->sequence) {
        scattered_backward(t, n, need);
        return;
    }
    Tensor *x = n->call.in[0], *w = n->call.in[1], *bias = n->call.in[2], *dy = tape_grad(t, n->call.out[0]);
    Tensor *dw = tape_grad_out(t, w, need), *dbias = bias ? tape_grad_out(t, bias, need) : NULL;
    PendingReshard gather = {0};
    InputGradient dx = {0};
    const bool gathers_again = dw && a->gemm.gathers_x && !a->all_x;
    Tensor *all_x = a->all_x ? a->all_x : gathers_again ? gather_start(t, x, false, &gather) : x;
    GemmGradient g = linear_gemm_gradient(t, &a->gemm, dy, n->call.out[0]->spmd,
                                          need & NEED_DX && x->flags & TENSOR_NEEDS_GRAD, dw != NULL);
    if (a->gathers) dx = input_gradient_start(t, n, &g, need);
    if (gathers_again) redistribute_finish(t, gather);
    if (dw || dbias) linear_gemm_dw(t, &a->gemm, &g, all_x, dw, dbias);
    if (!a->gathers) dx = input_gradient_start(t, n, &g, need);
    quantize_drop(t, &g.values);
    input_gradient_finish(t, dx);
    if (gathers_again) tape_drop(t, all_x);
}

/* Checks the SPMD type of a collective's input inside the op. */
static void check_type(const Tensor *x, const char *which, Spmd want) {
    const Spmd s = spmd_on(x->spmd, AXIS_TP);
    CHECK(s == want, "op 'linear', axis tp: the %s has type %c, but the collective needs %c", which,
          "IRVP"[s], "IRVP"[want]);
}

/* Unless act is NULL, sets *act to the activation of the result, without recording the activation. */
static Tensor *linear_record(Tape *t, Tensor *x, Tensor *w, Tensor *bias, LayerAttr *a, Tensor **act) {
    if (a->gemm.gathers_x) check_type(x, "input", SPMD_V);
    Tensor *all_x = gathered(t, x, a);
    /* converting I to R moves no data in the forward pass, and reduces dx in the backward pass */
    Tensor as_r = *all_x;
    if (a->gathers && spmd_on(as_r.spmd, AXIS_TP) == SPMD_I)
        as_r.spmd = spmd_with(as_r.spmd, AXIS_TP, SPMD_R);
    const int64_t s = all_x->dim[0] / (a->reduces && a->sequence ? tape_axis(t, AXIS_TP) : 1);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){s, x->dim[1], w->dim[0]});
    Tensor *out = a->reduces ? scratch(t, x, all_x->dim[0], w->dim[0], SPMD_P) : y;
    if (act) *act = tape_tensor(t, (DType)x->dtype, 3, y->dim);
    Call call = {.in = {&as_r, w, bias}, .out = {out, act ? *act : NULL}, .attr = a};
    tape_check(t, &OPS[OP_linear], &call);
    linear_gemm_forward(t, &a->gemm, call);
    if (a->reduces) {
        check_type(out, "gemm", SPMD_P);
        y->spmd = spmd_with(out->spmd, AXIS_TP, a->sequence ? SPMD_V : SPMD_I);
        redistribute_run(t, out, y, AXIS_TP, a->sequence ? MOVE_REDUCE_SCATTER : MOVE_REDUCE, 0);
        tape_drop(t, out);
    }
    if (all_x != a->all_x) tape_drop_unless(t, all_x, x);
    call.in[0] = x, call.in[PRE] = a->gemm.pre, call.out[0] = y, call.out[1] = NULL;
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
          "linear: the width of x is %lld, but the weight needs %lld", (long long)tensor_width(x),
          (long long)tensor_width(w));
    CHECK(!bias || bias->dim[0] == w->dim[0],
          "linear: the bias has %lld elements, but the output has %lld columns", (long long)bias->dim[0],
          (long long)w->dim[0]);
    const bool is_sharded = spmd_on(w->spmd, AXIS_TP) == SPMD_V;
    const bool gathers = is_sharded && l->flags & LINEAR_GATHER_IN, sequence = l->flags & LINEAR_SEQUENCE;
    return (LayerAttr){
        .gemm = {.linear.fixed_order = tape_context(t)->batch_invariant,
                 .linear.steady = !l->quantiser && tape_microbatch(t)->steady,
                 .quantiser = l->quantiser,
                 .inverse = l->inverse_o,
                 .gathers_x = gathers && sequence},
        .gathers = gathers,
        .reduces = is_sharded && l->flags & LINEAR_REDUCE_OUT,
        .sequence = sequence,
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
    if (at_once) attr.gemm.pre = x.pre, attr.gemm.linear.activation = x.kind;
    return record_with_bias(t, x.act, l, &attr);
}

/* The exact lane computes the activation separately, because the activation's input must first be rounded to
 * the grid. */
Activated op_linear_activated(Tape *t, Tensor *x, const LinearLayer *l, ActivationAttr activation,
                              bool halfway) {
    LayerAttr attr = layer_attr(t, x, l);
    CHECK(!attr.reduces, "linear: partial sums cannot have an activation");
    Activated out = {.kind = activation.kind};
    const bool fused = !activation_is_gated(activation.kind) && !tape_context(t)->exact;
    if (fused) attr.gemm.linear.activation = activation.kind;
    Tensor *pre = linear_record(t, x, l->w_oi, l->bias_o, &attr, fused ? &out.act : NULL);
    if (halfway) tape_pause_halfway(t);
    if (fused)
        out.pre = pre;
    else
        out.act = op_activation(t, pre, activation);
    return out;
}
