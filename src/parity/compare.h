/* Compares a run with a reference. A report has a row with a bound for each quantity (loss, gradients, parameters,
 * ...). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

/* One tensor's errors, relative to the oracle. */
typedef struct TensorError {
    double relative;    /* ||x - y|| / max(||y||, 1e-9 * largest norm of the quantity) */
    double elementwise; /* max |x - y| / max(RMS of y's row, 1e-9 * largest RMS of the quantity) */
    int64_t worst;      /* flat index of the element with the largest elementwise error */
} TensorError;

/* The scale of a quantity. Errors in near-zero tensors are relative to the quantity's scale. */
typedef struct Scale {
    double norm, rms; /* maxima over all of the quantity's tensors */
} Scale;

void scale_add(Scale *, const double *oracle, int64_t n);
/* Computes a tensor's errors; its rows have `width` elements. If a value is not finite, the errors are infinite. */
TensorError tensor_error(const double *x, const double *oracle, int64_t n, int64_t width, const Scale *);

/* The bound for quantities that must be equal: any nonzero error exceeds it. */
#define BOUND_EQUAL 0x1p-1000

enum { NO_RANK = -1 };

/* The number of layers that a row lists separately. The last entry in Row.layer covers all other layers and
 * tensors outside layers. */
enum { ROW_LAYERS = 32 };

typedef struct Row {
    char quantity[32];
    TensorError error; /* the errors of the worst tensor, which has the largest ratio of error to bound */
    double bound, elementwise_bound;
    char worst[160]; /* name of the worst tensor */
    int64_t rank;    /* the rank that updates the worst element, or NO_RANK if all ranks have equal values */
    int64_t tensors;
    float layer[ROW_LAYERS + 1]; /* ratio of error to bound for the layer's worst tensor */
    bool pass;
    /* Whether `error` is the smallest error that the other rows would reject. A large value means that the
     * tests are insensitive, not that a result is wrong. */
    bool is_power;
} Row;

/* Adds a tensor, which passes if both errors are within their bounds. */
void row_add(Row *, const char *tensor, TensorError, double bound, double elementwise_bound, int64_t rank);
/* Returns the error divided by the bound, or infinity for a NaN. A row fails if the result is above 1 */
double row_excess(const Row *);
/* The error and the bound whose ratio row_excess returns. */
typedef struct RowPair {
    double error, bound;
    /* whether the error is that of the worst element, instead of the entire tensor */
    bool is_element;
} RowPair;
RowPair row_pair(const Row *);
/* Appends a text such as "gradient of x: 3e-05, 12 times its bound of 2.5e-06". If the quantity must be equal
 * to its reference, the text states this requirement instead of a bound. */
void row_describe(const Row *, Str *out);

enum { REPORT_ROWS = 32 };
typedef struct Report {
    Row row[REPORT_ROWS];
    int n;
} Report;

/* Adds an empty row. */
Row *report_row(Report *, const char *quantity);
bool report_passes(const Report *); /* returns true if there are no rows */
/* Returns whether only power rows fail. If so, all results are within their bounds, but the bounds are too
 * wide. */
bool report_is_weak(const Report *);
void report_print(const Report *, Str *out);
/* For each failing row, appends a line with a prefix and row_describe's text. */
void report_failures(const Report *, const char *prefix, Str *out);
json_t *report_json(const Report *); /* returns a list */

/* Returns the layer number in a Hugging Face name such as "model.layers.3.mlp..." or "transformer.h.3...", or
 * -1 if the name contains no layer number. */
int compare_layer(const char *tensor);

/* Returns a JSON string. Text that is not UTF-8 is quoted. */
json_t *compare_json_text(const char *);
/* Appends the JSON text, and frees the JSON value. */
void compare_json_write(json_t *, Str *out);
