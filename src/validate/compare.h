/* Compares a stage with the last good run, and with the same stage on a second NCCL library. The stage's
 * evidence receives the results. */
#pragma once

#include "base/statistics.h"
#include "validate/validate.h"

/* Reads the report (--json) of a run that passed. The content of the report is untrusted. */
Err compare_open_good(const char *path, struct json_t **out);
/* Compares a stage with the good run, if there is one. Rates that cannot be compared are recorded as not
 * certified (outcome_limit). */
void compare_with_good(const Validation *, ValidateRow *);
void compare_libraries(const Validation *, ValidateRow *);
/* Returns the median of a rate in the good run, or 0 if the good run has no comparable rate. */
double compare_good_median(const Validation *, const ValidateRow *, const char *rate);
/* Returns the number of samples that each of n rates needs in both runs for a comparison. */
int compare_least(int n_rates);

/* The ratio of a class of rates, such as all_reduce at all sizes: library B's rates divided by library A's.
 * All intervals in a stage hold simultaneously with a probability of 1 - INTERVAL_ERROR. Each interval covers
 * the intervals of the individual turns, because two processes of one library may differ more than the
 * samples of one process. */
typedef struct RateClass {
    char name[32];
    Interval ratio;
    bool known; /* whether the number of samples suffices for an interval */
} RateClass;
enum { RATE_CLASSES = 16 };
/* Computes the ratios of all classes. Returns the number of classes, or 0 if there is no library B. */
int compare_classes(const ValidateRow *, RateClass out[RATE_CLASSES]);
/* Formats a class's result: "B is equal to A within 9 %", or "B is 12 % slower than A". */
void compare_class_text(const RateClass *, Str *out);
