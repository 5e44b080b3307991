/* Activations of the MLP. Megatron-LM core/fusions/fused_bias_gelu.py, fused_bias_swiglu.py. */
#ifndef ISOTRON_OPS_ACTIVATION_H
#define ISOTRON_OPS_ACTIVATION_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* Elementwise on contiguous x [...,f] -> same shape; SwiGLU takes [..., gate | up] to [..., f/2]. */
Tensor *op_activation(Tape *, Tensor *x, Activation);

#endif
