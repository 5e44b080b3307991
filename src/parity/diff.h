/* The verdict on two results that should be equal: logs (log_diff.h) or checkpoints (ckpt_diff.h). Values are equal if
 * they are bitwise equal, or both NaN. A bound limits the relative difference. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/str.h"

typedef struct DiffOptions {
    double bound; /* the largest relative difference that passes; NaN if only equal values pass */
    /* whether items that only one side has are ignored, instead of counted as differences */
    bool common;
    const char *only; /* if not NULL, only quantities or tensors whose names contain this text are compared */
} DiffOptions;

typedef struct Diff {
    DiffOptions options;
    bool is_equal, is_within; /* is_within: no difference exceeds the bound */
    char first[400];          /* the first difference that exceeds the bound */
    double largest;           /* largest relative difference between values that both sides have */
    char where[300];          /* location of `largest` */
} Diff;

Diff diff_begin(const DiffOptions *);
bool diff_wants(const DiffOptions *, const char *name);
/* Returns whether a relative difference exceeds the bound. `equal` is the result of the exact comparison. */
bool diff_is_beyond(const Diff *, double relative, bool equal);
/* Records a difference that exceeds the bound. Only the first difference is kept. */
void diff_add(Diff *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Records a relative difference, regardless of the bound. */
void diff_note(Diff *, double relative, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Returns |a - b| / max(|a|, |b|). The result is 0 if both numbers are equal or NaN, and infinite if only one of them
 * is not finite. */
double diff_relative(double a, double b);
/* Returns whether two values are bitwise equal, or both NaN. */
bool diff_same(double a, double b);
/* Formats two numbers, such as "5.8835" and "6.0604", with at least 6 digits. Uses more digits if they are
 * needed to distinguish the numbers. */
typedef struct DiffPair {
    char a[32], b[32];
} DiffPair;
DiffPair diff_pair(double a, double b);

/* Calls `found` for each member that differs between two objects, first in the order of a, then in the order of b.
 * `found` receives both values as text; "-" represents a missing value. Either object may be NULL. */
typedef void DiffMember(void *arg, const char *key, const char *a, const char *b);
void diff_objects(const json_t *a, const json_t *b, DiffMember *found, void *arg);
/* Appends a line for each option that differs. Such options do not affect the verdict. */
void diff_run_options(const json_t *a, const json_t *b, Str *out);

/* Appends one line: "verdict: equal", "verdict: within 1e-06, ..." or "verdict: differ, first at ...". */
void diff_verdict(const Diff *, Str *out);
