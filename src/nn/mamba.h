/* A Mamba-2 layer (Dao and Gu, 2024), like Megatron-LM core/ssm/mamba_mixer.py. in_proj computes z, x, B, C and dt. x, B
 * and C pass through a causal convolution. The scan's output is multiplied by SiLU(z) and normalized in groups of
 * channels. Tensor-parallel ranks divide the groups, with their heads. */
#pragma once

#include "nn/branch.h"
#include "nn/linear.h"

typedef struct MambaSpec {
    int64_t hidden, heads, taps;
    ScanAttr scan;  /* `groups` counts the groups on all ranks */
    double epsilon; /* of the norm */
    double in_init_std, out_init_std;
    QuantSpec quant;
} MambaSpec;

typedef struct Mamba {
    const MambaSpec *spec;
    Linear in, out;
    Param *conv, *conv_bias;    /* [channels, taps], [channels]: the channels of x, B and C */
    Param *dt_bias, *a_log, *d; /* [heads] */
    Param *gain;                /* [channels of x] */
} Mamba;

/* The branch's module is a Mamba, and its spec is a MambaSpec. */
extern const BranchOps mamba_branch;
