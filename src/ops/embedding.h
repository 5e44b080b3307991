/* Embedding lookup. */
#pragma once

#include "tape/tape.h"

/* id_bs I64 [b,s], each in [0, v); w_vh [v,h] -> [s,b,h] of w's type. */
Tensor *op_embedding(Tape *, Tensor *id_bs, Tensor *w_vh);
