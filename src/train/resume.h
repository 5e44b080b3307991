/* A run as a checkpoint: which buffers and which progress numbers. */
#ifndef ISOTRON_TRAIN_RESUME_H
#define ISOTRON_TRAIN_RESUME_H

#include "base/err.h"
#include "train/run.h"

/* Sets the model options that the user did not give from the checkpoint in --load (or
 * --pretrained-checkpoint), and the tokenizer's if neither a tokenizer nor --vocab-size is given. */
Err checkpoint_args(Config *, Arena *, Str *notes);
/* A run whose parameters come from --load, with context.training off. */
Err run_open_for_inference(const Config *, const Derived *, Run **);
/* Saves to --save under the current iteration and applies retention. */
Err run_save(const Run *);
/* Loads from --load (or --pretrained-checkpoint) if the options ask for it. *loaded: whether there was a
 * checkpoint. */
Err run_load(Run *, bool *loaded);

#endif
