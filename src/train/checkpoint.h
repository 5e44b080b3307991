/* Saves the buffers and the progress of a run as a checkpoint, and loads them. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "train/trainer.h"

/* If a task loads a checkpoint, checks that it contains a BERT model. */
Err checkpoint_check_task(const Config *);
/* If the run continues a checkpoint, sets the options of the learning-rate and weight-decay schedules to the
 * checkpoint's values. */
Err checkpoint_schedule(Config *, Arena *);
/* Checks the checkpoint folders. Call this function before slow work. --load must contain a checkpoint, unless
 * the folder is empty or is also --save. --save must not contain a checkpoint that this run does not continue.
 * Prints a note if the run will replace checkpoints. */
Err checkpoint_check_folders(const Config *);
/* Calls checkpoint_check_folders. Also checks that the checkpoint can be opened, that the options describe its model,
 * and that --save is writable. Neither loads the checkpoint nor changes any file. */
Err checkpoint_check_files(const Config *);
bool checkpoint_saves_where_it_loads(const Config *);
/* Saves the run to --save under the current iteration, and deletes old checkpoints as the options require.
 * With --async-save, only starts the save. No other save may be in progress. */
Err trainer_save(Trainer *);
/* Returns the size of the copy that an asynchronous save makes on this rank. */
size_t trainer_save_bytes(const Trainer *);
/* If there is a save in progress and its files have been written, finishes the save. If `wait` is true, waits
 * for the files. Sets *iteration to the step of the finished save, or to -1 if no save has finished. */
Err trainer_finish_save(Trainer *, bool wait, int64_t *iteration);
/* Loads the checkpoint that --load or --pretrained-checkpoint specifies, if one of them is given. Sets *loaded
 * to true if there was a checkpoint. */
Err trainer_load(Trainer *, bool *loaded);
