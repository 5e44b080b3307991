/* A mock of cuDNN that executes the operations of a graph on the host, so that tests can check that graphs
 * are correct. It does not check whether cuDNN supports a graph. */
#pragma once

#include <cudnn_graph.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/dtype.h"

enum { MOCK_ATTRIBUTES = 10, MOCK_WORKSPACE = 1000 };

typedef struct MockAttribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n;
    void *values;
} MockAttribute;

typedef struct MockDescriptor {
    cudnnBackendDescriptorType_t type;
    MockAttribute attribute[MOCK_ATTRIBUTES];
    int n;
    bool finished;
    struct MockDescriptor *whole; /* for a configuration: its graph */
    double *values;               /* for a tensor: its values while the graph runs */
} MockDescriptor;

typedef struct MockCount {
    size_t version;
    int64_t descriptors, plans, runs; /* descriptors: number that exist */
} MockCount;
static MockCount mock = {.version = 91900};

static size_t mock_size(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    case CUDNN_TYPE_BOOLEAN:
        return 1;
    default:
        return 4;
    }
}

static const MockAttribute *mock_find(const MockDescriptor *d, cudnnBackendAttributeName_t name) {
    for (int i = 0; i < d->n; i++)
        if (d->attribute[i].name == name) return &d->attribute[i];
    return NULL;
}
static int64_t mock_integer(const MockDescriptor *d, cudnnBackendAttributeName_t name) {
    const MockAttribute *a = mock_find(d, name);
    CHECK(a, "a descriptor of kind %d without attribute %d", (int)d->type, (int)name);
    return mock_size(a->type) == 8 ? *(const int64_t *)a->values : *(const int32_t *)a->values;
}
static MockDescriptor *mock_descriptor(const MockDescriptor *d, cudnnBackendAttributeName_t name) {
    const MockAttribute *a = mock_find(d, name);
    return a ? *(MockDescriptor *const *)a->values : NULL;
}

/* ---- tensors: all numbers are doubles, in the layout of the strides ---- */

typedef struct MockTensor {
    const int64_t *dim, *stride;
    double *x;
} MockTensor;

static MockTensor mock_tensor(const MockDescriptor *d) {
    return (MockTensor){mock_find(d, CUDNN_ATTR_TENSOR_DIMENSIONS)->values,
                        mock_find(d, CUDNN_ATTR_TENSOR_STRIDES)->values, d->values};
}
static int64_t mock_extent(const MockDescriptor *d) {
    const MockTensor t = mock_tensor(d);
    int64_t n = 1;
    for (int i = 0; i < 4; i++) n += (t.dim[i] - 1) * t.stride[i];
    return n;
}
static int64_t mock_count(const MockTensor *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }
static void mock_place(const MockTensor *t, int64_t i, int64_t *at) {
    for (int k = 3; k >= 0; k--) at[k] = i % t->dim[k], i /= t->dim[k];
}
/* The element of t for a position in a tensor of size `of`. Dimensions of size 1 are broadcast. In a
 * dimension that is smaller in t (key heads), each element is used for several consecutive positions. */
static double *mock_at(const MockTensor *t, const int64_t *at, const int64_t *of) {
    int64_t offset = 0;
    for (int k = 0; k < 4; k++) offset += at[k] / (of[k] / t->dim[k]) * t->stride[k];
    return t->x + offset;
}

static DType mock_dtype(const MockDescriptor *d) {
    switch (mock_integer(d, CUDNN_ATTR_TENSOR_DATA_TYPE)) {
    case CUDNN_DATA_BFLOAT16:
        return BF16;
    case CUDNN_DATA_HALF:
        return F16;
    case CUDNN_DATA_INT32:
        return I32;
    default:
        return F32;
    }
}

/* Copies elements between the caller's memory and the mock's values. Gaps between elements are not
 * accessed. */
static void mock_move(MockDescriptor *d, char *memory, bool store) {
    const MockTensor t = mock_tensor(d);
    const DType type = mock_dtype(d);
    for (int64_t i = 0, n = mock_count(&t), at[4]; i < n; i++) {
        mock_place(&t, i, at);
        double *x = mock_at(&t, at, t.dim);
        char *cell = memory + (size_t)(x - t.x) * dtype_size(type);
        if (type == I32)
            *x = *(int32_t *)cell;
        else if (store)
            dtype_convert(cell, type, x, F64, 1);
        else
            dtype_convert(x, F64, cell, type, 1);
    }
}

/* ---- operations ---- */

static double mock_apply(int64_t mode, double x, double b, double t) {
    switch (mode) {
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_CMP_GT:
        return x > b;
    case CUDNN_POINTWISE_CMP_LT:
        return x < b;
    case CUDNN_POINTWISE_LOGICAL_AND:
        return x != 0 && b != 0;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    default:
        CHECK(0, "pointwise mode %d", (int)mode);
        return 0;
    }
}

static void mock_pointwise(const MockDescriptor *op) {
    const MockDescriptor *how = mock_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
                         *b = mock_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                         *t = mock_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const MockTensor x = mock_tensor(mock_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)),
                     y = mock_tensor(mock_descriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    const int64_t mode = mock_integer(how, CUDNN_ATTR_POINTWISE_MODE);
    for (int64_t i = 0, n = mock_count(&y), at[4]; i < n; i++) {
        mock_place(&y, i, at);
        const MockTensor second = b ? mock_tensor(b) : y, third = t ? mock_tensor(t) : y;
        *mock_at(&y, at, y.dim) = mode == CUDNN_POINTWISE_GEN_INDEX
                                      ? (double)at[mock_integer(how, CUDNN_ATTR_POINTWISE_AXIS)]
                                      : mock_apply(mode, *mock_at(&x, at, y.dim),
                                                   *mock_at(&second, at, y.dim), *mock_at(&third, at, y.dim));
    }
}

/* The size of a batch element's GEMM, which an operand may override. */
static int64_t mock_gemm_size(const MockDescriptor *op, cudnnBackendAttributeName_t name, int64_t batch,
                              int64_t size) {
    const MockDescriptor *lengths = mock_descriptor(op, name);
    if (!lengths) return size;
    const int64_t n = (int64_t)lengths->values[batch * mock_tensor(lengths).stride[0]];
    CHECK(n <= size, "a GEMM of size %lld, more than %lld", (long long)n, (long long)size);
    return n;
}

static void mock_matmul(const MockDescriptor *op) {
    const MockTensor a = mock_tensor(mock_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
                     b = mock_tensor(mock_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
                     c = mock_tensor(mock_descriptor(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    const int64_t inner = a.dim[3];
    CHECK(a.dim[2] == c.dim[2] && b.dim[2] == inner && b.dim[3] == c.dim[3],
          "a GEMM of sizes that do not fit");
    for (int64_t i = 0, n = mock_count(&c), at[4]; i < n; i++) {
        double sum = 0;
        mock_place(&c, i, at);
        const int64_t of_a[4] = {c.dim[0], c.dim[1], c.dim[2], inner},
                      of_b[4] = {c.dim[0], c.dim[1], inner, c.dim[3]};
        const int64_t m = mock_gemm_size(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, at[0],
                                         c.dim[2]),
                      width = mock_gemm_size(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, at[0],
                                             c.dim[3]),
                      depth =
                          mock_gemm_size(op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, at[0], inner);
        for (int64_t k = 0; at[2] < m && at[3] < width && k < depth; k++)
            sum += *mock_at(&a, (int64_t[]){at[0], at[1], at[2], k}, of_a) *
                   *mock_at(&b, (int64_t[]){at[0], at[1], k, at[3]}, of_b);
        *mock_at(&c, at, c.dim) = sum;
    }
}

static void mock_reduce(const MockDescriptor *op) {
    const MockDescriptor *how = mock_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const MockTensor x = mock_tensor(mock_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
                     y = mock_tensor(mock_descriptor(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    const bool max = mock_integer(how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    int64_t at[4];
    for (int64_t i = 0, n = mock_count(&y); i < n; i++) {
        mock_place(&y, i, at);
        *mock_at(&y, at, y.dim) = max ? -INFINITY : 0;
    }
    for (int64_t i = 0, n = mock_count(&x); i < n; i++) {
        mock_place(&x, i, at);
        double *to = mock_at(&y, at, x.dim), value = *mock_at(&x, at, x.dim);
        *to = max ? fmax(*to, value) : *to + value;
    }
}

/* Makes a view of the same memory with different sizes and strides. */
static void mock_reshape(const MockDescriptor *op) {
    const MockDescriptor *x = mock_descriptor(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    MockDescriptor *y = mock_descriptor(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    const int64_t n = mock_extent(x);
    CHECK(n == mock_extent(y), "a view of another size");
    memcpy(y->values, x->values, (size_t)n * sizeof(double));
}

static void mock_operation(const MockDescriptor *op) {
    switch (op->type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        mock_pointwise(op);
        break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        mock_matmul(op);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        mock_reduce(op);
        break;
    default:
        CHECK(op->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "an operation of kind %d",
              (int)op->type);
        mock_reshape(op);
    }
}

/* ---- running a graph on the caller's memory ---- */

/* Calls visit(tensor, whether an operation writes it) for the tensors of a graph, once for each use. */
typedef void MockVisit(MockDescriptor *tensor, bool written, void *arg);
static void mock_visit(const MockDescriptor *graph, MockVisit *visit, void *arg) {
    const MockAttribute *ops = mock_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; i < ops->n; i++) {
        const MockDescriptor *op = ((MockDescriptor *const *)ops->values)[i];
        for (int k = 0; k < op->n; k++) {
            MockDescriptor *t = *(MockDescriptor *const *)op->attribute[k].values;
            const cudnnBackendAttributeName_t name = op->attribute[k].name;
            const bool written =
                name == CUDNN_ATTR_OPERATION_POINTWISE_YDESC || name == CUDNN_ATTR_OPERATION_MATMUL_CDESC ||
                name == CUDNN_ATTR_OPERATION_REDUCTION_YDESC || name == CUDNN_ATTR_OPERATION_RESHAPE_YDESC;
            if (t->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) visit(t, written, arg);
        }
    }
}

static char *mock_memory(const MockDescriptor *pack, const MockDescriptor *tensor) {
    const MockAttribute *ids = mock_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                        *data = mock_find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (int64_t i = 0; i < ids->n; i++)
        if (((int64_t *)ids->values)[i] == mock_integer(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID))
            return ((char **)data->values)[i];
    CHECK(mock_find(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL), "tensor %lld has no address",
          (long long)mock_integer(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID));
    return NULL;
}

static void mock_load(MockDescriptor *t, bool written, void *pack) {
    char *memory = mock_memory(pack, t);
    (void)written;
    if (t->values) return;
    const size_t n = (size_t)mock_extent(t);
    t->values = mem_alloc(n * sizeof(double));
    for (size_t i = 0; i < n; i++) t->values[i] = NAN;
    if (!memory) return;
    CHECK((uintptr_t)memory % 16 == 0, "tensor %lld at %p",
          (long long)mock_integer(t, CUDNN_ATTR_TENSOR_UNIQUE_ID), (void *)memory);
    for (int k = 0; k < 4 && dtype_is_16bit(mock_dtype(t)); k++)
        CHECK(mock_tensor(t).stride[k] == 1 || mock_tensor(t).stride[k] % 8 == 0,
              "tensor %lld has stride %lld", (long long)mock_integer(t, CUDNN_ATTR_TENSOR_UNIQUE_ID),
              (long long)mock_tensor(t).stride[k]);
    mock_move(t, memory, false);
}

static void mock_store(MockDescriptor *t, bool written, void *pack) {
    char *memory = mock_memory(pack, t);
    if (memory && written) mock_move(t, memory, true);
}

static void mock_forget(MockDescriptor *t, bool written, void *arg) {
    (void)written, (void)arg;
    free(t->values);
    t->values = NULL;
}

/* ---- the interface ---- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out) {
    MockDescriptor *d = mem_zero(1, sizeof *d);
    d->type = type;
    mock.descriptors++;
    mock.plans += type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t x) {
    MockDescriptor *d = x;
    for (int i = 0; i < d->n; i++) free(d->attribute[i].values);
    free(d);
    mock.descriptors--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t x, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n, const void *values) {
    MockDescriptor *d = x;
    const size_t bytes = (size_t)n * mock_size(type);
    CHECK(!d->finished && d->n < MOCK_ATTRIBUTES && !mock_find(d, name), "attribute %d", (int)name);
    for (int64_t i = 0; i < n && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++) {
        const MockDescriptor *part = ((MockDescriptor *const *)values)[i];
        CHECK(part->finished || part->whole, "attribute %d is not finished", (int)name);
    }
    MockAttribute *a = &d->attribute[d->n++];
    *a = (MockAttribute){name, type, n, mem_zero(1, bytes < 8 ? 8 : bytes)};
    memcpy(a->values, values, bytes);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t x) {
    ((MockDescriptor *)x)->finished = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const x, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most, int64_t *n,
                                       void *out) {
    const MockDescriptor *d = x;
    CHECK(d->finished && most == 1, "a question about attribute %d of type %d", (int)name, (int)type);
    *n = 1;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        MockDescriptor *config = *(MockDescriptor **)out;
        config->whole = mock_descriptor(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    } else {
        CHECK(name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, "a question about attribute %d", (int)name);
        *(int64_t *)out = MOCK_WORKSPACE;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    const MockDescriptor *graph = mock_descriptor(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->whole;
    const MockAttribute *ops = mock_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    char *workspace = *(char **)mock_find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->values;
    CHECK(handle && (uintptr_t)workspace % 256 == 0, "a workspace at %p", (void *)workspace);
    memset(workspace, 0xff, MOCK_WORKSPACE); /* only cuDNN uses the workspace */
    mock_visit(graph, mock_load, pack);
    for (int64_t i = 0; i < ops->n; i++) mock_operation(((MockDescriptor *const *)ops->values)[i]);
    mock_visit(graph, mock_store, pack);
    mock_visit(graph, mock_forget, NULL);
    mock.runs++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    *handle = mem_zero(1, 1);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    (void)handle, (void)stream;
    return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion(void) { return mock.version; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return status ? "an error" : "no error"; }
void cudnnGetLastErrorString(char *message, size_t n) {
    if (n) *message = 0;
}
