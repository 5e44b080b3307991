/* Accesses elements of tensors as doubles, and draws inputs that every lane represents exactly. */
#pragma once

#include <math.h>

#include "base/hash.h"
#include "base/philox.h"
#include "tensor/tensor.h"

/* Numbers of significant bits with which inputs are exact in float, or in every float type. */
enum { GRID_FINE = 24, GRID_COARSE = 8 };

typedef struct Values {
    double *v; /* NULL: no result */
    int64_t n;
} Values;

/* The random numbers of a tensor. Four elements share a Philox block, so drawing elements in order takes a
 * quarter of the time. */
typedef struct Grid {
    uint64_t seed, tensor;
    int bits;
    uint64_t next; /* 1 + the block of `words`; 0 if there is none */
    Philox4 words;
} Grid;

/* An odd multiple of 2^-bits in [-1, 1]. It is never 0, and is exact in a type with `bits` significant bits. */
static inline double grid_at(Grid *g, int64_t element) {
    const uint64_t block = (uint64_t)element / 4;
    if (g->next != block + 1) g->words = philox4x32(g->seed, g->tensor, block), g->next = block + 1;
    return (2.0 * (g->words.v[element % 4] >> (32 - g->bits)) + 1) / (double)(1u << g->bits) - 1;
}

static inline double grid_draw(uint64_t seed, int tensor, int64_t element, int bits) {
    return grid_at(&(Grid){.seed = seed, .tensor = (uint64_t)tensor, .bits = bits}, element);
}

static inline double grid_value(const char *name, int tensor, int64_t element, int bits) {
    return grid_draw(hash_name(name), tensor, element, bits);
}

/* Converts one element to double. For the usual types, it does so without calling dtype_convert. */
static inline double load_element(const Tensor *t, int64_t i) {
    double x;
    if (t->dtype == F64) return ((const double *)t->data)[i];
    if (t->dtype == F32) return (double)((const float *)t->data)[i];
    dtype_convert(&x, F64, (const char *)t->data + (size_t)i * dtype_size((DType)t->dtype), (DType)t->dtype,
                  1);
    return x;
}

static inline void store_element(Tensor *t, int64_t i, double x) {
    if (t->dtype == F64)
        ((double *)t->data)[i] = x;
    else if (t->dtype == F32)
        ((float *)t->data)[i] = (float)x;
    else
        dtype_convert((char *)t->data + (size_t)i * dtype_size((DType)t->dtype), (DType)t->dtype, &x, F64, 1);
}
