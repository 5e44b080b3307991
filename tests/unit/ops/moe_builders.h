/* Functions that build the MoE rows of tapes.def. */
#pragma once

#include "unit/ops/case.h"

#include "ops/activation.h"
#include "ops/dispatch.h"
#include "ops/dropout.h"
#include "ops/grouped.h"
#include "ops/router.h"

typedef struct MoeCase {
    int64_t k;
    RouteAttr route;
    DispatchAttr dispatch;
    RouterLossAttr loss;
    bool per_sample; /* the loss */
} MoeCase;

static inline Tensor *build_jitter(Tape *t, Tensor **in, const void *attr) {
    return op_jitter(t, in[0], ((const DropoutAttr *)attr)->rate, hash_name("jitter"));
}

static inline Tensor *build_random_logits(Tape *t, Tensor **in, const void *attr) {
    const RandomLogitsAttr *a = attr;
    return op_random_logits(t, in[0], a->kind, a->std, hash_name("random"));
}

static inline Tensor *build_gate_logits(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_gate_logits(t, in[0], in[1], in[2]);
}

/* The inputs are the logits and, optionally, the bias [e]. */
static inline Tensor *build_route(Tape *t, Tensor **in, const void *attr) {
    const MoeCase *m = attr;
    return op_route(t, in[0], NULL, in[1], m->k, m->route).probs;
}

static inline Tensor *build_sinkhorn(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_sinkhorn(t, in[0]);
}

static inline Tensor *build_router_loss(Tape *t, Tensor **in, const void *attr) {
    const MoeCase *m = attr;
    if (m->loss.kind == ROUTER_Z) return op_router_loss(t, in[0], NULL, m->loss);
    const Routing r = op_route(t, in[0], NULL, NULL, m->k, (RouteAttr){.scaling = 1});
    Tensor *count = tape_tensor(t, F64, 2, (int64_t[]){m->per_sample ? in[0]->dim[1] : 1, in[0]->dim[2]});
    op_expert_count(t, &r, count);
    return op_router_loss(t, in[0], count, m->loss);
}

static inline Tensor *build_scale_rows(Tape *t, Tensor **in, const void *attr) {
    return op_scale_rows(t, in[0], in[1], ((const ScaleAttr *)attr)->sigmoid);
}

/* Builds an MoE layer from x [s,b,h], logits [s,b,e], fc1 [e*2f,h], fc2 [e*h,f] and, optionally, biases [e*2f]
 * and [e*h]. */
static inline Tensor *build_experts(Tape *t, Tensor **in, const void *attr) {
    const MoeCase *m = attr;
    Routing r = op_route(t, in[1], NULL, NULL, m->k, m->route);
    const Dispatch d = op_dispatch(t, &r, in[1]->dim[2], m->dispatch);
    Tensor *h =
        op_grouped_linear(t, op_permute(t, in[0], &d), (GroupedLayer){in[2], .bias_eo = in[4]}, d.offset);
    Tensor *probs = op_permute_probs(t, r.probs, &d);
    h = op_scaled_activation(t, h, (ActivationAttr){.kind = ACT_SWIGLU}, probs);
    return op_unpermute(t, op_grouped_linear(t, h, (GroupedLayer){in[3], in[5], probs, NULL}, d.offset), &d);
}
