/* Saves and loads a run as a checkpoint: its buffers and progress numbers. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "train/trainer.h"

/* If a task loads a checkpoint, checks that this is a checkpoint of a BERT model. */
Err checkpoint_check_task(const Config *);
/* If the run continues a checkpoint, sets the options of the learning-rate and weight-decay schedules to
 * those of the checkpoint. */
Err checkpoint_schedule(Config *, Arena *);
/* Checks the folders of checkpoints before slow work. --load must contain a checkpoint, unless the run may
 * start from scratch there. --save must not contain a checkpoint that this run does not continue. Prints a
 * note about checkpoints that the run will replace. */
Err checkpoint_check_folders(const Config *);
/* Calls checkpoint_check_folders. Also checks that the checkpoint can be opened and is of the model that the
 * options describe, and that --save is writable. Loads nothing and changes no file. */
Err checkpoint_check_files(const Config *);
bool checkpoint_saves_where_it_loads(const Config *);
/* Saves to --save under the current iteration and applies retention. With --async-save, it only starts the save. No
 * other save may be in progress. */
Err trainer_save(Trainer *);
/* Finishes the save in progress, if there is one and its files are written. With `wait`, waits for the files.
 * *iteration: the step of the finished save, or -1 if no save has finished. */
Err trainer_finish_save(Trainer *, bool wait, int64_t *iteration);
/* Loads from --load (or --pretrained-checkpoint) if given. *loaded: whether there was a checkpoint. */
Err trainer_load(Trainer *, bool *loaded);
