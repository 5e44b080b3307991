/* What is wrong with the tensors of a Hugging Face model: lists for an error message. */
#ifndef ISOTRON_CKPT_HF_PROBLEMS_H
#define ISOTRON_CKPT_HF_PROBLEMS_H

#include <stdint.h>

#include "base/str.h"
#include "tensor/dtype.h"

/* Tensors that are wrong in one way. */
typedef struct HfProblem {
    Str names; /* the first few */
    int64_t count;
} HfProblem;

/* `detail` follows the name. */
void hf_problem_add(HfProblem *, const char *name, const char *detail);
/* Appends "2 missing: 'a', 'b'", nothing if there are none; frees the list. */
void hf_problem_report(Str *out, HfProblem *, const char *what);

/* Tensors with values that cannot be used. */
typedef struct HfValues {
    HfProblem infinite;  /* NaN or infinite */
    HfProblem too_large; /* infinite only after a conversion */
    double largest;      /* of the values that are too large */
} HfValues;

/* Checks a tensor's n values, which are of dtype `from` and will be converted to `to`. */
void hf_values_check(HfValues *, const char *name, const void *values, DType from, DType to, int64_t n);
/* The narrowest dtype that holds the values that were too large. */
DType hf_values_fitting_dtype(const HfValues *);

#endif
