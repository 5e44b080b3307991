/* BERT's pooler: a dense layer and tanh, applied to the first position. The pooler corresponds to Megatron-LM
 * core/models/bert/pooler.py. */
#pragma once

#include "nn/linear.h"

/* Registers a linear layer with a bias. The layer is not split over tensor-parallel ranks. `invariant` states
 * that all tensor-parallel ranks have equal inputs. */
Linear whole_layer(Registry *, const char *name, int64_t in, int64_t out, double init_std, bool invariant);
Linear pooler_new(Registry *, int64_t hidden, double init_std);
/* h_sbh is V along the sequence with sequence parallelism, otherwise I. Returns [1,b,h], I. With context
 * parallelism, only the first rank holds a sample's first position. The other ranks compute values that losses
 * must not use. */
Tensor *pooler_forward(Tape *, const Linear *, Tensor *h_sbh);
