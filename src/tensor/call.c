#include "tensor/call.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "tensor/backend.h"

static const Tensor *first_float(const Call *c) {
    for (int i = 0; i < CALL_IN; i++)
        if (c->in[i] && dtype_is_float((DType)c->in[i]->dtype)) return c->in[i];
    for (int i = 0; i < CALL_OUT; i++)
        if (c->out[i] && dtype_is_float((DType)c->out[i]->dtype)) return c->out[i];
    return NULL;
}

static void convert_rows(Tensor *dst, const Tensor *src) {
    size_t width = (size_t)tensor_width(src);
    for (int64_t r = 0, rows = tensor_rows(src); r < rows; r++)
        dtype_convert((char *)dst->data + (size_t)tensor_row_offset(dst, r) * dtype_size((DType)dst->dtype),
                      (DType)dst->dtype,
                      (const char *)src->data +
                          (size_t)tensor_row_offset(src, r) * dtype_size((DType)src->dtype),
                      (DType)src->dtype, width);
}

static Tensor *widen(Tensor *t, Tensor *copy, bool load) {
    if (!t || !dtype_is_16bit((DType)t->dtype)) return t;
    *copy = tensor_make(mem_aligned((size_t)tensor_count(t) * sizeof(float)), F32, t->ndim, t->dim);
    copy->flags = t->flags;
    if (load) convert_rows(copy, t);
    return copy;
}

static void run_f32(const OpDef *op, const Call *c) {
    Call wide = *c;
    Tensor in[CALL_IN], out[CALL_OUT];
    for (int i = 0; i < CALL_IN; i++) wide.in[i] = widen(c->in[i], &in[i], true);
    for (int i = 0; i < CALL_OUT; i++)
        wide.out[i] = widen(c->out[i], &out[i], c->out[i] && c->out[i]->flags & TENSOR_ACCUM);
    wide.stored = c->out[0] ? (DType)c->out[0]->dtype : F32;
    op->cpu_f32(&wide);
    for (int i = 0; i < CALL_OUT; i++) {
        if (wide.out[i] == c->out[i]) continue;
        convert_rows(c->out[i], wide.out[i]);
        free(wide.out[i]->data);
    }
    for (int i = 0; i < CALL_IN; i++)
        if (wide.in[i] != c->in[i]) free(wide.in[i]->data);
}

static void run_cpu(const OpDef *op, const Call *c) {
    const Tensor *lead = first_float(c);
    OpProfile *profile = c->device->profile ? &c->device->profile[op->number] : NULL;
    const int64_t start = profile ? clock_ns() : 0;
    if (!lead || lead->dtype == F64)
        op->cpu_f64(c);
    else
        run_f32(op, c);
    if (profile) profile->calls++, profile->ns += clock_ns() - start;
}

static void run_cuda(const OpDef *op, const Call *c) {
    c->device->backend->begin(c->device, op->name);
    op->cuda(c);
    c->device->backend->end(c->device, op->number);
}

static void plan(const OpDef *op, const Call *c) {
    if (!c->device->cuda || !op->cuda_plans) return;
    const size_t bytes = op->cuda_plans(c);
    if (bytes > c->device->scratch) c->device->scratch = bytes;
}

void call_run(const OpDef *op, const Call *c) {
    if (c->device->kind == DEVICE_NULL) {
        plan(op, c);
        return;
    }
    FaultScope *scope = fault_scope_now();
    char *op_name = scope ? scope->op : NULL;
    if (op_name) snprintf(op_name, sizeof scope->op, "%s", op->name);
    if (c->device->kind == DEVICE_CUDA)
        run_cuda(op, c);
    else
        run_cpu(op, c);
    if (op_name) *op_name = 0;
}
