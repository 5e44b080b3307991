/* A run as a checkpoint: which buffers and which progress numbers. */
#ifndef ISOTRON_TRAIN_RESUME_H
#define ISOTRON_TRAIN_RESUME_H

#include "base/err.h"
#include "train/run.h"

/* Sets the model options that the user did not give from the checkpoint in --load (or
 * --pretrained-checkpoint), and the tokenizer's if neither a tokenizer nor --vocab-size is given. */
Err checkpoint_args(Config *, Arena *, Str *notes);
/* A run whose parameters come from --load. */
Err run_open_for_inference(const Config *, const Derived *, Run **);
/* Saves to --save under the current iteration and applies retention; with --async-save only starts to, and no
 * other save may be under way. */
Err run_save(Run *);
/* Ends the save that is under way, if there is one and its files are written, or in any case if `wait`.
 * *iteration: its step; -1: none has ended. */
Err run_finish_save(Run *, bool wait, int64_t *iteration);
/* Loads from --load (or --pretrained-checkpoint) if the options ask for it. *loaded: whether there was a
 * checkpoint. */
Err run_load(Run *, bool *loaded);

#endif
