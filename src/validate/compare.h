/* Comparison of a run with an oracle: one row per quantity (loss, gradients, parameters, ...), each with the
 * bound it is judged by and how that bound came about. */
#ifndef ISOTRON_VALIDATE_COMPARE_H
#define ISOTRON_VALIDATE_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* Errors of one tensor against the oracle's. */
typedef struct TensorError {
    double relative;    /* ||x - y|| / max(||y||, 1e-9 * largest norm of the quantity) */
    double elementwise; /* max |x - y| / max(RMS of y's row, 1e-9 * largest RMS of the quantity) */
    int64_t worst;      /* flat index of the element with the largest elementwise error */
} TensorError;

/* The scale of a quantity: what its near-zero tensors are measured against. */
typedef struct Scale {
    double norm, rms; /* the largest of any tensor of the quantity */
} Scale;

void scale_add(Scale *, const double *oracle, int64_t n);
/* Rows are `width` elements long. A value that is not finite makes the errors infinite. */
TensorError tensor_error(const double *x, const double *oracle, int64_t n, int64_t width, const Scale *);

typedef struct Row {
    char quantity[32];
    TensorError error; /* of the worst tensor: the one nearest to or furthest beyond its bound */
    double bound, elementwise_bound;
    char worst[160]; /* its name */
    int64_t tensors;
    bool pass;
} Row;

/* Adds a tensor to the row: it passes if both errors are within their bounds. */
void row_add(Row *, const char *tensor, TensorError, double bound, double elementwise_bound);

/* Numbers and texts of reports. JSON has no infinity: what is not finite is null. */
void compare_json_number(Str *, const char *key, double);
void compare_json_text(Str *, const char *);

#endif
