/* The ops for Mamba-2. kernels/cpu/{causal_conv,ssd_scan,gated_norm}.c contain the formulas. */
#pragma once

#include "tape/tape.h"

/* Convolves each channel of x [s,b,c] with w [c,k], adds bias [c], and applies SiLU. Tokens before a
 * document's start (I64 [b,s], or NULL) count as 0. x may be a view whose rows are contiguous. */
Tensor *op_causal_conv(Tape *, Tensor *x, Tensor *w, Tensor *bias, Tensor *start);

typedef struct ScanInputs {
    Tensor *x;                   /* [s,b,h*p+2*g*n]: the heads' inputs, then B and C of each group */
    Tensor *dt;                  /* [s,b,h]; may be a view whose rows are contiguous */
    Tensor *dt_bias, *a_log, *d; /* [h] */
    Tensor *start;               /* as in op_causal_conv */
} ScanInputs;
/* Returns y [s,b,h*p]. */
Tensor *op_ssd_scan(Tape *, const ScanInputs *, ScanAttr);

/* Do the same as op_causal_conv and op_ssd_scan during generation, where the tokens of several requests form one stream
 * (kernels/ops.def). `slot` and `position` are I64. The op reads and changes the slots of `state`. It has no
 * gradient. */
Tensor *op_stream_conv(Tape *, Tensor *x, Tensor *w, Tensor *bias, Tensor *slot, Tensor *position,
                       Tensor *state);
Tensor *op_stream_scan(Tape *, const ScanInputs *, ScanAttr, Tensor *slot, Tensor *position, Tensor *state);

/* Returns the RMSNorm of x SiLU(z) in each group of channels. x [s,b,c] is contiguous; z may be a view whose
 * rows are contiguous. */
Tensor *op_gated_norm(Tape *, Tensor *x, Tensor *z, Tensor *gain, GatedNormAttr);
