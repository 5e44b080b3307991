/* Comparison of two logs that pretrain's --log-jsonl wrote. Records are aligned by step. Where a log has several
 * records of a step, because the run was resumed from an earlier one, the last counts. Evaluations are compared too,
 * measured times are not. A loss that is no number in both is a difference, unless both skipped the step. Options in
 * the headers that differ are listed. */
#ifndef ISOTRON_VALIDATE_LOG_DIFF_H
#define ISOTRON_VALIDATE_LOG_DIFF_H

#include "base/err.h"
#include "validate/diff.h"

/* Appends a row for each quantity: how many steps both logs have, the first that differs, the first beyond the
 * bound, and the largest relative difference. A file that is no log, or logs without a common step, are an
 * error. */
Err log_diff(const char *a, const char *b, const DiffOptions *, Diff *, Str *out);

#endif
