/* Reports plans and searches as text and as JSON. */
#pragma once

#include "plan/run_cost.h"
#include "plan/search.h"
#include "plan/step_time.h"

/* Prints a plan, and compares its memory with `available`, the device's memory in bytes (0 if unknown). */
void plan_print(const RunPlan *, size_t available, int width, Str *out);
/* The terms may be NULL if the search has no rates. */
void search_print(const Search *, const RunTerms *, int64_t ranks, size_t available, int width, Str *out);
/* Prints the step's time, its parts, and how much of it is measured. */
void step_time_print(const StepTime *, Str *out);
/* Writes a plan as JSON. The time, with its cost, and the search may be NULL. Returns an infra error if the file cannot be
 * written. */
Err plan_write_json(const RunPlan *, const StepTime *, const RunCost *, const Search *, size_t available,
                    const char *path);
