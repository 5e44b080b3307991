/* The verdict on two results that should be equal: logs (log_diff.h) or checkpoints (ckpt_diff.h). Values are equal if
 * they are bitwise equal, or both NaN. A bound limits the relative difference. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/str.h"

typedef struct DiffOptions {
    double bound;     /* the largest relative difference that passes; NaN if only equal values pass */
    bool common;      /* ignore items that only one side has; if false, they are differences */
    const char *only; /* compare only quantities or tensors whose names contain this; NULL means all */
} DiffOptions;

typedef struct Diff {
    DiffOptions options;
    bool is_equal, is_within; /* is_within: whether no difference is beyond the bound */
    char first[400];          /* the first difference beyond the bound */
    double largest;           /* largest relative difference of values that both sides have */
    char where[300];          /* location of `largest` */
} Diff;

Diff diff_begin(const DiffOptions *);
bool diff_wants(const DiffOptions *, const char *name);
/* Whether a relative difference is beyond the bound; `equal` is the exact comparison. */
bool diff_is_beyond(const Diff *, double relative, bool equal);
/* Records a difference beyond the bound. Only the first one is kept. */
void diff_add(Diff *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Records a relative difference, whether it is within the bound or not. */
void diff_note(Diff *, double relative, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Returns |a - b| / max(|a|, |b|). This is 0 if both are equal or NaN, and infinite if one is not finite. */
double diff_relative(double a, double b);
/* Whether two values are bitwise equal, or both NaN. */
bool diff_same(double a, double b);
/* Formats two numbers, such as "5.8835" and "6.0604", with at least 6 digits, and with enough digits to
 * distinguish them. */
typedef struct DiffPair {
    char a[32], b[32];
} DiffPair;
DiffPair diff_pair(double a, double b);

/* Calls `found` for each member that differs between two objects, in the order of a, then of b. `found` gets
 * the texts of both values; "-" represents a missing value. Either object may be NULL. */
typedef void DiffMember(void *arg, const char *key, const char *a, const char *b);
void diff_objects(const json_t *a, const json_t *b, DiffMember *found, void *arg);
/* Appends a line for each option that differs; such options do not affect the verdict. */
void diff_run_options(const json_t *a, const json_t *b, Str *out);

/* Appends one line: "verdict: equal", "verdict: within 1e-06, ..." or "verdict: differ, first at ...". */
void diff_verdict(const Diff *, Str *out);
