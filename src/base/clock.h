/* Time. Durations come from the monotonic clock and stay integer nanoseconds until they are printed. */
#pragma once

#include <stdint.h>

int64_t clock_ns(void); /* monotonic; differences only */
/* "2026-01-31 12:00:00.123456", local time, the format of Megatron-LM's log lines. */
void clock_stamp(char out[32]);
