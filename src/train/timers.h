/* Timers of a step, printed as Megatron-LM core/timers.py prints them. */
#ifndef ISOTRON_TRAIN_TIMERS_H
#define ISOTRON_TRAIN_TIMERS_H

#include <stdint.h>

#include "base/str.h"

typedef enum Timer {
    TIMER_BATCH,
    TIMER_FORWARD_BACKWARD,
    TIMER_OPTIMIZER,
    TIMER_EVALUATE,
    TIMER_SAVE,
    TIMERS
} Timer;

typedef struct Timers {
    int64_t started[TIMERS], ns[TIMERS];
} Timers;

void timer_start(Timers *, Timer);
void timer_stop(Timers *, Timer);
/* Appends the timers of at most `level` that have run, each divided by `steps`, and sets them to zero. */
void timers_report(Timers *, int64_t level, int64_t steps, Str *out);

#endif
