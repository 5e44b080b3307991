/* y = softmax(scale * q k^T + mask) v; formulas in kernels/cpu/attention.c. dq, dk and dv are written or
 * added to. */
#include "ops/attention.h"

#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"

void attention_gradients(Tape *t, const Call *c, bool unfused, Tensor *dy, Tensor *dq, Tensor *dk,
                         Tensor *dv) {
    Tensor *const *in = c->in, *const *out = c->out;
    Call call = {.out = {dq, dk, dv}, .attr = c->attr};
    Tensor *operands[] = {
        dy, in[0], in[1], in[2], unfused ? out[1] : out[0], unfused ? in[3] : out[1], unfused ? NULL : in[3]};
    memcpy(call.in, operands, sizeof operands);
    tape_call(t, &OPS[unfused ? OP_attention_unfused_grad : OP_attention_grad], call);
}

static void backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in;
    Tensor *dq = tape_grad_out(t, in[0], need), *dk = tape_grad_out(t, in[1], need),
           *dv = tape_grad_out(t, in[2], need);
    if (!dq && !dk && !dv) return;
    const bool unfused = n->op->number == OP_attention_unfused;
    attention_gradients(t, &n->call, unfused, tape_grad(t, n->call.out[0]), dq, dk, dv);
}

static void check(const Tensor *q, const Tensor *k, const Tensor *v, const Tensor *first_key) {
    char a[100], b[100], c[100];
    bool fits = q->ndim == 5 && k->ndim == 5 && v->ndim == 5 && k->dim[0] == v->dim[0] &&
                q->dim[4] == k->dim[4] && k->dim[3] == 1 && v->dim[3] == 1;
    for (int i = 1; i < 3; i++) fits = fits && q->dim[i] == k->dim[i] && q->dim[i] == v->dim[i];
    CHECK(fits, "attention: q %s, k %s and v %s do not fit together", tensor_describe(q, a, sizeof a),
          tensor_describe(k, b, sizeof b), tensor_describe(v, c, sizeof c));
    CHECK(!first_key ||
              (first_key->ndim == 2 && first_key->dim[0] == q->dim[1] && first_key->dim[1] == q->dim[0]),
          "attention: q is %s, first_key %s", tensor_describe(q, a, sizeof a),
          tensor_describe(first_key, b, sizeof b));
}

Tensor *op_attention(Tape *t, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, AttentionAttr attr,
                     bool unfused) {
    check(q, k, v, first_key);
    const DType precise = q->dtype == F64 ? F64 : F32;
    const int64_t s = q->dim[0], b = q->dim[1], g = q->dim[2], r = q->dim[3];
    Tensor *y = tape_tensor(t, (DType)q->dtype, 5, (int64_t[]){s, b, g, r, v->dim[4]});
    /* lse, or all probabilities */
    Tensor *kept = tape_tensor(t, precise, unfused ? 5 : 4, (int64_t[]){b, g, r, s, k->dim[0]});
    tape_run(t, &OPS[unfused ? OP_attention_unfused : OP_attention],
             (Call){.in = {q, k, v, first_key}, .out = {y, kept}, .attr = &attr}, sizeof attr, backward);
    return y;
}
