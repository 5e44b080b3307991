/* The op for gated DeltaNet. kernels/cpu/gated_delta_rule.c contains the formulas. */
#pragma once

#include "tape/tape.h"

typedef struct DeltaRuleInputs {
    Tensor *qkv;             /* [s,b,2*hk*dk+hv*dv]: q and k of each key head, then v of each value head */
    Tensor *alpha, *beta;    /* [s,b,hv]; may be views whose rows are contiguous */
    Tensor *a_log, *dt_bias; /* [hv] */
    Tensor *start;           /* I64 [b,s]: the start of each token's document, or NULL */
} DeltaRuleInputs;
/* Returns y [s,b,hv*dv]. */
Tensor *op_gated_delta_rule(Tape *, const DeltaRuleInputs *, DeltaRuleAttr);

/* Does the same as op_gated_delta_rule during generation, where the tokens of several requests form one stream
 * (kernels/ops.def). `slot` and `position` are I64. The op reads and changes the slots of `state`. It has no
 * gradient. */
Tensor *op_stream_delta_rule(Tape *, const DeltaRuleInputs *, DeltaRuleAttr, Tensor *slot, Tensor *position,
                             Tensor *state);
