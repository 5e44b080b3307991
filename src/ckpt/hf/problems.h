/* Collects lists of problems with the tensors of a Hugging Face model, for error messages. */
#pragma once

#include <stdint.h>

#include "base/str.h"
#include "tensor/dtype.h"

/* A list of the tensors with one kind of problem. */
typedef struct HfProblem {
    Str names; /* the first names of the list */
    int64_t count;
} HfProblem;

/* Adds a tensor to the list. `detail` follows its name in the message. */
void hf_problem_add(HfProblem *, const char *name, const char *detail);
/* Appends a text such as "2 missing: 'a', 'b'", or nothing if the list is empty. Frees the list. */
void hf_problem_report(Str *out, HfProblem *, const char *what);

/* Tensors with invalid values, and the largest invalid value. */
typedef struct HfValues {
    HfProblem infinite;  /* tensors with values that are NaN or infinite */
    HfProblem too_large; /* tensors with values that become infinite in a conversion */
    double largest;      /* largest magnitude of the values that are too large */
} HfValues;

/* Checks whether n values of a tensor, which have dtype `from`, can be converted to `to`, and counts the values that
 * cannot. */
void hf_values_check(HfValues *, const char *name, const void *values, DType from, DType to, int64_t n);
/* Returns the narrowest dtype that can hold the values that were too large. */
DType hf_values_fitting_dtype(const HfValues *);
