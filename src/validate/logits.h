/* The logits of a model as an array of doubles. */
#ifndef ISOTRON_VALIDATE_LOGITS_H
#define ISOTRON_VALIDATE_LOGITS_H

#include "models/model.h"
#include "tape/tape.h"

/* Computes out [b, s, vocabulary], without padding, of a batch with the fields that the model reads (those of
 * its losses may be missing), on one rank with the whole model. The trace, which may be NULL, is called for every
 * op. The microbatch is not recorded. */
void logits_compute(const Model *, const RunContext *, const MicrobatchContext *, const Batch *, TapeTrace *,
                    void *trace_arg, double *out);

#endif
