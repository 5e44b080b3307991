/* Attention sinks: the softmax of a row has one more term, exp(sink), whose value vector is 0 (Megatron-LM
 * --softmax-type; Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024). With y and lse
 * of attention without the sink,
 *   lse' = log(exp(lse) + exp(sink)),  y' = exp(lse - lse') y,
 * and the backward pass of attention, applied to y' and lse', yields the gradients of attention with the
 * sink. The gradient of the sink is dsink = - sum over the head's rows of exp(sink - lse') sum(dy * y'). If a
 * row attends to no key, y = 0 and lse = -inf, and therefore y' = 0 and lse' = sink. Sinks are finite. y' and
 * lse' are written; dsink is written or accumulated. */
#include "kernels/cpu/real.h"

typedef struct Rows {
    const Call *call;
    int64_t s, b, heads, width;
    const real *sink; /* [heads]: the heads' sinks */
} Rows;

static Rows rows_of(const Call *c, const Tensor *y, const Tensor *sink) {
    const AttentionAttr *a = c->attr;
    CHECK(tensor_is_contiguous(y), "attention sinks: y must be contiguous");
    return (Rows){
        c, y->dim[0], y->dim[1], y->dim[2] * y->dim[3], tensor_width(y), reals(sink) + a->first_local};
}

/* Returns the index in [b,g,r,s] of row i of a head. */
static int64_t lse_at(const Rows *x, int64_t i, int64_t sample, int64_t head) {
    return (sample * x->heads + head) * x->s + i;
}

static void add_sinks(void *arg, int64_t begin, int64_t end) {
    const Rows *x = arg;
    Tensor *const *in = x->call->in, *const *out = x->call->out;
    for (int64_t line = begin; line < end; line++) {
        const int64_t head = line % x->heads, token = line / x->heads,
                      row = lse_at(x, token / x->b, token % x->b, head);
        const real lse = reals(in[1])[row], sink = x->sink[head],
                   less = REAL_MATH(exp)(-REAL_MATH(fabs)(lse - sink)),
                   weight = (lse < sink ? less : 1) / (1 + less);
        const real *from = reals(in[0]) + line * x->width;
        real *to = reals(out[0]) + line * x->width;
        for (int64_t c = 0; c < x->width; c++) to[c] = weight * from[c];
        reals(out[1])[row] = (lse < sink ? sink : lse) + REAL_MATH(log1p)(less);
    }
}

void KERNEL(attention_sink)(const Call *c) {
    Rows x = rows_of(c, c->in[0], c->in[2]);
    pool_for(c->device->pool, x.s * x.b * x.heads, grain_rows(x.width), add_sinks, &x);
}

/* Returns one sample's contribution to the gradient of a head's sink. */
static real sample_sum(const Rows *x, int64_t sample, int64_t head) {
    const Tensor *dy = x->call->in[0];
    const real *y = reals(x->call->in[1]), *lse = reals(x->call->in[2]);
    real sum = 0;
    for (int64_t i = 0; i < x->s; i++) {
        const int64_t line = (i * x->b + sample) * x->heads + head;
        const real *a = reals(dy) + tensor_row_offset(dy, line), *b = y + line * x->width;
        real dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t c = 0; c < x->width; c++) dot += a[c] * b[c];
        sum -= REAL_MATH(exp)(x->sink[head] - lse[lse_at(x, i, sample, head)]) * dot;
    }
    return sum;
}

static void sink_gradients(void *arg, int64_t begin, int64_t end) {
    const Rows *x = arg;
    const int64_t first = ((const AttentionAttr *)x->call->attr)->first_local;
    Tensor *dsink = x->call->out[0];
    for (int64_t i = begin; i < end; i++) {
        real *out = &reals(dsink)[i];
        if (!accumulates(dsink)) *out = 0;
        if (i < first || i >= first + x->heads) continue;
        for (int64_t sample = 0; sample < x->b; sample++) *out += sample_sum(x, sample, i - first);
    }
}

void KERNEL(attention_sink_grad)(const Call *c) {
    Rows x = rows_of(c, c->in[1], c->in[3]);
    pool_for(c->device->pool, tensor_count(c->out[0]), grain_rows(x.s * x.b * x.width), sink_gradients, &x);
}
