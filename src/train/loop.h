/* The training loop: data, steps, evaluation, logs, checkpoints and all the ways to stop. Megatron-LM
 * training.py pretrain. */
#ifndef ISOTRON_TRAIN_LOOP_H
#define ISOTRON_TRAIN_LOOP_H

#include "base/err.h"
#include "config/config.h"
#include "data/masking.h"
#include "data/task.h"

/* Facts of the tokenizer that the data needs; -1: there is no such token. */
typedef struct TokenFacts {
    int64_t eod, pad, vocab_size; /* of the tokenizer; -1, -1 and 0: none */
    MaskTokens mask;              /* for --model bert and t5; its arrays outlive train() */
    const char *tokenizer_json;   /* identifies the tokenizer in the names of the index cache; NULL: none */
} TokenFacts;

/* Trains to the end, or until a signal, --exit-interval or --exit-duration-in-mins; saves before it returns
 * if --save is given. SIGINT (Ctrl-C) always stops it in this way, SIGTERM only with --exit-signal-handler; a
 * second signal kills the process. task: NULL, or fine-tune on it, whose accuracy is printed after each epoch; the
 * options then have its classes and steps. *stopped_by: the number of the signal, 0: none. Runs all ranks of this
 * process. */
Err train(const Config *, const Derived *, const TokenFacts *, const Task *task, int *stopped_by);

/* Checks the files that train() would open: each can be opened, and they belong together. Prints the data. Returns the
 * number of problems, at most TRAIN_FILE_PROBLEMS. No file changes. */
enum { TRAIN_FILE_PROBLEMS = 3 };
int train_check_files(const Config *, const Derived *, const TokenFacts *, Err problem[TRAIN_FILE_PROBLEMS]);

#endif
