/* The training loop: data, steps, evaluation, logs, checkpoints and all the ways to stop. Megatron-LM
 * training.py pretrain. */
#pragma once

#include "base/err.h"
#include "config/config.h"
#include "train/data_options.h"

/* Trains to the end, or until a signal, --exit-interval or --exit-duration-in-mins; saves before it returns
 * if --save is given. SIGINT (Ctrl-C) always stops it in this way, SIGTERM only with --exit-signal-handler; a
 * second signal kills the process. data: what data_open_options opened for these options, which is closed; NULL: the
 * first rank opens it. The accuracy of its files is printed after each epoch. *stopped_by: the number of the signal,
 * 0: none. Runs all ranks of this process. */
Err train(const Config *, const TokenFacts *, Data *data, int *stopped_by);

/* Checks the files that train() would open: each can be opened, and they belong together. Prints the data. Returns the
 * number of problems, at most TRAIN_FILE_PROBLEMS. No file changes. */
enum { TRAIN_FILE_PROBLEMS = 3 };
int train_check_files(const Config *, const TokenFacts *, Err problem[TRAIN_FILE_PROBLEMS]);
