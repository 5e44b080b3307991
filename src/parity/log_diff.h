/* Compares two logs that were written with `pretrain --log-jsonl`. Records are aligned by step. If a run's
 * header states iteration N, earlier records of steps after N are discarded, because the run restarted from N.
 * If several records for a step remain, the last record counts. Evaluations are also compared, but measured
 * times are not. A loss that is finite in neither log counts as a difference, unless both runs skipped the
 * step. Options that differ between the headers are listed. */
#pragma once

#include "base/err.h"
#include "parity/diff.h"

/* Appends a row for each quantity: the number of common steps, the first step that differs, the first step that
 * exceeds the bound, and the largest relative difference. A line that is not a record is an error, unless a
 * killed run left the line incomplete. A line is incomplete if it is the last line and has no newline, or if it
 * precedes a run's header. Two logs without a common step are also an error. */
Err log_diff(const char *a, const char *b, const DiffOptions *, Diff *, Str *out);
