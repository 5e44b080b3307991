/* A forward pass of generation over the stages of a pipeline. One pass is in flight: while a stage computes, the others
 * wait. Messages pass through host memory, so that no GPU waits for a message while another rank of the process loads
 * kernels. */
#pragma once

#include "models/model.h"

/* The numbers of tokens of a pass. */
typedef struct PassTokens {
    int64_t stream, encoder; /* numbers of tokens of the stack that generates, and of the encoder before it */
    int64_t chosen;          /* number of elements of Feed.chosen */
} PassTokens;

/* Runs all stages of this rank on an open tape or, with a depth k, only the stack of this depth (model_forward_ahead),
 * for which the model must be in one stage. Returns the logits [chosen, 1, padded vocabulary], which are complete and
 * equal on all tensor- and pipeline-parallel ranks. All these ranks must call it with the same feed. */
Tensor *stages_forward(Tape *, const Model *, int depth, const Feed *, const PassTokens *);
