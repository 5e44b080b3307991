/* The operands of one forward and backward pass of attention, in host memory. */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "tensor/call.h"

typedef struct Shape {
    int64_t s, t, b, g, r, d, e;
    AttentionAttr attr;
    DType dtype;
    bool packed;    /* each group's q, k and v are adjacent, as in Megatron-LM; s = t, d = e */
    size_t memory;  /* memory of the GPU; 0 means enough */
    bool any_order; /* the GPU may sum in any order */
    bool padded;    /* samples have decreasing lengths: t, ..., 0 */
} Shape;

enum { Q, K, V, DY, Y, DQ, DK, DV, TENSORS };
static const char *const TENSOR_NAMES[TENSORS] = {"q", "k", "v", "dy", "y", "dq", "dk", "dv"};

/* All tensors of one forward and backward pass, with one type. */
typedef struct Run {
    Shape shape;
    Tensor x[TENSORS], lse, lengths;
    void *memory[TENSORS]; /* packed tensors share the memory of the first of them */
    size_t bytes[TENSORS];
} Run;

static void set(const Tensor *t, int64_t at, double x) {
    dtype_convert((char *)t->data + (size_t)at * dtype_size((DType)t->dtype), (DType)t->dtype, &x, F64, 1);
}
static double get(const Tensor *t, int64_t at) {
    double x;
    dtype_convert(&x, F64, (char *)t->data + (size_t)at * dtype_size((DType)t->dtype), (DType)t->dtype, 1);
    return x;
}

static Tensor tensor_in(Run *r, int which, DType dtype, int ndim, const int64_t *dim) {
    Tensor t = tensor_make(NULL, dtype, ndim, dim);
    r->bytes[which] = tensor_bytes(&t);
    t.data = r->memory[which] = mem_aligned(r->bytes[which]);
    for (int64_t i = 0, n = tensor_count(&t); i < n; i++) set(&t, i, NAN);
    return t;
}

/* Makes q, k and v (or their gradients) views of one tensor. */
static void pack(Run *r, int first, DType dtype) {
    const Shape *p = &r->shape;
    const int64_t group = (p->r + 2) * p->d;
    Tensor whole = tensor_in(r, first, dtype, 3, (int64_t[]){p->s, p->b, p->g * group});
    for (int i = 0; i < 3; i++) {
        Tensor *x = &r->x[first + i];
        *x =
            tensor_make((char *)whole.data + (size_t)(i == 0 ? 0 : (p->r + i - 1) * p->d) * dtype_size(dtype),
                        dtype, 5, (int64_t[]){p->s, p->b, p->g, i == 0 ? p->r : 1, p->d});
        const int64_t stride[] = {whole.stride[0], whole.stride[1], group, p->d, 1};
        memcpy(x->stride, stride, sizeof stride);
    }
}

/* Allocates the tensors. Values depend only on the index of an element, and are exact in 16 bits. */
static Run run_new(Shape p, DType dtype) {
    Run r = {.shape = p};
    const int64_t heads[] = {p.s, p.b, p.g, p.r, p.d}, keys[] = {p.t, p.b, p.g, 1, p.d},
                  values[] = {p.t, p.b, p.g, 1, p.e}, out[] = {p.s, p.b, p.g, p.r, p.e},
                  lse[] = {p.b, p.g, p.r, p.s};
    const int64_t *dims[TENSORS] = {heads, keys, values, out, out, heads, keys, values};
    for (int i = 0; i < TENSORS; i++)
        if (!p.packed || i == DY || i == Y) r.x[i] = tensor_in(&r, i, dtype, 5, dims[i]);
    if (p.packed) pack(&r, Q, dtype), pack(&r, DQ, dtype);
    r.lse = tensor_make(NULL, dtype == F64 ? F64 : F32, 4, lse);
    r.lse.data = mem_aligned(tensor_bytes(&r.lse));
    r.lengths = tensor_make(NULL, I64, 1, &p.b);
    r.lengths.data = mem_aligned(tensor_bytes(&r.lengths) + 1);
    for (int64_t i = 0; i < p.b; i++) ((int64_t *)r.lengths.data)[i] = i < 2 ? p.t - i * (p.t / 3) : 0;
    for (int i = Q; i <= DY; i++)
        for (int64_t row = 0, n = 0; row < tensor_rows(&r.x[i]); row++)
            for (int64_t c = 0; c < tensor_width(&r.x[i]); c++, n++) {
                const float x = (float)(4 * philox_uniform(11, (uint64_t)i, (uint64_t)n) - 2);
                set(&r.x[i], tensor_row_offset(&r.x[i], row) + c, bf16_to_float(bf16_from_float(x)));
            }
    return r;
}

static void run_free(Run *r) {
    for (int i = 0; i < TENSORS; i++) free(r->memory[i]);
    free(r->lse.data), free(r->lengths.data);
}

static Tensor *lengths_of(Run *r) { return r->shape.padded ? &r->lengths : NULL; }

static Call forward_call(Run *r, Device *d) {
    Tensor *x = r->x;
    return (Call){.in = {&x[Q], &x[K], &x[V], NULL, lengths_of(r)},
                  .out = {&x[Y], &r->lse},
                  .attr = &r->shape.attr,
                  .device = d};
}
static Call backward_call(Run *r, Device *d) {
    Tensor *x = r->x;
    return (Call){.in = {&x[DY], &x[Q], &x[K], &x[V], &x[Y], &r->lse, NULL, lengths_of(r)},
                  .out = {&x[DQ], &x[DK], &x[DV]},
                  .attr = &r->shape.attr,
                  .device = d};
}

/* The norm of a - b relative to that of b; NaN if any element is NaN. */
static double error(const Tensor *a, const Tensor *b) {
    double error = 0, size = 0;
    for (int64_t row = 0; row < tensor_rows(a); row++)
        for (int64_t c = 0; c < tensor_width(a); c++) {
            const double x = get(a, tensor_row_offset(a, row) + c), y = get(b, tensor_row_offset(b, row) + c);
            if (x == y && isinf(x)) continue;
            error += (x - y) * (x - y), size += y * y;
        }
    return sqrt(error / size);
}

static const AttentionAttr CAUSAL = {.scale = 0.3, .window_left = WINDOW_OFF},
                           ALL = {.scale = 0.3, .window_left = WINDOW_OFF, .window_right = WINDOW_OFF};
