/* A smooth bound on the logits (Gemma 2, 2024: final_logit_softcapping). */
#pragma once

#include "tape/tape.h"

/* Returns cap * tanh(x / cap). x must be contiguous, and no other op may read it, because its gradient
 * overwrites it. Returns x itself if cap is 0. */
Tensor *op_softcap(Tape *, Tensor *x, double cap);
