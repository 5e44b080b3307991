/* Problems with the tensors of a Hugging Face model, as lists for an error message. */
#pragma once

#include <stdint.h>

#include "base/str.h"
#include "tensor/dtype.h"

/* Tensors with one kind of problem. */
typedef struct HfProblem {
    Str names; /* the first few */
    int64_t count;
} HfProblem;

/* `detail` follows the name. */
void hf_problem_add(HfProblem *, const char *name, const char *detail);
/* Appends "2 missing: 'a', 'b'", or nothing if the list is empty; frees the list. */
void hf_problem_report(Str *out, HfProblem *, const char *what);

/* Tensors with invalid values. */
typedef struct HfValues {
    HfProblem infinite;  /* NaN or infinite */
    HfProblem too_large; /* infinite only after a conversion */
    double largest;      /* of the values that are too large */
} HfValues;

/* Checks n values of a tensor, which have dtype `from` and will be converted to `to`. */
void hf_values_check(HfValues *, const char *name, const void *values, DType from, DType to, int64_t n);
/* The narrowest dtype that holds the values that were too large. */
DType hf_values_fitting_dtype(const HfValues *);
