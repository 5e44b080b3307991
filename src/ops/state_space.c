/* kernels/cpu/{causal_conv,ssd_scan,gated_norm}.c contain the formulas. The backward passes overwrite gradients, or
 * add to them. They recompute convolutions, scores and states instead of storing them. */
#include "ops/state_space.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

/* Returns whether x has 3 dimensions, the last of which has n contiguous elements. */
static bool is_rows(const Tensor *x, int64_t n) {
    return x->ndim == 3 && x->dim[2] == n && x->stride[2] == 1;
}

static bool is_vector(const Tensor *x, int64_t n) { return x->ndim == 1 && x->dim[0] == n; }

static void check_start(const Tensor *x, const Tensor *start) {
    CHECK(!start || (start->dim[0] == x->dim[1] && start->dim[1] == x->dim[0]),
          "the starts of documents are [%lld,%lld], but x has %lld positions and %lld samples",
          (long long)start->dim[0], (long long)start->dim[1], (long long)x->dim[0], (long long)x->dim[1]);
}

static void causal_conv_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in;
    Tensor *dx = tape_grad_out(t, in[0], need), *dw = tape_grad_out(t, in[1], need),
           *dbias = in[2] ? tape_grad_out(t, in[2], need) : NULL;
    if (!dx && !dw && !dbias) return;
    tape_call(
        t, &OPS[OP_causal_conv_grad],
        (Call){.in = {tape_grad(t, n->call.out[0]), in[0], in[1], in[2], in[3]}, .out = {dx, dw, dbias}});
}

static void check_conv(const char *op, const Tensor *x, const Tensor *w, const Tensor *bias) {
    const int64_t c = w->dim[0];
    CHECK(is_rows(x, c) && w->dim[1] <= CONV_TAPS && (!bias || is_vector(bias, c)),
          "%s: x, of width %lld, does not fit a weight [%lld,%lld]", op, (long long)tensor_width(x),
          (long long)c, (long long)w->dim[1]);
}

Tensor *op_causal_conv(Tape *t, Tensor *x, Tensor *w, Tensor *bias, Tensor *start) {
    check_conv("causal_conv", x, w, bias);
    check_start(x, start);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, x->dim);
    tape_run(t, &OPS[OP_causal_conv], (Call){.in = {x, w, bias, start}, .out = {y}}, 0, causal_conv_backward);
    return y;
}

static void ssd_scan_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in, *grad[CALL_OUT];
    bool any = false;
    for (int i = 0; i < CALL_OUT; i++) any |= (grad[i] = tape_grad_out(t, in[i], need)) != NULL;
    if (any)
        tape_call(t, &OPS[OP_ssd_scan_grad],
                  (Call){.in = {tape_grad(t, n->call.out[0]), in[0], in[1], in[2], in[3], in[4], in[5]},
                         .out = {grad[0], grad[1], grad[2], grad[3], grad[4]},
                         .attr = n->call.attr});
}

static void check_scan(const char *op, const ScanInputs *in, const ScanAttr *a) {
    const int64_t h = tensor_width(in->dt), width = h * a->head_dim + 2 * a->groups * a->state;
    CHECK(tensor_is_contiguous(in->x) && is_rows(in->x, width) && is_rows(in->dt, h) && h % a->groups == 0 &&
              is_vector(in->dt_bias, h) && is_vector(in->a_log, h) && is_vector(in->d, h),
          "%s: x, of width %lld, does not fit %lld heads of width %lld and %lld groups of width %lld", op,
          (long long)tensor_width(in->x), (long long)h, (long long)a->head_dim, (long long)a->groups,
          (long long)a->state);
}

Tensor *op_ssd_scan(Tape *t, const ScanInputs *in, ScanAttr a) {
    const int64_t h = tensor_width(in->dt);
    check_scan("ssd_scan", in, &a);
    check_start(in->x, in->start);
    Tensor *y =
        tape_tensor(t, (DType)in->x->dtype, 3, (int64_t[]){in->x->dim[0], in->x->dim[1], h * a.head_dim});
    tape_run(t, &OPS[OP_ssd_scan],
             (Call){.in = {in->x, in->dt, in->dt_bias, in->a_log, in->d, in->start}, .out = {y}, .attr = &a},
             sizeof a, ssd_scan_backward);
    return y;
}

static void gated_norm_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in;
    Tensor *dx = tape_grad_out(t, in[0], need), *dz = tape_grad_out(t, in[1], need),
           *dgain = tape_grad_out(t, in[2], need);
    if (!dx && !dz && !dgain) return;
    tape_call(t, &OPS[OP_gated_norm_grad],
              (Call){.in = {tape_grad(t, n->call.out[0]), in[0], in[1], in[2], n->call.out[1]},
                     .out = {dx, dz, dgain},
                     .attr = n->call.attr});
}

Tensor *op_gated_norm(Tape *t, Tensor *x, Tensor *z, Tensor *gain, GatedNormAttr a) {
    const int64_t c = tensor_width(x);
    CHECK(tensor_is_contiguous(x) && is_rows(x, c) && is_rows(z, c) && is_vector(gain, c) &&
              c % a.groups == 0,
          "gated_norm: x, of width %lld, does not fit a gate of width %lld, a gain of %lld and %lld groups",
          (long long)c, (long long)tensor_width(z), (long long)gain->dim[0], (long long)a.groups);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, x->dim),
           *rstd =
               tape_tensor(t, x->dtype == F64 ? F64 : F32, 3, (int64_t[]){x->dim[0], x->dim[1], a.groups});
    tape_run(t, &OPS[OP_gated_norm], (Call){.in = {x, z, gain}, .out = {y, rstd}, .attr = &a}, sizeof a,
             gated_norm_backward);
    return y;
}

/* ---- generation ---- */

/* Checks that there is a slot and a position for each token, and that each slot has n elements of the correct type. */
static void check_slots(const Tape *t, const char *op, const Tensor *x, const Tensor *slot,
                        const Tensor *position, const Tensor *state, int64_t n) {
    CHECK(!tape_is_recording(t) && x->dim[1] == 1 && tensor_count(slot) == x->dim[0] &&
              tensor_count(position) == x->dim[0] && state->dtype == (x->dtype == F64 ? F64 : F32) &&
              tensor_count(state) == state->dim[0] * n,
          "%s: %lld slots and %lld positions for %lld tokens, or slots of %lld instead of %lld elements", op,
          (long long)tensor_count(slot), (long long)tensor_count(position), (long long)x->dim[0],
          (long long)(tensor_count(state) / state->dim[0]), (long long)n);
}

Tensor *op_stream_conv(Tape *t, Tensor *x, Tensor *w, Tensor *bias, Tensor *slot, Tensor *position,
                       Tensor *state) {
    check_conv("stream_conv", x, w, bias);
    check_slots(t, "stream_conv", x, slot, position, state, (w->dim[1] - 1) * w->dim[0]);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, x->dim);
    tape_call(t, &OPS[OP_stream_conv], (Call){.in = {x, w, bias, slot, position}, .out = {y, state}});
    y->spmd = state->spmd = x->spmd;
    return y;
}

Tensor *op_stream_scan(Tape *t, const ScanInputs *in, ScanAttr a, Tensor *slot, Tensor *position,
                       Tensor *state) {
    const int64_t h = tensor_width(in->dt);
    check_scan("stream_scan", in, &a);
    check_slots(t, "stream_scan", in->x, slot, position, state, h * a.head_dim * a.state);
    Tensor *y = tape_tensor(t, (DType)in->x->dtype, 3, (int64_t[]){in->x->dim[0], 1, h * a.head_dim});
    tape_call(t, &OPS[OP_stream_scan],
              (Call){.in = {in->x, in->dt, in->dt_bias, in->a_log, in->d, slot, position},
                     .out = {y, state},
                     .attr = &a});
    y->spmd = state->spmd = in->x->spmd;
    return y;
}
