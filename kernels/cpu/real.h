/* Every file in this folder is compiled twice: with `real` as float (kernels cpu_f32_*) and as double
 * (cpu_f64_*). */
#pragma once

#include <math.h>

#include "base/fault.h"
#include "kernels/attr.h"
#include "tensor/call.h"

#ifdef REAL_IS_DOUBLE
typedef double real;
#define KERNEL(name)    cpu_f64_##name
#define REAL_TYPE       F64
#define REAL_MATH(name) name
#else
typedef float real;
#define KERNEL(name)    cpu_f32_##name
#define REAL_TYPE       F32
#define REAL_MATH(name) name##f
#endif

/* Returns the elements of an operand of type `real`. */
static inline real *reals(const Tensor *t) {
    CHECK(t->dtype == REAL_TYPE, "the operand is %s, but this kernel computes in %s",
          dtype_name((DType)t->dtype), dtype_name(REAL_TYPE));
    return t->data;
}

static inline int64_t *int64s(const Tensor *t) {
    CHECK(t->dtype == I64, "the operand is %s, not I64", dtype_name((DType)t->dtype));
    return t->data;
}

static inline bool accumulates(const Tensor *t) { return t->flags & TENSOR_ACCUM; }

/* Minimum number of elements per thread. With fewer elements, another thread costs more time than it
 * saves. */
enum { GRAIN = 16 * 1024 };
static inline int64_t grain_rows(int64_t width) { return 1 + GRAIN / (width > 0 ? width : 1); }

/* Rounds n numbers to the 16-bit type of out[0], if it has one, as if the numbers were written to memory and read
 * again. */
static inline void round_to_stored(const Call *c, real *x, int64_t n) {
    enum { PIECE = 256 };
    uint16_t piece[PIECE];
    if (!dtype_is_16bit(c->stored)) return;
    for (int64_t i = 0; i < n; i += PIECE) {
        const size_t some = (size_t)(n - i < PIECE ? n - i : PIECE);
        dtype_convert(piece, c->stored, x + i, REAL_TYPE, some);
        dtype_convert(x + i, REAL_TYPE, piece, c->stored, some);
    }
}
