/* Activations of the MLP. Megatron-LM core/fusions/fused_bias_gelu.py, fused_bias_swiglu.py. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* Applies the activation to each element of contiguous x [...,f] -> same shape. A gated activation maps [...,
 * gate | up] to [..., f/2]. Only SwiGLU and quick GeGLU can have limits and an offset. */
Tensor *op_activation(Tape *, Tensor *x, ActivationAttr);
/* An activation that the kernel of a linear layer has computed together with its GEMM. The op that reads it, which must
 * be the only one, also records it. */
typedef struct Activated {
    Tensor *act, *pre; /* act is the activation of pre; if pre is NULL, the activation is already on the
                          tape */
    Activation kind;   /* not gated, unless pre is NULL */
} Activated;

/* Records that y [..., f] is the activation of x. With `through_reader` the backward of the op that reads y
 * computes the gradient of x, and this node has no backward. */
void activation_record(Tape *, Tensor *x, Tensor *y, Activation, bool through_reader);
