/* Model FLOPs of a training step. Megatron-LM training.py num_floating_point_operations (causal attention
 * counted half, of the experts those that a token goes to, the router not at all). */
#ifndef ISOTRON_TRAIN_FLOPS_H
#define ISOTRON_TRAIN_FLOPS_H

#include "config/config.h"

/* Forward and backward of `samples` sequences of --seq-length. */
double flops_per_step(const Config *, const Derived *, int64_t samples);

#endif
