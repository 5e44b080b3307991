/* y = softmax(scale * q k^T + mask) v. kernels/cpu/attention.c contains the formulas. A separate kernel then
 * adds the sinks to the result (kernels/cpu/attention_sink.c). The backward pass overwrites or accumulates dq,
 * dk, dv, dbias and dsink. */
#include "ops/attention.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

enum { Q, K, V, FIRST_KEY, LENGTHS, BIAS, SINK, MAX };

Call attention_call(const AttentionInputs *x, const void *attr) {
    return (Call){.in = {x->q, x->k, x->v, x->first_key, x->lengths, x->bias, x->sink, x->max}, .attr = attr};
}

void attention_outputs(Tape *t, Call *c, int64_t keys, bool unfused) {
    const Tensor *q = c->in[Q];
    const int64_t s = q->dim[0], b = q->dim[1], g = q->dim[2], r = q->dim[3];
    c->out[0] = tape_tensor(t, (DType)q->dtype, 5, (int64_t[]){s, b, g, r, c->in[V]->dim[4]});
    c->out[1] = tape_tensor(t, q->dtype == F64 ? F64 : F32, unfused ? 5 : 4,
                            (int64_t[]){b, g, r, s, keys + (c->in[SINK] != NULL)});
}

/* Checks that the operand x ([h] or [..,h]) has an element for each head of q. x may be NULL. */
static void check_heads(const Call *c, const Tensor *x, int ndim, const char *what) {
    const Tensor *q = c->in[Q];
    const int64_t first = ((const AttentionAttr *)c->attr)->first_local, end = first + q->dim[2] * q->dim[3];
    CHECK(!x || (x->ndim == ndim && first >= 0 && end <= x->dim[ndim - 1]),
          "attention: %s exist for %lld heads, but heads %lld to %lld need them", what,
          (long long)x->dim[x->ndim - 1], (long long)first, (long long)end - 1);
}

void attention_add_sinks(Tape *t, const Call *c) {
    Tensor *const y = c->out[0], *const lse = c->out[1];
    if (!c->in[SINK]) return;
    check_heads(c, c->in[SINK], 1, "sinks");
    tape_call(t, &OPS[OP_attention_sink],
              (Call){.in = {y, lse, c->in[SINK]}, .out = {y, lse}, .attr = c->attr});
}

/* If the backward pass recomputes a block, the scores are not measured again. */
static void measure_scores(Tape *t, const Call *c) {
    Tensor *const *in = c->in;
    if (!in[MAX] || !tape_is_recording(t)) return;
    tape_call(t, &OPS[OP_max_score],
              (Call){.in = {in[Q], in[K], in[FIRST_KEY], in[LENGTHS]}, .out = {in[MAX]}, .attr = c->attr});
}

void attention_run(Tape *t, const Call *c, bool unfused) {
    Call keys = *c;
    keys.in[MAX] = NULL;
    check_heads(c, c->in[BIAS], 2, "biases");
    measure_scores(t, c);
    if (unfused) {
        check_heads(c, c->in[SINK], 1, "sinks");
        tape_call(t, &OPS[OP_attention_unfused], keys);
        return;
    }
    keys.in[SINK] = NULL;
    tape_call(t, &OPS[OP_attention], keys);
    attention_add_sinks(t, c);
}

AttentionGrads attention_grads_out(Tape *t, const Call *c, Need need) {
    return (AttentionGrads){tape_grad_out(t, c->in[Q], need), tape_grad_out(t, c->in[K], need),
                            tape_grad_out(t, c->in[V], need),
                            c->in[BIAS] ? tape_grad_out(t, c->in[BIAS], need) : NULL,
                            c->in[SINK] ? tape_grad_out(t, c->in[SINK], need) : NULL};
}

static void fused_gradients(Tape *t, const Call *c, Tensor *dy, const AttentionGrads *g) {
    Tensor *const *in = c->in, *const *out = c->out;
    if (attention_grads_of_scores(g))
        tape_call(
            t, &OPS[OP_attention_grad],
            (Call){.in = {dy, in[Q], in[K], in[V], out[0], out[1], in[FIRST_KEY], in[LENGTHS], in[BIAS]},
                   .out = {g->q, g->k, g->v, g->bias},
                   .attr = c->attr});
    if (g->sink)
        tape_call(t, &OPS[OP_attention_sink_grad],
                  (Call){.in = {dy, out[0], out[1], in[SINK]}, .out = {g->sink}, .attr = c->attr});
}

void attention_gradients(Tape *t, const Call *c, bool unfused, Tensor *dy, AttentionGrads g) {
    if (!unfused) {
        fused_gradients(t, c, dy, &g);
        return;
    }
    tape_call(t, &OPS[OP_attention_unfused_grad],
              (Call){.in = {dy, c->in[Q], c->in[K], c->in[V], c->out[1]},
                     .out = {g.q, g.k, g.v, g.sink, g.bias},
                     .attr = c->attr});
}

static void attention_backward(Tape *t, const Node *n, Need need) {
    const AttentionGrads g = attention_grads_out(t, &n->call, need);
    if (!attention_grads_of_scores(&g) && !g.sink) return;
    attention_gradients(t, &n->call, n->op->number == OP_attention_unfused, tape_grad(t, n->call.out[0]), g);
}

static void attention_check(const AttentionInputs *x, const AttentionAttr *attr) {
    const Tensor *q = x->q, *k = x->k, *v = x->v, *first_key = x->first_key, *lengths = x->lengths;
    char a[100], b[100], c[100];
    bool fits = q->ndim == 5 && k->ndim == 5 && v->ndim == 5 && k->dim[0] == v->dim[0] &&
                q->dim[4] == k->dim[4] && k->dim[3] == 1 && v->dim[3] == 1;
    for (int i = 1; i < 3; i++) fits = fits && q->dim[i] == k->dim[i] && q->dim[i] == v->dim[i];
    CHECK(fits, "attention: the shapes of q %s, k %s and v %s are not compatible",
          tensor_describe(q, a, sizeof a), tensor_describe(k, b, sizeof b), tensor_describe(v, c, sizeof c));
    CHECK(!first_key ||
              (first_key->ndim == 2 && first_key->dim[0] == q->dim[1] && first_key->dim[1] == q->dim[0]),
          "attention: q is %s, but first_key is %s", tensor_describe(q, a, sizeof a),
          tensor_describe(first_key, b, sizeof b));
    CHECK(!lengths || (lengths->ndim == 1 && lengths->dim[0] == q->dim[1]),
          "attention: q is %s, but lengths is %s", tensor_describe(q, a, sizeof a),
          tensor_describe(lengths, b, sizeof b));
    CHECK((x->bias != NULL) + (attr->alibi != 0) + (attr->softcap != 0) <= 1,
          "attention: a relative position bias, ALiBi and a soft cap on scores cannot be combined");
}

Tensor *op_attention(Tape *t, const AttentionInputs *inputs, AttentionAttr attr, bool unfused) {
    attention_check(inputs, &attr);
    Call call = attention_call(inputs, &attr);
    attention_outputs(t, &call, inputs->k->dim[0], unfused);
    const OpDef *op = &OPS[unfused ? OP_attention_unfused : OP_attention];
    tape_check(t, op, &call);
    attention_run(t, &call, unfused);
    tape_record(t, op, call, sizeof attr, attention_backward);
    return call.out[0];
}
