/* Lists problems with a Hugging Face model's tensors, for error messages. */
#pragma once

#include <stdint.h>

#include "base/str.h"
#include "tensor/dtype.h"

/* A list of tensors with the same kind of problem. */
typedef struct HfProblem {
    Str names; /* the first names on the list */
    int64_t count;
} HfProblem;

/* Adds a tensor to the list. `detail` follows the tensor's name in the message. */
void hf_problem_add(HfProblem *, const char *name, const char *detail);
/* Appends text such as "2 missing: 'a', 'b'", or nothing if the list is empty. Frees the list. */
void hf_problem_report(Str *out, HfProblem *, const char *what);

/* Tensors with invalid values, and the largest invalid value. */
typedef struct HfValues {
    HfProblem infinite;  /* tensors that contain NaN or infinite values */
    HfProblem too_large; /* tensors that contain values that the conversion would make infinite */
    double largest;      /* largest magnitude of the values that are too large */
} HfValues;

/* Counts how many of n values in a tensor cannot be converted from dtype `from` to dtype `to`. */
void hf_values_check(HfValues *, const char *name, const void *values, DType from, DType to, int64_t n);
/* Returns the narrowest dtype that can hold the values that were too large. */
DType hf_values_fitting_dtype(const HfValues *);
