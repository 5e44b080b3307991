/* Chooses a token for each position. */
#pragma once

#include "tape/tape.h"

/* Returns I64 [s,b,CHOSEN_WORDS]: a Chosen (kernels/choice.h) for each row of x [s,b,v], from the row's first n
 * elements. how: I64 [s*b,CHOICE_ROW_WORDS], a ChoiceRow for each row. The op has no gradient. */
Tensor *op_choose(Tape *, Tensor *x_sbv, Tensor *how, int64_t n);
