/* The logits of a model as an array of doubles. */
#ifndef ISOTRON_VALIDATE_LOGITS_H
#define ISOTRON_VALIDATE_LOGITS_H

#include "models/model.h"
#include "tape/tape.h"

/* Computes out [b, s, vocabulary], without padding, for tokens [b, s] at positions [b, s], both in host
 * memory, on one rank with the whole model. The trace, which may be NULL, is called for every op. The
 * microbatch is not recorded. */
void logits_compute(const Model *, const RunContext *, const MicrobatchContext *, const int64_t *tokens,
                    const int64_t *positions, int64_t b, int64_t s, TapeTrace *, void *trace_arg,
                    double *out);

#endif
