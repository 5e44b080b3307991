/* A layer's feed-forward branch: fc1, activation, fc2. As in Megatron-LM core/transformer/mlp.py, the rows of fc1 are
 * [gate; up] if the activation is gated. */
#pragma once

#include "kernels/attr.h"
#include "nn/branch.h"
#include "nn/linear.h"
#include "ops/xielu.h"

typedef struct MlpSpec {
    int64_t hidden, ffn;
    ActivationAttr activation;
    bool bias;
    double fc1_init_std, fc2_init_std;
    QuantSpec quant;
} MlpSpec;

typedef struct Mlp {
    Linear fc1, fc2;
    ActivationAttr activation;
    XieluNumbers xielu; /* only with ACT_XIELU */
} Mlp;

Mlp mlp_new(Registry *, const char *name, const MlpSpec *);
Tensor *mlp_forward(Tape *, const Mlp *, Tensor *x_sbh);
/* mlp_hidden and mlp_output compute the two halves of mlp_forward. */
Activated mlp_hidden(Tape *, const Mlp *, Tensor *x_sbh);
Tensor *mlp_output(Tape *, const Mlp *, Activated hidden_sbf);
/* Returns the number of [hidden, ffn] matrices: 3 with a gated activation, otherwise 2. */
int mlp_matrices(Activation);

/* The branch's module is an Mlp, and its spec is an MlpSpec. */
extern const BranchOps mlp_branch;
