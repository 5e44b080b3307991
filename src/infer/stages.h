/* Runs a generation forward pass over the stages of a pipeline. Only one pass is in progress at a time: while
 * one stage computes, the others wait. Messages pass through host memory, because a GPU must not wait for a
 * message while another rank of the process loads kernels. */
#pragma once

#include "models/model.h"

/* The token counts of a pass. */
typedef struct PassTokens {
    int64_t stream, encoder; /* tokens in the stack that generates, and in the encoder before it */
    int64_t chosen;          /* number of elements in Feed.chosen */
} PassTokens;

/* Runs all of this rank's stages on an open tape. With a depth k, runs only the stack at this depth
 * (model_forward_ahead); the model must then have only one stage. Returns the logits [chosen, 1, padded vocabulary],
 * which are complete and equal on all tensor- and pipeline-parallel ranks. All tensor- and pipeline-parallel ranks must
 * call this function with the same feed. */
Tensor *stages_forward(Tape *, const Model *, int depth, const Feed *, const PassTokens *);
