/* Comparison of two checkpoints, tensor by tensor, regardless of the layout that wrote them. A path is a
 * folder of checkpoints, which stands for its newest, or the folder iter_N of one. */
#pragma once

#include "base/err.h"
#include "parity/diff.h"

typedef struct CkptDiffOptions {
    DiffOptions diff;
    bool weights_only; /* leave out optimizer state and progress; diff.only leaves out progress too */
} CkptDiffOptions;

/* Appends the options that differ, the numbers of the run's progress and the tensors that differ, and a summary.
 * The difference of a tensor is max |a - b|, relative to the larger of the two root mean squares. Options
 * that differ are listed, but do not affect the verdict. The stored bytes are checked against their hashes.
 * Files are mapped and read tensor by tensor. */
Err ckpt_diff(const char *a, const char *b, const CkptDiffOptions *, Diff *, Str *out);
