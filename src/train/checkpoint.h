/* A run as a checkpoint: which buffers and which progress numbers. */
#ifndef ISOTRON_TRAIN_CHECKPOINT_H
#define ISOTRON_TRAIN_CHECKPOINT_H

#include <jansson.h>

#include "base/err.h"
#include "train/trainer.h"

/* Sets the model options that the user did not give from the checkpoint in --load (or
 * --pretrained-checkpoint), and the tokenizer's if neither a tokenizer nor --vocab-size is given. */
Err checkpoint_args(Config *, Arena *, Str *notes);
/* Sets the options of the learning rate's and the weight decay's schedules to those of the checkpoint that the
 * run continues, if there is one. */
Err checkpoint_schedule(Config *, Arena *);
/* The options that decide what the model computes must be those in the state of the checkpoint in `dir`; with
 * weights_only lengths and dropout may differ. An error names every one that is not. */
Err checkpoint_check_model(const Config *, const json_t *state, const char *dir, bool weights_only);
/* Before anything slow: --load must hold a checkpoint, unless the run may begin anew there, and --save none that
 * this run does not continue. Prints a note about checkpoints that it will replace. */
Err checkpoint_check_folders(const Config *);
bool checkpoint_saves_where_it_loads(const Config *);
/* A run whose parameters come from --load. */
Err trainer_open_for_inference(const Config *, const Derived *, Trainer **);
/* Saves to --save under the current iteration and applies retention; with --async-save only starts to, and no
 * other save may be under way. */
Err trainer_save(Trainer *);
/* Ends the save that is under way, if there is one and its files are written, or in any case if `wait`.
 * *iteration: its step; -1: none has ended. */
Err trainer_finish_save(Trainer *, bool wait, int64_t *iteration);
/* Loads from --load (or --pretrained-checkpoint) if the options ask for it. *loaded: whether there was a
 * checkpoint. */
Err trainer_load(Trainer *, bool *loaded);

#endif
