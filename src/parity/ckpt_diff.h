/* Compares two checkpoints tensor by tensor, regardless of the layouts that wrote them. A path is a folder of
 * checkpoints (the newest is compared), or one checkpoint's folder iter_N. */
#pragma once

#include "base/err.h"
#include "parity/diff.h"

typedef struct CkptDiffOptions {
    DiffOptions diff;
    /* whether to omit the optimizer state and the run's progress; if diff.only is set, progress is always
     * omitted */
    bool weights_only;
} CkptDiffOptions;

/* Appends a summary and all differences: options, the run's progress, and tensors. A tensor's difference is max |a -
 * b|, relative to the larger of the two root mean squares. Options that differ are listed, but do not affect the
 * verdict. Stored bytes are checked against their hashes. Files are mapped, and tensors are read one by one. */
Err ckpt_diff(const char *a, const char *b, const CkptDiffOptions *, Diff *, Str *out);
