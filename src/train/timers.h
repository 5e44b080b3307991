/* Measures the parts of a step, and prints their times in the format of Megatron-LM's core/timers.py. */
#pragma once

#include <stdint.h>

#include "base/str.h"
#include "comm/comm.h"
#include "config/config.h"

typedef enum Timer {
    TIMER_BATCH,
    TIMER_FORWARD_BACKWARD,
    TIMER_OPTIMIZER,
    TIMER_EVALUATE,
    TIMER_SAVE,
    TIMERS
} Timer;

typedef struct Times {
    int64_t ns[TIMERS]; /* one rank's times */
} Times;

typedef struct Timers {
    int64_t started[TIMERS];
    Times spent;
} Timers;

void timer_start(Timers *, Timer);
void timer_stop(Timers *, Timer);
/* Returns an array [ranks] in the arena: the times of all ranks since the last call. All ranks must call this
 * function. The Comm may be NULL if there is only one rank. */
const Times *timers_gather(Timers *, Comm *, Arena *);
const char *timer_name(Timer);
/* Returns the slowest rank's time in nanoseconds, or 0 if the timer has a level above `level`. */
int64_t timers_longest(const Times *, int ranks, Timer, int64_t level);
/* Appends the timers of level <= `level` that have run on any rank. Every printed time is divided by
 * `steps`. */
void timers_report(const Times *, int ranks, TimingLogOption, int64_t level, int64_t steps, Str *out);
