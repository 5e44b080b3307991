/* Clocks. Durations are measured with the monotonic clock and are kept as integer nanoseconds until they are
 * printed. */
#pragma once

#include <stdint.h>

int64_t clock_ns(void); /* monotonic time; only differences are meaningful */
/* Writes the local time in the format of Megatron-LM's log lines, such as "2026-01-31 12:00:00.123456". */
void clock_stamp(char out[32]);
