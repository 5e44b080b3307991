/* MLP activations, like Megatron-LM core/fusions/fused_bias_gelu.py and fused_bias_swiglu.py. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* Applies the activation to each element of contiguous x [...,f]. The result has the shape of x. A gated
 * activation maps [..., gate | up] to [..., f/2]. Only SwiGLU and quick GeGLU can have limits and an
 * offset. */
Tensor *op_activation(Tape *, Tensor *x, ActivationAttr);
/* Like op_activation followed by op_scale_rows with scale [...,1], with bitwise equal results. The tape does not keep
 * the unscaled activation, which the backward pass computes again from x. */
Tensor *op_scaled_activation(Tape *, Tensor *x, ActivationAttr, Tensor *scale);
/* An activation that a linear layer's kernel has computed together with its GEMM. Only one op may read the
 * activation, and the reading op also records it on the tape. */
typedef struct Activated {
    /* act is the activation of pre; if pre is NULL, the activation is already on the tape */
    Tensor *act, *pre;
    Activation kind; /* a kind without a gate, unless pre is NULL */
} Activated;

/* Records that y [..., f] is the activation of x. If `through_reader` is true, the backward pass of the op that
 * reads y computes the gradient of x, and the activation's node has no backward function. */
void activation_record(Tape *, Tensor *x, Tensor *y, Activation, bool through_reader);
