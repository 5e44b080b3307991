/* Builders for the rows of tapes.def and kernels/cases.def. */
#pragma once

#include "tape/tape_ops.h"
#include "unit/ops/case.h"

#include "kernels/attr.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/choices.h"
#include "ops/delta_rule.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/gate.h"
#include "ops/join_heads.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/residual.h"
#include "ops/rope.h"
#include "ops/scale.h"
#include "ops/softcap.h"
#include "ops/state_space.h"
#include "ops/take_row.h"
#include "ops/xielu.h"

static inline Tensor *build_linear(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_linear(t, in[0], &(LinearLayer){.w_oi = in[1], .bias_o = in[2]});
}

static inline Tensor *build_mlp(Tape *t, Tensor **in, const void *attr) {
    const Activated h = op_linear_activated(t, in[0], &(LinearLayer){.w_oi = in[1], .bias_o = in[2]},
                                            *(const ActivationAttr *)attr, false);
    return op_linear_on_activated(t, h, &(LinearLayer){.w_oi = in[3], .bias_o = in[4]});
}

/* One weight is used by two nodes, so its gradient is a sum. */
static inline Tensor *build_linear_twice(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_linear(t, op_linear(t, in[0], &(LinearLayer){.w_oi = in[1], .bias_o = in[2]}),
                     &(LinearLayer){.w_oi = in[1], .bias_o = in[2]});
}

static inline Tensor *build_norm(Tape *t, Tensor **in, const void *attr) {
    return op_norm(t, in[0], in[1], in[2], *(const NormAttr *)attr);
}

/* A second op also uses the sum, as in a residual stream. */
static inline Tensor *build_add_norm(Tape *t, Tensor **in, const void *attr) {
    Tensor *sum, *y = op_add_norm(t, in[0], in[1], in[2], in[3], *(const NormAttr *)attr, &sum);
    return op_add(t, y, sum);
}

/* x [s,b,g,2r,d] is split into two strided views of r heads each, like queries and keys. Two norms use the
 * second. */
static inline Tensor *build_norm_views(Tape *t, Tensor **in, const void *attr) {
    Tensor *x = in[0];
    const NormAttr *a = attr;
    const int64_t r = x->dim[3] / 2, d = x->dim[4], half[5] = {x->dim[0], x->dim[1], x->dim[2], r, d};
    Tensor *q = tape_view(t, x, 0, 5, half, x->stride), *k = tape_view(t, x, r * d, 5, half, x->stride);
    Tensor *sum = op_add(t, op_norm(t, k, in[1], in[2], *a), op_norm(t, k, in[1], in[2], *a));
    return op_add(t, sum, op_norm(t, q, in[1], in[2], *a));
}

static inline Tensor *build_activation(Tape *t, Tensor **in, const void *attr) {
    const ActivationAttr *a = attr;
    return in[1] ? op_scaled_activation(t, in[0], *a, in[1]) : op_activation(t, in[0], *a);
}

static inline Tensor *build_xielu(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_xielu(t, in[0], (XieluNumbers){in[1], in[2], in[3], in[4]});
}

static inline Tensor *build_embedding(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_embedding(t, in[0], in[1]);
}

static inline Tensor *build_dropout(Tape *t, Tensor **in, const void *attr) {
    return op_dropout(t, in[0], ((const DropoutAttr *)attr)->rate, hash_name("dropout"));
}

static inline Tensor *build_scale(Tape *t, Tensor **in, const void *attr) {
    return op_scale(t, in[0], ((const FactorAttr *)attr)->factor);
}

/* The gradient reuses the memory of x, so x is a sum here instead of the input itself. */
static inline Tensor *build_choices(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    Tensor *x = op_choices(t, in[0], in[0]->dim[1] % 3 ? 1 : 3); /* 1: a single choice per sample */
    return op_add(t, x, x);
}

/* The rows that both calls select get gradients; the gradient of the other rows is 0. */
static inline Tensor *build_take_row(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_add(t, op_take_row(t, in[0], 1), op_take_row(t, in[0], in[0]->dim[0] - 1));
}

static inline Tensor *build_causal_conv(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_causal_conv(t, in[0], in[1], in[2], in[3]);
}

static inline Tensor *build_ssd_scan(Tape *t, Tensor **in, const void *attr) {
    return op_ssd_scan(t, &(ScanInputs){in[0], in[1], in[2], in[3], in[4], in[5]}, *(const ScanAttr *)attr);
}

static inline Tensor *build_gated_norm(Tape *t, Tensor **in, const void *attr) {
    return op_gated_norm(t, in[0], in[1], in[2], *(const GatedNormAttr *)attr);
}

static inline Tensor *build_gated_delta_rule(Tape *t, Tensor **in, const void *attr) {
    return op_gated_delta_rule(t, &(DeltaRuleInputs){in[0], in[1], in[2], in[3], in[4], in[5]},
                               *(const DeltaRuleAttr *)attr);
}

/* x [s,b,2hk*dk+hv*dv+2hv] is a projection whose parts are views: the rows that are convolved, alpha and beta. */
static inline Tensor *build_delta_net(Tape *t, Tensor **in, const void *attr) {
    Tensor *x = in[0];
    const int64_t mixed = in[1]->dim[0], h = in[2]->dim[0], s = x->dim[0], b = x->dim[1];
    Tensor *qkv = tape_view(t, x, 0, 3, (int64_t[]){s, b, mixed}, x->stride),
           *alpha = tape_view(t, x, mixed, 3, (int64_t[]){s, b, h}, x->stride),
           *beta = tape_view(t, x, mixed + h, 3, (int64_t[]){s, b, h}, x->stride);
    const DeltaRuleInputs rule = {.qkv = op_causal_conv(t, qkv, in[1], NULL, in[4]),
                                  .alpha = alpha,
                                  .beta = beta,
                                  .a_log = in[2],
                                  .dt_bias = in[3],
                                  .start = in[4]};
    return op_gated_delta_rule(t, &rule, *(const DeltaRuleAttr *)attr);
}

/* x [s,b,2h*p+2g*n+h] is the projection of a Mamba-2 layer, whose parts are views. The inputs are followed by
 * the weight of the convolution, then dt_bias, a_log, d and the norm's gain. */
static inline Tensor *build_mamba(Tape *t, Tensor **in, const void *attr) {
    const ScanAttr *a = attr;
    Tensor *x = in[0];
    const int64_t h = in[2]->dim[0], inner = h * a->head_dim, mixed = in[1]->dim[0], s = x->dim[0],
                  b = x->dim[1];
    Tensor *z = tape_view(t, x, 0, 3, (int64_t[]){s, b, inner}, x->stride),
           *xbc = tape_view(t, x, inner, 3, (int64_t[]){s, b, mixed}, x->stride),
           *dt = tape_view(t, x, inner + mixed, 3, (int64_t[]){s, b, h}, x->stride);
    const ScanInputs scan = {.x = op_causal_conv(t, xbc, in[1], NULL, NULL),
                             .dt = dt,
                             .dt_bias = in[2],
                             .a_log = in[3],
                             .d = in[4]};
    return op_gated_norm(t, op_ssd_scan(t, &scan, *a), z, in[5], (GatedNormAttr){a->groups, 1e-5});
}

static inline Tensor *build_gate(Tape *t, Tensor **in, const void *attr) {
    return op_gate(t, in[0], in[1], *(const GateAttr *)attr);
}

/* The first half of the heads of x [s,b,g,2r,d] is the gate of the second half. */
static inline Tensor *build_gate_views(Tape *t, Tensor **in, const void *attr) {
    Tensor *x = in[0];
    const int64_t r = x->dim[3] / 2, half[] = {x->dim[0], x->dim[1], x->dim[2], r, x->dim[4]};
    Tensor *z = tape_view(t, x, 0, 5, half, x->stride),
           *of = tape_view(t, x, r * x->dim[4], 5, half, x->stride);
    return op_gate(t, op_contiguous(t, of), z, *(const GateAttr *)attr);
}

static inline Tensor *build_softcap(Tape *t, Tensor **in, const void *attr) {
    return op_softcap(t, op_add(t, in[0], in[0]), ((const SoftcapAttr *)attr)->cap);
}

/* Makes the second half of the heads of x [s,b,g,2r,d] contiguous. */
static inline Tensor *build_contiguous(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    Tensor *x = in[0];
    const int64_t r = x->dim[3] / 2, d = x->dim[4], half[5] = {x->dim[0], x->dim[1], x->dim[2], r, d};
    Tensor *a = tape_view(t, x, 0, 5, half, x->stride), *b = tape_view(t, x, r * d, 5, half, x->stride);
    return op_add(t, op_add(t, op_contiguous(t, b), b), a);
}

static inline Tensor *build_add(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_add(t, in[0], in[1]);
}

static inline Tensor *build_add_itself(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    Tensor *twice = op_add(t, in[0], in[0]);
    return op_add(t, twice, in[0]);
}

/* x + dropout(linear(norm(x))) */
static inline Tensor *build_residual_block(Tape *t, Tensor **in, const void *attr) {
    Tensor *h = op_norm(t, in[0], in[1], in[2], *(const NormAttr *)attr);
    h = op_dropout(t, op_linear(t, h, &(LinearLayer){.w_oi = in[3]}), 0.25, hash_name("residual"));
    return op_add(t, in[0], h);
}

/* Optional inputs from index `first` on, in any order, are recognized by their type and shape: I64 [b,s] are
 * first keys, I64 [b] lengths, float [h] sinks, float [buckets,h] biases. */
static inline AttentionInputs attention_inputs(Tensor *q, Tensor *k, Tensor *v, Tensor **in, int first) {
    AttentionInputs x = {.q = q, .k = k, .v = v};
    for (int i = first; i < CASE_INPUTS; i++) {
        if (!in[i]) continue;
        Tensor **of_type[] = {&x.lengths, &x.first_key, &x.sink, &x.bias};
        *of_type[2 * (in[i]->dtype != I64) + in[i]->ndim - 1] = in[i];
    }
    return x;
}

/* Dropout depends on the indices of the samples in this run. */
static inline AttentionAttr attention_attr_of(Tape *t, const void *attr) {
    AttentionAttr a = *(const AttentionAttr *)attr;
    a.dropout.first_sample += tape_microbatch(t)->first_sample;
    return a;
}

/* b is used twice, so its gradient is a sum. */
static inline Tensor *build_join_heads(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_join_heads(t, op_join_heads(t, in[0], in[1]), in[1]);
}

static inline Tensor *build_attention(Tape *t, Tensor **in, const void *attr) {
    const AttentionInputs x = attention_inputs(in[0], in[1], in[2], in, 3);
    return op_attention(t, &x, attention_attr_of(t, attr), false);
}

static inline Tensor *build_attention_unfused(Tape *t, Tensor **in, const void *attr) {
    const AttentionInputs x = attention_inputs(in[0], in[1], in[2], in, 3);
    return op_attention(t, &x, attention_attr_of(t, attr), true);
}

/* qkv [s,b,g,r+2,d] is the packed projection of a model. Two attention ops use its keys and values. */
static inline Tensor *build_attention_packed(Tape *t, Tensor **in, const void *attr) {
    Tensor *x = in[0];
    const int64_t r = x->dim[3] - 2, d = x->dim[4];
    int64_t queries[5], one[5];
    memcpy(queries, x->dim, sizeof queries), memcpy(one, x->dim, sizeof one);
    queries[3] = r, one[3] = 1;
    Tensor *q = tape_view(t, x, 0, 5, queries, x->stride), *k = tape_view(t, x, r * d, 5, one, x->stride),
           *v = tape_view(t, x, (r + 1) * d, 5, one, x->stride);
    const AttentionInputs inputs = attention_inputs(q, k, v, in, 1);
    const AttentionAttr a = attention_attr_of(t, attr);
    return op_add(t, op_attention(t, &inputs, a, false), op_attention(t, &inputs, a, true));
}

static inline Tensor *build_rope(Tape *t, Tensor **in, const void *attr) {
    return op_rope(t, in[0], in[1], in[2], in[3], *(const RopeAttr *)attr);
}

/* x [s,b,g,r+2,d] is the packed projection of a model. One call rotates its queries and keys. */
static inline Tensor *build_rope_packed(Tape *t, Tensor **in, const void *attr) {
    Tensor *x = in[0];
    const int64_t r = x->dim[3] - 2, d = x->dim[4];
    int64_t both[5], queries[5], one[5];
    memcpy(both, x->dim, sizeof both), memcpy(queries, x->dim, sizeof queries),
        memcpy(one, x->dim, sizeof one);
    both[3] = r + 1, queries[3] = r, one[3] = 1;
    Tensor *v = tape_view(t, x, (r + 1) * d, 5, one, x->stride);
    Tensor *qk =
        op_rope(t, tape_view(t, x, 0, 5, both, x->stride), in[1], in[2], in[3], *(const RopeAttr *)attr);
    Tensor *q = tape_view(t, qk, 0, 5, queries, qk->stride), *k = tape_view(t, qk, r * d, 5, one, qk->stride);
    return op_attention(t, &(AttentionInputs){.q = q, .k = k, .v = v},
                        (AttentionAttr){.scale = 0.3, .window_left = -1}, false);
}

typedef struct RopeInPlaceCase {
    RopeAttr rope;
    int64_t groups, all; /* all: number of queries, key and value of a group */
} RopeInPlaceCase;

/* Like build_rope_packed, but in place, with x [s,b,groups*all*d]. A sum replaces the projection, because it
 * is overwritten. */
static inline Tensor *build_rope_in_place(Tape *t, Tensor **in, const void *attr) {
    const RopeInPlaceCase *c = attr;
    Tensor *x = op_rope_in_place(t, op_add(t, in[0], in[0]), c->groups, c->all, c->all - 1, in[1], in[2],
                                 in[3], c->rope);
    const int64_t d = x->dim[2] / (c->groups * c->all), r = c->all - 2;
    const int64_t stride[5] = {x->stride[0], x->stride[1], c->all * d, d, 1},
                  queries[5] = {x->dim[0], x->dim[1], c->groups, r, d},
                  one[5] = {x->dim[0], x->dim[1], c->groups, 1, d};
    return op_attention(t,
                        &(AttentionInputs){.q = tape_view(t, x, 0, 5, queries, stride),
                                           .k = tape_view(t, x, r * d, 5, one, stride),
                                           .v = tape_view(t, x, (r + 1) * d, 5, one, stride)},
                        (AttentionAttr){.scale = 0.3, .window_left = -1}, false);
}

/* The loss reuses the memory of the logits, so they are a sum here instead of the input itself. */
static inline Tensor *build_cross_entropy(Tape *t, Tensor **in, const void *attr) {
    return op_cross_entropy(t, op_add(t, in[0], in[0]), in[1], ((const LossAttr *)attr)->vocab);
}
