/* The logits of a model as an array of doubles. */
#pragma once

#include "models/model.h"
#include "tape/tape.h"

/* Computes out [b, s, vocabulary], without padding, on one rank with the whole model. With a task, out is [b, classes],
 * or [b] with a logit for each choice. The batch has the fields that the model reads; those of its losses may be
 * missing. The trace, which may be NULL, is called for every op. The microbatch is not recorded. */
void logits_compute(const Model *, const RunContext *, const MicrobatchContext *, const Batch *, TapeTrace *,
                    void *trace_arg, double *out);
