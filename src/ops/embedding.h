/* Looks up token embeddings. */
#pragma once

#include "tape/tape.h"

/* Returns [s,b,h] in w's type. id_bs is I64 [b,s] with ids in [0, v), and w_vh is [v,h]. */
Tensor *op_embedding(Tape *, Tensor *id_bs, Tensor *w_vh);
