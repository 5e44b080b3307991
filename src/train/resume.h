/* A run as a checkpoint: which buffers and which progress numbers. */
#ifndef ISOTRON_TRAIN_RESUME_H
#define ISOTRON_TRAIN_RESUME_H

#include "base/err.h"
#include "train/run.h"

/* Saves to --save under the current iteration and applies retention. */
Err run_save(const Run *);
/* Loads from --load (or --pretrained-checkpoint) if the options ask for it. *loaded: whether there was a
 * checkpoint. */
Err run_load(Run *, bool *loaded);

#endif
