/* The router of a layer of experts. Megatron-LM core/transformer/moe/router.py TopKRouter. */
#ifndef ISOTRON_NN_ROUTER_H
#define ISOTRON_NN_ROUTER_H

#include "ops/router.h"
#include "param/param.h"

/* Three balancing losses, over a microbatch, each sample, and the step so far; and the loss of the logits'
 * size. */
typedef enum RouterLoss {
    ROUTER_LOSS_AUX,
    ROUTER_LOSS_SEQ_AUX,
    ROUTER_LOSS_GLOBAL_AUX,
    ROUTER_LOSS_Z,
    ROUTER_LOSSES
} RouterLoss;

typedef struct RouterSpec {
    const char *name; /* "decoder.layers.3.mlp.router" */
    int64_t hidden, experts, topk;
    RouteAttr route;
    bool bias;                        /* added to the scores that experts are chosen by */
    bool sinkhorn;                    /* in training experts are chosen by balanced scores */
    double jitter;                    /* 0: none */
    double loss_coeff[ROUTER_LOSSES]; /* 0: that loss is off */
    double init_std;
} RouterSpec;

typedef struct Router {
    RouterSpec spec;
    Param *weight, *bias; /* [experts, hidden]; [experts], a buffer, or NULL */
    uint64_t jitter_site;
    Tensor counters; /* F64, router_counters() elements; the caller's, zeroed before each step */
} Router;

Router router_new(Registry *, RouterSpec);
/* Elements of Router.counters; the last ROUTER_LOSSES are sums of the losses without their coefficients. */
int64_t router_counters(const RouterSpec *);
/* x_sbh [s,b,h] -> where its tokens go. While the tape records, counts tokens and adds the losses' values to
 * the counters, and the losses' gradients (times RunContext.aux_scale) to that of the logits. */
Routing router_forward(Tape *, const Router *, Tensor *x_sbh);
/* Moves the bias towards equal shares, by the tokens counted since the counters were zeroed. */
void router_update_bias(const Router *, Device *, double rate);
#endif
