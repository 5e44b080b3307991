/* A model on one rank: its place in the layout, its device and its parameters. Training adds gradients, an optimizer
 * and progress (train/trainer.h); generation adds a cache (infer/generate.h). */
#pragma once

#include <stdio.h>

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "models/model.h"
#include "pipeline/layout.h"
#include "tape/tape.h"

/* MODEL_COMPUTES: the parameters have only values, whole on each rank of data parallelism. */
typedef enum ModelUse { MODEL_COMPUTES, MODEL_TRAINS } ModelUse;

typedef struct ModelRun {
    const Config *config; /* both belong to the caller and outlive the run */
    Comm *comm;           /* the caller's; NULL: one rank */
    Layout layout;
    PipelineLayout pipeline;
    RunContext context; /* points to the layout, so a run stays where it was opened */
    Device *device;     /* owned */
    Model *model;
    Arena *arena; /* holds the pipeline's stages */
} ModelRun;

/* The place of a rank in the layout of the options. */
Layout model_run_layout(const Config *, int rank, int world);
/* Allocates the parameters, which are zero. The pipeline's options must be valid (pipeline_layout). Takes ownership of
 * the device; comm may be NULL. */
void model_run_new(ModelRun *out, const Config *, Comm *, Device *, ModelUse);
/* Frees everything except the device. */
void model_run_free(ModelRun *);
/* Opens a device and the model of --load on it, to compute. A user error if there is no checkpoint, if it is of
 * another model, or if memory is too small; then nothing is open. All ranks call it and get the same error;
 * comm may be NULL. */
Err model_run_open(ModelRun *out, const Config *, Comm *);
void model_run_close(ModelRun *);

/* How many of `samples` samples one forward computes: all, or with --batch-invariant-mode one (or the choices of one
 * question). Otherwise a gradient could depend on how samples are grouped, because that of a tied embedding is the sum
 * of two ops' sums. */
int64_t model_run_together(const ModelRun *, int64_t samples);
/* The number of tokens of a forward on this rank. */
int64_t model_run_tokens(const ModelRun *);
StateContext model_run_state(const ModelRun *, bool training);
/* Updates state that is derived from parameters (FP8 weights) for a training step or another forward. Needed after the
 * parameters have their values. */
void model_run_refresh(ModelRun *, bool training);
/* Prints a note if only one of this run and the checkpoint has FP8's delayed scales: they are not part of the model. */
void model_run_note_fp8(const ModelRun *, const Ckpt *, FILE *to);
