/* What a run tells while it runs: Megatron-LM's log line (training.py training_log) on standard output, one
 * JSON object per step in --log-jsonl, TensorBoard scalars, progress.txt. */
#ifndef ISOTRON_TRAIN_LOG_H
#define ISOTRON_TRAIN_LOG_H

#include "base/err.h"
#include "train/run.h"
#include "train/timers.h"

typedef struct TrainLog TrainLog;

Err train_log_open(const Run *, TrainLog **);
void train_log_close(TrainLog *);
/* After every step; `ns` is what the step took. Prints on the first step of the process and every
 * --log-interval steps. */
Err train_log_step(TrainLog *, const Run *, const StepReport *, int64_t ns, Timers *);
/* `where` as Megatron-LM says it: "iteration 100 on validation set". `name` ("validation", "test") enters the
 * TensorBoard tags. */
Err train_log_eval(TrainLog *, const Run *, const char *where, const char *name, double loss);
/* Appends a line to progress.txt in --save, if --log-progress asks for it. */
Err train_log_progress(const Run *, const char *event);

#endif
