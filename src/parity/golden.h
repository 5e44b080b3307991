/* A golden case on disk: an independent implementation's results for a few training steps. */
#pragma once

#include "base/err.h"
#include "ckpt/safetensors.h"
#include "config/config.h"
#include "data/data.h"
#include "nn/feed.h"
#include "nn/router.h"

enum { GOLDEN_LOSSES = MODEL_LOSSES + ROUTER_LOSSES };

typedef struct GoldenStep {
    double loss, grad_norm, clip, lr;
    double named[GOLDEN_LOSSES]; /* the losses in the order of Golden.loss_names */
} GoldenStep;

typedef struct Golden {
    char *name; /* the last component of the path */
    Safetensors *init, *batches, *oracle;
    GoldenStep *steps; /* [n_steps] */
    int64_t n_steps;
    char *loss_names[GOLDEN_LOSSES]; /* names of the individual losses in curve.json */
    int n_losses;
    int64_t samples; /* number of samples per step */
    /* the samples of all steps; a field that the file lacks has the value that batch_reset sets */
    Batch all;
    const char *name_of[FIELDS]; /* name of the tensor that contains the field, or NULL if there is none */
    bool shifted;                /* whether labels are the next tokens */
} Golden;

/* Reads and checks everything except run.conf. If the case is incomplete, returns a user error that names the
 * missing part. */
Err golden_open(const char *dir, Golden **);
void golden_close(Golden *);
/* Sets the options that run.conf omits: the sizes that follow from the case's tensors (vocab-size, seq-length,
 * batch sizes, train-iters), and the oracle's conventions (loss per token, no dropout), which differ from
 * Megatron-LM's defaults. For a T5 model without scaled logits, the oracle may have tied the output layer
 * (hf_config_fit). */
void golden_complete(const Golden *, Config *);
/* Checks that the batches have exactly the fields that the model described by the options reads, and that
 * token ids and masks are valid. */
Err golden_check(const Golden *, const Config *);
/* Reports an error for each option in the last command line that sets the number of steps, because the case sets this
 * number. */
void golden_refuse(Args *);
/* Loads those samples of a step that batch->indices lists. */
void golden_batch(const Golden *, int64_t step, Batch *);
