#include "measure/op_cost.h"

#include <math.h>

bool work_gemm(OpNumber op, const Call *c, GemmShape *p) {
    if (OPS[op].family != OP_FAMILY_GEMM || !c->out[0]) return false;
    const int64_t rows = tensor_rows(c->in[0]), wide = tensor_width(c->in[0]), n = tensor_width(c->out[0]);
    const bool sums_rows = op == OP_linear_wgrad || op == OP_grouped_linear_wgrad;
    *p = sums_rows ? (GemmShape){wide, n, rows} : (GemmShape){rows, n, wide};
    return true;
}

double work_keys(const AttentionAttr *a, const Tensor *k) {
    double keys = (double)k->dim[0];
    const double sides = a->window_right == WINDOW_OFF ? 1 : 2;
    if (a->window_left != WINDOW_OFF) keys = fmin(keys, sides * (double)(a->window_left + 1));
    return a->chunk_size ? fmin(keys, (double)a->chunk_size) : keys;
}

/* Returns the FLOPs of attention. Causal attention computes half of all query-key pairs, with d multiply-adds per pair
 * in each GEMM. */
static double attention_flops(const Call *c, const Tensor *q, const Tensor *k, int gemms) {
    const AttentionAttr *a = c->attr;
    const bool causal = a->window_right != WINDOW_OFF;
    return (double)tensor_count(q) * work_keys(a, k) * (causal ? 1 : 2) * gemms;
}

double work_flops(OpNumber op, const Call *c) {
    GemmShape p;
    if (work_gemm(op, c, &p)) return 2.0 * (double)p.m * (double)p.n * (double)p.k;
    if (op == OP_attention || op == OP_attention_unfused) return attention_flops(c, c->in[0], c->in[1], 2);
    if (op == OP_attention_unfused_grad || op == OP_attention_grad) /* unfused ops store probabilities */
        return attention_flops(c, c->in[1], c->in[2], op == OP_attention_grad ? 5 : 4);
    return 0;
}

static double bytes_of(const Tensor *t) { return t ? (double)tensor_bytes(t) : 0; }

double work_bytes(OpNumber op, const Call *c) {
    /* A lookup accesses only the rows of the embedding table that it uses. */
    if (op == OP_embedding) return bytes_of(c->in[0]) + 2 * bytes_of(c->out[0]);
    if (op == OP_embedding_grad)
        return bytes_of(c->in[0]) + bytes_of(c->in[1]) +
               2.0 * (double)tensor_count(c->in[0]) * (double)dtype_size((DType)c->out[0]->dtype);
    double bytes = 0;
    for (int i = 0; i < CALL_IN; i++) bytes += bytes_of(c->in[i]);
    for (int i = 0; i < CALL_OUT; i++)
        if (c->out[i]) bytes += bytes_of(c->out[i]) * (c->out[i]->flags & TENSOR_ACCUM ? 2 : 1);
    return bytes;
}
