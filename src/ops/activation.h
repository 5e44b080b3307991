/* Activations of the MLP. Megatron-LM core/fusions/fused_bias_gelu.py, fused_bias_swiglu.py. */
#ifndef ISOTRON_OPS_ACTIVATION_H
#define ISOTRON_OPS_ACTIVATION_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* Elementwise on contiguous x [...,f] -> same shape; SwiGLU takes [..., gate | up] to [..., f/2]. */
Tensor *op_activation(Tape *, Tensor *x, Activation);
/* Records that y [..., f] is the activation of x, which another op's kernel has computed on its way. */
void activation_record(Tape *, Tensor *x, Tensor *y, Activation);

#endif
