#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/fault.h"

Tensor tensor_make(void *data, DType dtype, int ndim, const int64_t *dim) {
    CHECK(ndim >= 1 && ndim <= TENSOR_DIMS, "a tensor has 1 to %d dimensions, not %d", TENSOR_DIMS, ndim);
    Tensor t = {.data = data, .ndim = (uint8_t)ndim, .dtype = (uint8_t)dtype};
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        CHECK(dim[i] >= 0, "dimension %d has the invalid size %lld", i, (long long)dim[i]);
        t.dim[i] = dim[i];
        t.stride[i] = stride;
        stride *= dim[i];
    }
    return t;
}

Tensor tensor_slice(const Tensor *t, int dim, int64_t first, int64_t n) {
    CHECK(dim < t->ndim && first >= 0 && n >= 0 && first + n <= t->dim[dim],
          "%lld elements at index %lld along dimension %d are outside the tensor", (long long)n,
          (long long)first, dim);
    Tensor slice = *t;
    slice.dim[dim] = n;
    slice.data = tensor_at(t, first * t->stride[dim]);
    return slice;
}

int64_t tensor_count(const Tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

size_t tensor_bytes(const Tensor *t) { return (size_t)tensor_count(t) * dtype_size((DType)t->dtype); }

size_t tensor_extent(const Tensor *t) {
    int64_t steps = 0;
    for (int i = 0; i < t->ndim; i++) steps += (t->dim[i] - 1) * llabs(t->stride[i]);
    return tensor_count(t) ? (size_t)(steps + 1) * dtype_size((DType)t->dtype) : 0;
}

void *tensor_lowest(const Tensor *t) {
    int64_t below = 0;
    for (int i = 0; i < t->ndim && tensor_count(t); i++)
        if (t->stride[i] < 0) below += (t->dim[i] - 1) * t->stride[i];
    return tensor_at(t, below);
}

void *tensor_at(const Tensor *t, int64_t offset) {
    return (char *)t->data + offset * (int64_t)dtype_size((DType)t->dtype);
}

bool tensor_is_contiguous(const Tensor *t) {
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != stride) return false;
        stride *= t->dim[i];
    }
    return true;
}

bool tensor_same_shape(const Tensor *a, const Tensor *b) {
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

int64_t tensor_width(const Tensor *t) { return t->dim[t->ndim - 1]; }

int64_t tensor_rows(const Tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim - 1; i++) n *= t->dim[i];
    return n;
}

/* Merges adjacent dimensions whose elements are evenly spaced, because merged dimensions need only one
 * division. The outermost dimension needs no division. */
int64_t tensor_row_offset(const Tensor *t, int64_t row) {
    int64_t offset = 0;
    for (int i = t->ndim - 2; i >= 0;) {
        const int64_t step = t->stride[i];
        int64_t extent = t->dim[i];
        for (i--; i >= 0 && t->stride[i] == extent * step; i--) extent *= t->dim[i];
        if (i < 0) return offset + row * step;
        offset += row % extent * step;
        row /= extent;
    }
    return offset;
}

const char *tensor_describe(const Tensor *t, char *buffer, size_t n) {
    int used = snprintf(buffer, n, "%s [", dtype_name((DType)t->dtype));
    for (int i = 0; i < t->ndim && used < (int)n; i++)
        used += snprintf(buffer + used, n - (size_t)used, i ? ", %lld" : "%lld", (long long)t->dim[i]);
    if (used < (int)n) snprintf(buffer + used, n - (size_t)used, "]");
    return buffer;
}
