/* The linear layers of all experts. Megatron-LM core/transformer/moe/experts.py. */
#pragma once

#include "tape/tape.h"

/* x_r1i [r,1,i], rows grouped by expert: rows offset[e] to offset[e+1] belong to e, I64 [e+1]; w_eoi [e*o,i]
 * -> [r,1,o], with zeros after the last expert's rows. GEMMs have a fixed order in batch-invariant mode. */
Tensor *op_grouped_linear(Tape *, Tensor *x_r1i, Tensor *w_eoi, Tensor *offset);
