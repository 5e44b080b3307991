/* A model on one rank: its position in the layout, its device and its parameters. Training adds gradients, an
 * optimizer and progress (train/trainer.h). Generation adds a cache (infer/generate.h). */
#pragma once

#include <stdio.h>

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "models/model.h"
#include "pipeline/layout.h"
#include "tape/tape.h"

/* How a model is used. With MODEL_COMPUTES, parameters have values but no gradients, and each data-parallel
 * rank holds all parameters. */
typedef enum ModelUse { MODEL_COMPUTES, MODEL_TRAINS } ModelUse;

typedef struct ModelRun {
    const Config *config; /* borrowed, like comm */
    Comm *comm;           /* NULL if there is only one rank */
    Layout layout;
    PipelineLayout pipeline;
    RunContext context; /* contains a pointer to `layout`, so the ModelRun must not be moved */
    Device *device;     /* owned, but not freed by model_run_free */
    Model *model;
    Arena *arena; /* owns the pipeline's stages */
} ModelRun;

/* Returns the layout that the options describe for one rank. */
Layout model_run_layout(const Config *, int rank, int world);
/* Allocates the parameters and sets them to 0. The pipeline options must be valid (pipeline_layout). Takes ownership of
 * the device. comm may be NULL. */
void model_run_new(ModelRun *out, const Config *, Comm *, Device *, ModelUse);
/* Frees everything except the device. */
void model_run_free(ModelRun *);
/* Opens a device, and loads the model given by --load as a MODEL_COMPUTES model. Returns a user error if there
 * is no checkpoint, if the checkpoint contains a different model, or if there is too little memory. If an error
 * occurs, the device is closed. All ranks must call this function, and all ranks get the same error. comm may
 * be NULL. */
Err model_run_open(ModelRun *out, const Config *, Comm *);
/* Like model_run_open, but the parameters are periodic random numbers, for benchmarks. The parameters have the type in
 * which the model computes; this type must not be FP8. */
Err model_run_open_random(ModelRun *out, const Config *, Comm *);
void model_run_close(ModelRun *);
/* Replaces the parameters of a MODEL_COMPUTES model with those in the checkpoint `path`. Tensors keep their
 * addresses. Returns a user error if there is no intact checkpoint of the same model, or if there is too little
 * memory. The checkpoint's shapes and hashes are checked first, so an error leaves all parameters unchanged.
 * All ranks must call this function, and all ranks get the same error. */
Err model_run_reload(ModelRun *, const char *path);
/* Like model_run_open, but borrows an open device, unless the device is NULL. Close the run with model_run_free. */
Err model_run_load(ModelRun *out, const Config *, Comm *, Device *);

/* Returns the number of samples per forward pass for a batch of `samples` samples. The result is `samples` or,
 * with --batch-invariant-mode, 1 (or the number of choices for one question). If a batch-invariant pass had
 * more samples, a gradient could depend on how samples are grouped, because the gradient of a tied embedding
 * adds the sums of two ops. */
int64_t model_run_together(const ModelRun *, int64_t samples);
/* Returns the number of tokens in a forward pass on this rank. */
int64_t model_run_tokens(const ModelRun *);
StateContext model_run_state(const ModelRun *, bool training);
/* Updates the state that is derived from the parameters (FP8 weights) for a training step, or only for forward passes.
 * Call this function after the parameters have changed. */
void model_run_refresh(ModelRun *, bool training);
/* Prints a note if the run has delayed FP8 scales and the checkpoint does not, or vice versa. The scales are not part
 * of the model. */
void model_run_note_fp8(const ModelRun *, const Ckpt *, FILE *to);
