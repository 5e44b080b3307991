/* Dropout and jitter. */
#ifndef ISOTRON_OPS_DROPOUT_H
#define ISOTRON_OPS_DROPOUT_H

#include "tape/tape.h"

/* x_sbh [s,b,h], a whole sequence -> same shape; x itself if rate is 0 or the run is not training. Draws
 * depend on the run's seed, `site` (the hash of what drops) and the global element index only. */
Tensor *op_dropout(Tape *, Tensor *x_sbh, double rate, uint64_t site);
/* The same with factors uniform in (1 - rate, 1 + rate). */
Tensor *op_jitter(Tape *, Tensor *x_sbh, double rate, uint64_t site);

#endif
