/* A run as a checkpoint: its buffers and progress numbers. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "train/trainer.h"

/* A task continues from a BERT, if there is a checkpoint. */
Err checkpoint_check_task(const Config *);
/* Sets the options of the schedules of learning rate and weight decay to those of the checkpoint that the run
 * continues, if there is one. */
Err checkpoint_schedule(Config *, Arena *);
/* Call it before slow work. --load must have a checkpoint, unless the run may start from scratch there;
 * --save must have none that this run does not continue. Prints a note about checkpoints that it will
 * replace. */
Err checkpoint_check_folders(const Config *);
/* The same for the files, without loading: the checkpoint can be opened and is of the model that the options describe,
 * and --save can get files. No file changes. */
Err checkpoint_check_files(const Config *);
bool checkpoint_saves_where_it_loads(const Config *);
/* Saves to --save under the current iteration and applies retention. With --async-save it only starts the
 * save; no other save may be in progress. */
Err trainer_save(Trainer *);
/* Finishes the save in progress, if there is one, when its files are written or, with `wait`, in any case.
 * *iteration: its step; -1: no save has finished. */
Err trainer_finish_save(Trainer *, bool wait, int64_t *iteration);
/* Loads from --load (or --pretrained-checkpoint) if given. *loaded: whether there was a checkpoint. */
Err trainer_load(Trainer *, bool *loaded);
