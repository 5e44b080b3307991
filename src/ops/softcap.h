/* A smooth bound of the logits. Gemma 2 (2024), final_logit_softcapping. */
#pragma once

#include "tape/tape.h"

/* cap * tanh(x / cap) of x, a contiguous tensor that no other op reads, because its memory becomes its
 * gradient; x itself if cap is 0. */
Tensor *op_softcap(Tape *, Tensor *x, double cap);
