/* Dropout and jitter. */
#pragma once

#include "tape/tape.h"

/* Applies dropout to x_sbh [s,b,h]. Returns x itself during an evaluation, or if the rate is 0. The random numbers
 * depend only on the run's seed, `site` (a hash of the names of the layer and the op) and the element's global
 * index. */
Tensor *op_dropout(Tape *, Tensor *x_sbh, double rate, uint64_t site);
/* Does the same as op_dropout for x [1,b,h], which has one vector per sample and is equal on all ranks that share a
 * sequence. */
Tensor *op_dropout_samples(Tape *, Tensor *x_1bh, double rate, uint64_t site);
/* Like op_dropout, but each factor is uniform in (1 - rate, 1 + rate). */
Tensor *op_jitter(Tape *, Tensor *x_sbh, double rate, uint64_t site);
