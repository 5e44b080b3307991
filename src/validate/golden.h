/* A golden case on disk: what an independent implementation computed for a few training steps. */
#ifndef ISOTRON_VALIDATE_GOLDEN_H
#define ISOTRON_VALIDATE_GOLDEN_H

#include "base/err.h"
#include "ckpt/safetensors.h"
#include "config/config.h"
#include "data/data.h"

typedef struct GoldenStep {
    double loss, grad_norm, clip, lr; /* NaN: the case does not say */
} GoldenStep;

typedef struct Golden {
    char *name; /* last component of the path */
    Safetensors *init, *batches, *oracle;
    GoldenStep *steps; /* [n_steps] */
    int64_t n_steps;
    const int64_t *tokens;  /* [n_steps, samples, seq + 1] */
    const float *loss_mask; /* [n_steps, samples, seq]; NULL: all ones */
    int64_t samples, seq;
} Golden;

/* Reads and checks everything but run.conf; a case that is not whole is a user error that says what is
 * missing. */
Err golden_open(const char *dir, Golden **);
void golden_close(Golden *);
/* What run.conf leaves out: sizes that the case's tensors show (vocab-size, seq-length, batch sizes,
 * train-iters), and the oracle's conventions, which are not Megatron-LM's defaults: loss per token, no
 * dropout. */
void golden_complete(const Golden *, Config *);
/* The samples of a step that batch->indices names. */
void golden_batch(const Golden *, int64_t step, Batch *);

#endif
