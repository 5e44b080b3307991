/* A run's output: log lines on standard output, in Megatron-LM's format (training.py training_log) or in a
 * short format; JSON records in --log-jsonl; TensorBoard scalars; progress.txt. Between log lines, a status
 * line shows the current step if standard error is a terminal. */
#pragma once

#include "base/err.h"
#include "train/timers.h"
#include "train/trainer.h"

typedef struct TrainLog TrainLog;

/* The log's names for the elements of StepReport.router_loss. */
extern const char *const ROUTER_LOSS_NAMES[ROUTER_LOSSES];

/* Opens --log-jsonl and the TensorBoard file, and writes the description of the run. `data` is NULL if there is
 * no data. A --log-jsonl file that is not a log is a user error. Prints a note if a run from step 0 appends to
 * a log that contains steps. */
Err train_log_open(const Trainer *, const Data *, int64_t parameters, TrainLog **);
/* Checks that train_log_open could write its files. Changes no file. */
Err train_log_check(const Config *);
void train_log_close(TrainLog *);
/* Returns whether train_log_step needs the times of all ranks for this step. */
bool train_log_wants_times(const Trainer *);
/* Logs a step that took `ns` nanoseconds. Call this function after every step. Prints a line after the first
 * step of the process, and every --log-interval steps. The line includes the times of all ranks if
 * train_log_wants_times is true. */
Err train_log_step(TrainLog *, const Trainer *, const StepReport *, int64_t ns, const Times *);
/* Logs the losses of an evaluation. `where` is Megatron-LM's text, such as "iteration 100 on validation set".
 * `name` ("validation", "test") is part of the TensorBoard tags. */
Err train_log_eval(TrainLog *, const Trainer *, const char *where, const char *name,
                   const double loss[MODEL_LOSSES]);
/* The number of correct answers in a validation file, and the mean loss. */
typedef struct Accuracy {
    const char *name;
    int64_t correct, total;
    double loss;
} Accuracy;
/* If there are several files, prints a line for each file, followed by a line for all files together. */
Err train_log_accuracy(TrainLog *, const Trainer *, int64_t epoch, const Accuracy *, int files);
/* Clears the status line. Call this function before other lines are printed to a terminal. The log may be NULL. */
void train_log_hide_status(TrainLog *);
/* With --log-progress, appends a line about a checkpoint to progress.txt in the --save folder. */
Err train_log_progress(const Trainer *, const char *event, int64_t iteration, int64_t consumed_samples);
