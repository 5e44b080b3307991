/* The router of a layer of experts. Megatron-LM core/transformer/moe/router.py TopKRouter. */
#ifndef ISOTRON_NN_ROUTER_H
#define ISOTRON_NN_ROUTER_H

#include "ops/router.h"
#include "param/state.h"

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
    int64_t hidden, experts, topk;
    RouteAttr route;
    bool bias;                        /* added to the scores that experts are chosen by */
    bool sinkhorn;                    /* in training experts are chosen by balanced scores */
    double jitter;                    /* 0: none */
    double bias_rate;                 /* how far a step moves the bias */
    double loss_coeff[ROUTER_LOSSES]; /* 0: that loss is off */
    double init_std;
} RouterSpec;

typedef struct Router {
    const RouterSpec *spec;
    Param *weight, *bias; /* [experts, hidden]; [experts], a buffer, or NULL */
    uint64_t jitter_site;
    Tensor *counters; /* F64 [router_counters()] of the registry (state_counters) */
} Router;

/* `self` must stay where it is: with a bias it is a state of the registry, whose step ends by moving the bias
 * towards equal shares, by the tokens counted in the step. */
void router_init(Router *self, Registry *, const char *name, const RouterSpec *, Tensor *counters);
/* Elements of the counters of a router over so many experts; the last ROUTER_LOSSES are sums of the losses
 * without their coefficients. */
int64_t router_counters(int64_t experts);
/* The sum of a loss since the step began; `counters` is a copy of a router's that the host sees. */
double router_loss_sum(const double *counters, int64_t experts, int loss);
/* x_sbh [s,b,h] -> where its tokens go. While the tape records, counts tokens and adds the losses' values to
 * the counters, and the losses' gradients (times MicrobatchContext.aux_scale) to that of the logits. */
Routing router_forward(Tape *, const Router *, Tensor *x_sbh);

#endif
