/* A tensor is a view that owns no memory. A tensor's bytes belong to a Space, a parameter buffer or a batch.
 * A tensor is never freed. The last dimension of a float tensor is always contiguous (stride 1). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"
#include "tensor/spmd.h"

enum { TENSOR_DIMS = 5 };

typedef enum TensorFlags {
    TENSOR_ACCUM = 1,      /* a kernel that writes the tensor adds to its content, as for gradients */
    TENSOR_NEEDS_GRAD = 2, /* the tensor is a parameter, or was computed from a parameter */
    /* The tensor is the persistent gradient of a parameter. A main gradient always has TENSOR_ACCUM set, and the tape
     * never frees it. */
    TENSOR_MAIN_GRAD = 4,
} TensorFlags;

typedef struct Tensor {
    void *data; /* the address, which must not be dereferenced on the null device */
    int64_t dim[TENSOR_DIMS], stride[TENSOR_DIMS]; /* strides are in elements */
    uint8_t ndim, dtype, flags;
    int8_t cut;          /* for a parameter that is V on an axis, 1 + the sharded dimension; otherwise 0 */
    SpmdType spmd;       /* the type along each axis of the mesh */
    int32_t refs;        /* for a gradient: number of tensors that share the gradient; managed by the tape */
    struct Tensor *grad; /* NULL until a gradient has been computed; for a parameter, its main gradient */
    struct Tensor *base; /* for a view: the tensor whose bytes the view shares; otherwise NULL */
} Tensor;

/* Returns a contiguous tensor over `data`. */
Tensor tensor_make(void *data, DType, int ndim, const int64_t *dim);
/* Returns a view of elements [first, first + n) along a dimension. */
Tensor tensor_slice(const Tensor *, int dim, int64_t first, int64_t n);
int64_t tensor_count(const Tensor *); /* returns the number of elements */
size_t tensor_bytes(const Tensor *);
/* tensor_extent returns the number of bytes from the lowest element in memory to the end of the highest
 * element, including gaps. tensor_lowest returns the address of the lowest element, which precedes `data` if
 * a stride is negative. */
size_t tensor_extent(const Tensor *);
void *tensor_lowest(const Tensor *);
bool tensor_is_contiguous(const Tensor *);
bool tensor_same_shape(const Tensor *, const Tensor *);
/* Rows are the slices along the last dimension. tensor_row_offset returns the offset of a row in elements. */
int64_t tensor_rows(const Tensor *);
int64_t tensor_width(const Tensor *); /* returns the size of the last dimension */
int64_t tensor_row_offset(const Tensor *, int64_t row);
/* Returns the address that is `offset` elements after `data`; the offset may be negative. */
void *tensor_at(const Tensor *, int64_t offset);
/* Returns a description for messages, such as "F32 [37, 2, 64]". */
const char *tensor_describe(const Tensor *, char *buffer, size_t n);
