/* A Gated DeltaNet layer (Yang et al., 2025), like Megatron-LM core/ssm/gated_delta_net. in_proj computes q and k of the
 * key heads, v, z, beta and alpha of the value heads. q, k and v pass through a causal convolution. The output of each
 * head of the delta rule is normalized, then multiplied by SiLU(z). Tensor-parallel ranks divide the key heads, with
 * their value heads. */
#pragma once

#include "nn/branch.h"
#include "nn/linear.h"
#include "nn/norm.h"

typedef struct DeltaNetSpec {
    int64_t hidden, heads, taps; /* heads: number of value heads */
    DeltaRuleAttr rule;          /* `key_heads` counts the key heads on all ranks */
    NormAttr norm;
    bool recompute_norm; /* whether the backward pass recomputes the gated norm */
    double in_init_std, out_init_std;
    QuantSpec quant;
} DeltaNetSpec;

typedef struct DeltaNet {
    const DeltaNetSpec *spec;
    Linear in, out;
    Param *conv;            /* [channels, taps]: the channels of q, k and v */
    Param *dt_bias, *a_log; /* [value heads] */
    Norm norm;              /* of a value head */
} DeltaNet;

/* The branch's module is a DeltaNet, and its spec is a DeltaNetSpec. */
extern const BranchOps delta_net_branch;
