/* An MoE layer's router, like TopKRouter in Megatron-LM core/transformer/moe/router.py. */
#pragma once

#include "ops/router.h"
#include "param/state.h"

/* The balancing losses (over a microbatch, each sample, and the step so far), and the z-loss, which keeps logits
 * small. */
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
    bool linear_bias;    /* whether the logits have a trained bias */
    bool bias;           /* whether a bias is added to the scores, but only to choose the experts */
    bool quantile;       /* whether a bias computed from quantiles is added to the logits */
    double ema;          /* weight of the old bias when the bias is updated from quantiles */
    bool sinkhorn;       /* whether Sinkhorn-balanced scores determine the experts in training */
    double jitter;       /* 0 means no jitter */
    RandomLogits random; /* how the routing is randomized, for benchmarks */
    double random_std;
    double bias_rate;                 /* how much the bias changes per step */
    double loss_coeff[ROUTER_LOSSES]; /* 0 means that the loss is off */
    double init_std;
} RouterSpec;

typedef struct Router {
    const RouterSpec *spec;
    Param *weight, *linear_bias; /* [experts, hidden], and [experts] or NULL */
    Param *bias;                 /* [experts], a buffer, or NULL */
    uint64_t jitter_site, random_site;
    Tensor *counters; /* F64 [router_counters()], from the registry (state_counters) */
} Router;

/* Registers a router's parameters. `self` must not move, because the registry keeps a pointer to a router that
 * has a bias. At the end of a step, the bias changes by bias_rate, so that experts with few tokens will receive
 * more tokens. With `quantile`, the new bias is computed from the mean of the biases that would have balanced
 * each of the step's microbatches. */
void router_init(Router *self, Registry *, const char *name, const RouterSpec *, Tensor *counters);
/* Returns the number of counters of a router with the given number of experts. The last ROUTER_LOSSES counters are sums
 * of the losses before multiplication by their coefficients. */
int64_t router_counters(int64_t experts);
/* Returns the sum of a loss since the start of the step. `counters` is a copy of the router's counters in host
 * memory. */
double router_loss_sum(const double *counters, int64_t experts, int loss);
/* Routes the tokens of x_sbh [s,b,h]. While the tape records, the router counts tokens, adds the losses to the
 * counters, and adds the losses' gradients times MicrobatchContext.aux_scale to the logits' gradient. */
Routing router_forward(Tape *, const Router *, Tensor *x_sbh);
