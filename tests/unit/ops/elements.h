/* Elements of tensors as doubles, and inputs that every lane holds exactly. */
#ifndef ISOTRON_TESTS_OPS_ELEMENTS_H
#define ISOTRON_TESTS_OPS_ELEMENTS_H

#include <math.h>

#include "base/hash.h"
#include "base/philox.h"
#include "tensor/tensor.h"

/* Significant bits of inputs: exact in float, or in every float type. */
enum { GRID_FINE = 24, GRID_COARSE = 8 };

typedef struct Values {
    double *v; /* NULL: there is no such result */
    int64_t n;
} Values;

/* An odd multiple of 2^-bits in [-1, 1], never 0: exact in a type with `bits` significant bits. */
static inline double grid_value(const char *name, int tensor, int64_t element, int bits) {
    uint32_t draw = philox_u32(hash_name(name), (uint64_t)tensor, (uint64_t)element);
    return ldexp(2.0 * (draw >> (32 - bits)) + 1, -bits) - 1;
}

static inline double load_element(const Tensor *t, int64_t i) {
    double x;
    dtype_convert(&x, F64, (const char *)t->data + (size_t)i * dtype_size((DType)t->dtype), (DType)t->dtype,
                  1);
    return x;
}

static inline void store_element(Tensor *t, int64_t i, double x) {
    dtype_convert((char *)t->data + (size_t)i * dtype_size((DType)t->dtype), (DType)t->dtype, &x, F64, 1);
}

#endif
