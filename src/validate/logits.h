/* A model's logits as plain numbers. */
#ifndef ISOTRON_VALIDATE_LOGITS_H
#define ISOTRON_VALIDATE_LOGITS_H

#include "models/gpt.h"
#include "tape/tape.h"

/* Of tokens [b, s] at positions [b, s], both in the host's memory, on the one rank that has the whole model:
 * out [b, s, vocabulary], without padding. The trace sees every op; NULL: nobody does. */
void logits_compute(const Gpt *, const RunContext *, const int64_t *tokens, const int64_t *positions,
                    int64_t b, int64_t s, TapeTrace *, void *trace_arg, double *out);

#endif
