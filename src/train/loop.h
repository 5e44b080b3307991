/* Runs the training loop: reads data, runs steps and evaluations, writes logs and checkpoints, and decides
 * when to stop. Source: Megatron-LM training.py pretrain. */
#pragma once

#include "base/err.h"
#include "config/config.h"
#include "train/data_options.h"

/* Trains to the end, or until a signal, --exit-interval or --exit-duration-in-mins ends the run. If --save is given,
 * saves a checkpoint before it returns. SIGINT (Ctrl-C) always has this effect, and so does the signal --exit-signal
 * with --exit-signal-handler. Except under a launcher, a second signal kills the process. `data` must have been opened
 * by data_open_options for these options, and is closed by this function. If `data` is NULL, the first rank opens the
 * data. The accuracy of validation files is printed after each epoch. Sets *stopped_by to the number of the signal that
 * ended the loop, or to 0 if there was none. Runs all ranks of this process. */
Err train(const Config *, const TokenFacts *, Data *data, int *stopped_by);

/* Checks that train() could open its files, and that the files match each other. Prints the
 * sources of the data. Returns the number of problems, but at most TRAIN_FILE_PROBLEMS. Changes no file. */
enum { TRAIN_FILE_PROBLEMS = 3 };
int train_check_files(const Config *, const TokenFacts *, Err problem[TRAIN_FILE_PROBLEMS]);
