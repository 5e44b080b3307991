/* Comparison of two logs that pretrain's --log-jsonl wrote. Records are aligned by step. A run's header with the
 * iteration N drops the records of later steps before it, because the run restarted from N. If a log still has
 * several records of a step, the last counts. Evaluations are compared too, measured times are not. A loss that is
 * finite in neither is a difference, unless both skipped the step. Options in the headers that differ are listed. */
#pragma once

#include "base/err.h"
#include "parity/diff.h"

/* Appends a row for each quantity: how many steps both logs have, the first that differs, the first beyond the
 * bound, and the largest relative difference. A line that is not a record is an error, unless a killed run left it
 * incomplete: the last line without a newline, or one before a run's header. So are logs without a common step. */
Err log_diff(const char *a, const char *b, const DiffOptions *, Diff *, Str *out);
