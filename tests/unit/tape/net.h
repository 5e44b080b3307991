/* A small residual network: an embedding, and four layers x + dropout(gelu(linear(norm(x)))) with shared
 * weights. */
#pragma once

#include "base/philox.h"
#include "ops/activation.h"
#include "ops/dropout.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "tape/tape.h"

enum { S = 7, B = 3, H = 24, V = 11, LAYERS = 4, PARAMS = 4 };
enum { TABLE, GAIN, WEIGHT, BIAS };

typedef struct Net {
    RunContext run;
    Space *slot, *transient;
    Tape *tape;
    Tensor value[PARAMS], grad[PARAMS], id, dy;
} Net;

static inline Tensor tensor_on(const Net *n, DType dtype, int ndim, const int64_t *dim, uint64_t site) {
    Tensor t = tensor_make(NULL, dtype, ndim, dim);
    t.data = device_alloc(n->run.device, tensor_bytes(&t), "test");
    for (int64_t i = 0; site && n->run.device->kind == DEVICE_CPU && i < tensor_count(&t); i++) {
        if (dtype == I64)
            ((int64_t *)t.data)[i] = philox_u32(1, site, (uint64_t)i) % V;
        else {
            double x = philox_normal(1, site, (uint64_t)i) / 2;
            dtype_convert((char *)t.data + (size_t)i * dtype_size(dtype), dtype, &x, F64, 1);
        }
    }
    return t;
}

static inline void open_net(Net *n, Device *device, DType dtype, size_t slot, size_t transient) {
    static const int64_t DIM[PARAMS][2] = {{V, H}, {H}, {H, H}, {H}};
    static const int NDIM[PARAMS] = {2, 1, 2, 1};
    *n = (Net){.run = {.device = device, .dtype = dtype, .seed = 5}};
    for (int i = 0; i < PARAMS; i++) {
        n->value[i] = tensor_on(n, dtype, NDIM[i], DIM[i], (uint64_t)i + 1);
        n->grad[i] = tensor_on(n, dtype == F64 ? F64 : F32, NDIM[i], DIM[i], 0);
        n->grad[i].flags = TENSOR_ACCUM | TENSOR_MAIN_GRAD;
        n->value[i].flags = TENSOR_NEEDS_GRAD;
        n->value[i].grad = &n->grad[i];
    }
    n->id = tensor_on(n, I64, 2, (int64_t[]){B, S}, 50);
    n->dy = tensor_on(n, dtype, 3, (int64_t[]){S, B, H}, 51);
    n->slot = space_new(device, "slot", slot);
    n->transient = space_new(device, "transient", transient);
    n->tape = tape_new(&n->run, n->slot, n->transient);
}

static inline void release(Net *n, Tensor *t) { device_release(n->run.device, t->data, tensor_bytes(t)); }

static inline void close_net(Net *n) {
    tape_free(n->tape);
    space_free(n->slot);
    space_free(n->transient);
    for (int i = 0; i < PARAMS; i++) release(n, &n->value[i]), release(n, &n->grad[i]);
    release(n, &n->id), release(n, &n->dy);
    device_free(n->run.device);
}

/* Runs the branch of layer i and returns its output. */
static inline Tensor *branch_of_net(Net *n, int64_t i, Tensor *x) {
    Tensor *h = op_norm(n->tape, x, &n->value[GAIN], NULL, (NormAttr){.rms = true, .eps = 1e-5});
    h = op_activation(
        n->tape, op_linear(n->tape, h, &(LinearLayer){.w_oi = &n->value[WEIGHT], .bias_o = &n->value[BIAS]}),
        (ActivationAttr){.kind = ACT_GELU_TANH});
    return op_dropout(n->tape, h, 0.25, (uint64_t)i);
}
