/* A linear layer for each head: y_h = x_h w_h^T, or x_h w_h if the weights are transposed. y is written. */
#include "kernels/cpu/gemm.h"

typedef struct Heads {
    const Call *call;
    Device device; /* has no thread pool, because heads run in parallel */
} Heads;

static void run_heads(void *arg, int64_t begin, int64_t end) {
    const Heads *h = arg;
    const LinearHeadsAttr *a = h->call->attr;
    const Tensor *x = h->call->in[0], *w = h->call->in[1], *y = h->call->out[0];
    for (int64_t i = begin; i < end; i++) KERNEL(gemm)
    (&h->device, &(Gemm){.transpose_b = !a->transposed,
                         .fixed_order = a->fixed_order,
                         .m = x->dim[0] * x->dim[1],
                         .n = tensor_width(y),
                         .k = tensor_width(x),
                         .a = reals(x) + i * x->stride[3],
                         .lda = x->stride[1],
                         .b = reals(w) + i * w->stride[0],
                         .ldb = w->stride[1],
                         .c = reals(y) + i * y->stride[3],
                         .ldc = y->stride[1]});
}

void KERNEL(linear_heads)(const Call *c) {
    Heads h = {c, *c->device};
    h.device.pool = NULL;
    pool_for(c->device->pool, c->in[0]->dim[3], 1, run_heads, &h);
}
