/* kernels/cpu/gated_delta_rule.c contains the formulas. The backward pass overwrites gradients, or adds to them. It
 * recomputes states instead of storing them. */
#include "ops/delta_rule.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void gated_delta_rule_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in, *grad[CALL_OUT];
    bool any = false;
    for (int i = 0; i < CALL_OUT; i++) any |= (grad[i] = tape_grad_out(t, in[i], need)) != NULL;
    if (any)
        tape_call(t, &OPS[OP_gated_delta_rule_grad],
                  (Call){.in = {tape_grad(t, n->call.out[0]), in[0], in[1], in[2], in[3], in[4], in[5]},
                         .out = {grad[0], grad[1], grad[2], grad[3], grad[4]},
                         .attr = n->call.attr});
}

/* Returns whether x is [s,b,n], and its last dimension is contiguous. */
static bool is_rows(const Tensor *x, int64_t s, int64_t b, int64_t n) {
    return x->ndim == 3 && x->dim[0] == s && x->dim[1] == b && x->dim[2] == n && x->stride[2] == 1;
}

static bool is_vector(const Tensor *x, int64_t n) { return x->ndim == 1 && x->dim[0] == n; }

static void check_rule(const char *op, const DeltaRuleInputs *in, const DeltaRuleAttr *a) {
    const int64_t s = in->qkv->dim[0], b = in->qkv->dim[1], h = tensor_width(in->alpha),
                  width = 2 * a->key_heads * a->key_dim + h * a->value_dim;
    CHECK(tensor_is_contiguous(in->qkv) && is_rows(in->qkv, s, b, width) && is_rows(in->alpha, s, b, h) &&
              is_rows(in->beta, s, b, h) && h % a->key_heads == 0 && is_vector(in->a_log, h) &&
              is_vector(in->dt_bias, h),
          "%s: qkv, of width %lld, does not fit %lld key heads of width %lld and %lld value heads of width "
          "%lld",
          op, (long long)tensor_width(in->qkv), (long long)a->key_heads, (long long)a->key_dim, (long long)h,
          (long long)a->value_dim);
}

Tensor *op_gated_delta_rule(Tape *t, const DeltaRuleInputs *in, DeltaRuleAttr a) {
    const int64_t s = in->qkv->dim[0], b = in->qkv->dim[1], h = tensor_width(in->alpha);
    check_rule("gated_delta_rule", in, &a);
    CHECK(!in->start || (in->start->dim[0] == b && in->start->dim[1] == s),
          "the starts of documents are [%lld,%lld], but qkv has %lld positions and %lld samples",
          (long long)in->start->dim[0], (long long)in->start->dim[1], (long long)s, (long long)b);
    Tensor *y = tape_tensor(t, (DType)in->qkv->dtype, 3, (int64_t[]){s, b, h * a.value_dim});
    tape_run(t, &OPS[OP_gated_delta_rule],
             (Call){.in = {in->qkv, in->alpha, in->beta, in->a_log, in->dt_bias, in->start},
                    .out = {y},
                    .attr = &a},
             sizeof a, gated_delta_rule_backward);
    return y;
}

Tensor *op_stream_delta_rule(Tape *t, const DeltaRuleInputs *in, DeltaRuleAttr a, Tensor *slot,
                             Tensor *position, Tensor *state) {
    const int64_t s = in->qkv->dim[0], h = tensor_width(in->alpha), size = h * a.key_dim * a.value_dim;
    check_rule("stream_delta_rule", in, &a);
    CHECK(!tape_is_recording(t) && in->qkv->dim[1] == 1 && tensor_count(slot) == s &&
              tensor_count(position) == s && state->dtype == (in->qkv->dtype == F64 ? F64 : F32) &&
              tensor_count(state) == state->dim[0] * size,
          "stream_delta_rule: %lld slots and %lld positions for %lld tokens, or slots that do not have %lld "
          "elements",
          (long long)tensor_count(slot), (long long)tensor_count(position), (long long)s, (long long)size);
    Tensor *y = tape_tensor(t, (DType)in->qkv->dtype, 3, (int64_t[]){s, 1, h * a.value_dim});
    tape_call(t, &OPS[OP_stream_delta_rule],
              (Call){.in = {in->qkv, in->alpha, in->beta, in->a_log, in->dt_bias, slot, position},
                     .out = {y, state},
                     .attr = &a});
    y->spmd = state->spmd = in->qkv->spmd;
    return y;
}
