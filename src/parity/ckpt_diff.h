/* Compares two checkpoints tensor by tensor, regardless of the layouts that wrote them. A path is a folder of
 * checkpoints (then the newest is compared) or the folder iter_N of a checkpoint. */
#pragma once

#include "base/err.h"
#include "parity/diff.h"

typedef struct CkptDiffOptions {
    DiffOptions diff;
    bool weights_only; /* whether to omit the optimizer state and the run's progress; diff.only also omits the
                          progress */
} CkptDiffOptions;

/* Appends a summary and everything that differs: options, the run's progress, tensors. The difference of a
 * tensor is max |a - b|, relative to the larger of the two root mean squares. Options that differ are listed,
 * but do not affect the verdict. Stored bytes are checked against their hashes. Files are mapped, and read
 * one tensor at a time. */
Err ckpt_diff(const char *a, const char *b, const CkptDiffOptions *, Diff *, Str *out);
