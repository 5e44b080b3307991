/* Comparison of two logs that pretrain's --log-jsonl wrote. Records are aligned by step. A run's header with iteration
 * N discards earlier records of steps after N, because the run restarted from N. If several records of a step remain,
 * the last counts. Evaluations are compared too, but not measured times. A loss that is finite in neither log is a
 * difference, unless both runs skipped the step. Options in the headers that differ are listed. */
#pragma once

#include "base/err.h"
#include "parity/diff.h"

/* Appends a row for each quantity: the number of common steps, the first step that differs, the first beyond the
 * bound, and the largest relative difference. A line that is not a record is an error, unless a killed run left it
 * incomplete: the last line without a newline, or one before a run's header. So are logs without a common step. */
Err log_diff(const char *a, const char *b, const DiffOptions *, Diff *, Str *out);
