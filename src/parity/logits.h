/* Computes a model's logits as an array of doubles. */
#pragma once

#include "models/model.h"
#include "tape/tape.h"

/* Computes out [b, s, vocabulary] (without padding) on one rank with the full model. If the model has a task,
 * out is [b, classes], or [b] with one logit per choice. The batch must have all fields that the model reads,
 * except fields that only losses read. The trace, which may be NULL, is called for every op. The forward pass
 * is not recorded for a backward pass. */
void logits_compute(const Model *, const RunContext *, const MicrobatchContext *, const Batch *, TapeTrace *,
                    void *trace_arg, double *out);
