/* A golden case on disk: the results of an independent implementation for a few training steps. */
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
    double named[GOLDEN_LOSSES]; /* in the order of Golden.loss_names */
} GoldenStep;

typedef struct Golden {
    char *name; /* last component of the path */
    Safetensors *init, *batches, *oracle;
    GoldenStep *steps; /* [n_steps] */
    int64_t n_steps;
    char *loss_names[GOLDEN_LOSSES]; /* names of single losses, which curve.json may have */
    int n_losses;
    int64_t samples; /* of a step */
    Batch all; /* of all steps, with every field; those that the file lacks have the values of batch_reset */
    const char *name_of[FIELDS]; /* the tensor that a field is read from; NULL: none */
    bool shifted;                /* labels are the next tokens */
} Golden;

/* Reads and checks everything but run.conf. An incomplete case is a user error that names the missing part. */
Err golden_open(const char *dir, Golden **);
void golden_close(Golden *);
/* Sets the options that run.conf omits: sizes given by the case's tensors (vocab-size, seq-length, batch
 * sizes, train-iters), and the oracle's conventions, which differ from Megatron-LM's defaults: loss per
 * token, no dropout. The oracle of a T5 without scaled logits may have tied its output layer (hf_config_fit). */
void golden_complete(const Golden *, Config *);
/* Whether the batches have the fields that the model of the options reads, and no others, and their ids and masks. */
Err golden_check(const Golden *, const Config *);
/* Problems for options of the last command line about the length of the run, which is the case's. */
void golden_refuse(Args *);
/* Loads the samples of a step given by batch->indices. */
void golden_batch(const Golden *, int64_t step, Batch *);
