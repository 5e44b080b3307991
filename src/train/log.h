/* The output of a run: log lines on standard output, Megatron-LM's (training.py training_log) or short ones; JSON
 * records in --log-jsonl; TensorBoard scalars; progress.txt. If standard error is a terminal, a status line shows
 * the step between log lines. */
#ifndef ISOTRON_TRAIN_LOG_H
#define ISOTRON_TRAIN_LOG_H

#include "base/err.h"
#include "train/trainer.h"
#include "train/timers.h"

typedef struct TrainLog TrainLog;

/* Begins --log-jsonl and the TensorBoard file with what the run is; data NULL: none. */
Err train_log_open(const Trainer *, const Data *, int64_t parameters, TrainLog **);
void train_log_close(TrainLog *);
/* Whether the times of all ranks are wanted after this step. */
bool train_log_wants_times(const Trainer *);
/* After every step; `ns` is what the step took. Prints on the first step of the process and every
 * --log-interval steps, and then the times of all ranks, if they are wanted. */
Err train_log_step(TrainLog *, const Trainer *, const StepReport *, int64_t ns, const Times *);
/* `where` as Megatron-LM says it: "iteration 100 on validation set". `name` ("validation", "test") enters the
 * TensorBoard tags. */
Err train_log_eval(TrainLog *, const Trainer *, const char *where, const char *name, double loss);
/* Before other lines go to a terminal: takes the status line away. NULL is allowed. */
void train_log_hide_status(TrainLog *);
/* Appends a line to progress.txt in --save, if --log-progress asks for it. */
Err train_log_progress(const Trainer *, const char *event);

#endif
