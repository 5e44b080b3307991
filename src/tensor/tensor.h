/* A tensor is a plain view. Its bytes belong to a Space, a parameter buffer or a batch; a tensor is never
 * freed. The last dimension of a float tensor is always contiguous (stride 1). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"
#include "tensor/spmd.h"

enum { TENSOR_DIMS = 5 };

typedef enum TensorFlags {
    TENSOR_ACCUM = 1,      /* a kernel that writes this tensor adds to it, as for gradients */
    TENSOR_NEEDS_GRAD = 2, /* a parameter, or computed from a parameter */
    TENSOR_MAIN_GRAD =
        /* The persistent gradient of a parameter: always ACCUM, never freed by the tape. */
    4,
} TensorFlags;

typedef struct Tensor {
    void *data; /* on the null device an address that must not be dereferenced */
    int64_t dim[TENSOR_DIMS], stride[TENSOR_DIMS]; /* in elements */
    uint8_t ndim, dtype, flags;
    int8_t cut;          /* 1 + the sharded dimension of a parameter that is V on an axis; otherwise 0 */
    SpmdType spmd;       /* type along each axis of the mesh */
    int32_t refs;        /* a gradient: number of tensors that share it; managed by the tape */
    struct Tensor *grad; /* NULL until a gradient has arrived; for a parameter, its main gradient */
    struct Tensor *base; /* in a view: the tensor whose bytes it shows; otherwise NULL */
} Tensor;

/* A contiguous tensor over `data`. */
Tensor tensor_make(void *data, DType, int ndim, const int64_t *dim);
/* A view of elements [first, first + n) along a dimension. */
Tensor tensor_slice(const Tensor *, int dim, int64_t first, int64_t n);
int64_t tensor_count(const Tensor *); /* elements */
size_t tensor_bytes(const Tensor *);
/* Return the number of bytes from the lowest element in memory to the end of the highest, including gaps, and
 * the address of the lowest, which precedes `data` if a stride is negative. */
size_t tensor_extent(const Tensor *);
void *tensor_lowest(const Tensor *);
bool tensor_is_contiguous(const Tensor *);
bool tensor_same_shape(const Tensor *, const Tensor *);
/* Rows are the slices along the last dimension. tensor_row_offset returns the offset of a row in elements. */
int64_t tensor_rows(const Tensor *);
int64_t tensor_width(const Tensor *); /* the last dimension */
int64_t tensor_row_offset(const Tensor *, int64_t row);
/* The address `offset` elements after `data`; a negative offset is allowed. */
void *tensor_at(const Tensor *, int64_t offset);
/* "F32 [37, 2, 64]" for messages. */
const char *tensor_describe(const Tensor *, char *buffer, size_t n);
