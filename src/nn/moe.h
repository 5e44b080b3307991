/* An MoE layer consists of the router, the dispatch, the experts and the combine. With a latent width, tokens are
 * projected down before the dispatch, and up after the combine. The layer corresponds to Megatron-LM
 * core/transformer/moe/moe_layer.py, experts.py and shared_experts.py. Routed experts use the expert view of the mesh
 * (ops/expert_parallel.h); the router and the shared expert use the dense view. */
#pragma once

#include "nn/mlp.h"
#include "nn/router.h"
#include "ops/dispatch.h"

typedef struct MoeSpec {
    RouterSpec router;
    int64_t ffn, shared_ffn; /* if shared_ffn is 0, there is no shared expert */
    bool bias;               /* whether the linear layers outside the shared expert have biases */
    bool shared_gate;
    bool recompute_shared,
        recompute_activation; /* whether the backward pass recomputes the shared expert, or the
                                                  * activation of the routed experts */
    int64_t latent;           /* width of the routed experts' input and output; 0 means `hidden` */
    /* whether the probabilities multiply the experts' input, instead of the second GEMM's input */
    bool probs_on_input;
    ActivationAttr activation, shared_activation;
    double fc1_init_std, fc2_init_std;
    double capacity_factor; /* 0 means dropless */
    bool pad, drop_by_position;
    /* whether expert-parallel ranks use an all-to-all instead of an all-gather and a reduce-scatter */
    bool all_to_all;
    QuantSpec quant; /* for all linear layers except the router and the shared expert's gate */
} MoeSpec;

typedef struct Moe {
    const MoeSpec *spec;
    Router router;
    Param *fc1, *fc2; /* all experts' weights: [experts * (2 *) ffn, width] and [experts * width, ffn] */
    const Quantiser *fc1_quantiser, *fc2_quantiser;
    Param *fc1_bias, *fc2_bias;    /* [experts * (2 *) ffn] and [experts * width], or NULL */
    Linear to_latent, from_latent; /* [latent, hidden] and [hidden, latent] */
    Mlp shared;
    Param *shared_gate; /* [1, hidden]; NULL if the shared expert has no gate */
} Moe;

/* The branch's module is a Moe, and its spec is a MoeSpec. The branch's counters are the router's counters. */
extern const BranchOps moe_branch;
