/* Tests ops on tensors of more than 2^31 elements. Elements are equal, so that an exact sum of squares of the
 * result shows whether each element was processed once. The tests need about 60 GB of device memory. */
#pragma once

#include "base/exact_sum.h"
#include "unit/ops/case.h"

#define BEYOND_ROWS  (((int64_t)1 << 21) + 3)
#define BEYOND_WIDTH ((int64_t)1024)
#define BEYOND_BYTES ((size_t)60 << 30)

static inline Tensor far_new(Device *d, DType dtype, int64_t rows, int64_t width, double value) {
    Tensor t = tensor_make(NULL, dtype, 3, (int64_t[]){rows, 1, width});
    t.data = device_alloc(d, tensor_bytes(&t), "a large operand");
    if (dtype != I64) call_run(&OPS[OP_fill], &(Call){.out = {&t}, .attr = &(FillAttr){value}, .device = d});
    return t;
}

static inline Tensor far_ids(Device *d, int64_t n, int64_t first, int64_t step) {
    Tensor t = far_new(d, I64, n, 1, 0);
    int64_t *host = mem_alloc((size_t)n * sizeof *host);
    for (int64_t i = 0; i < n; i++) host[i] = first + step * i;
    device_write(d, t.data, host, tensor_bytes(&t));
    free(host);
    return t;
}

static inline void far_free(Device *d, Tensor *t) { device_release(d, t->data, tensor_bytes(t)); }

/* Asserts that all elements are `value`, except for `others` elements that are 0. */
static inline void expect_all(Device *d, const char *what, Tensor *x, double value, int64_t others) {
    ExactSum sum;
    int64_t zeros;
    Tensor s = tensor_make(device_alloc(d, sizeof sum, "a sum"), I64, 1, (int64_t[]){EXACT_WORDS}),
           z = tensor_make(device_alloc(d, sizeof zeros, "a count"), I64, 1, (int64_t[]){1});
    const Tensor flat = tensor_make(x->data, (DType)x->dtype, 1, (int64_t[]){tensor_count(x)});
    call_run(&OPS[OP_sum_squares],
             &(Call){.in = {(Tensor *)&flat}, .out = {&s}, .attr = &(SumAttr){SUM_BLOCK}, .device = d});
    call_run(&OPS[OP_count_zeros], &(Call){.in = {(Tensor *)&flat}, .out = {&z}, .device = d});
    device_read(d, &sum, s.data, sizeof sum);
    device_read(d, &zeros, z.data, sizeof zeros);
    far_free(d, &s), far_free(d, &z);
    const double want = value * value * (double)(tensor_count(x) - others);
    if (exact_value(sum) != want || zeros != others)
        fail_msg("%s: the squares' sum is %.17g, not %.17g, and %lld elements are 0, not %lld", what,
                 exact_value(sum), want, (long long)zeros, (long long)others);
}

static inline void far_elementwise(Device *d) {
    Tensor x = far_new(d, BF16, BEYOND_ROWS, BEYOND_WIDTH, 1),
           y = far_new(d, BF16, BEYOND_ROWS, BEYOND_WIDTH, 0), two = far_new(d, BF16, BEYOND_ROWS, 1, 2),
           gain = far_new(d, BF16, 1, BEYOND_WIDTH, 1), rstd = far_new(d, F32, BEYOND_ROWS, 1, 0),
           same = far_ids(d, BEYOND_ROWS, 0, 1);
    expect_all(d, "fill", &x, 1, 0);
    call_run(&OPS[OP_copy], &(Call){.in = {&x}, .out = {&y}, .device = d});
    expect_all(d, "copy", &y, 1, 0);
    call_run(&OPS[OP_add], &(Call){.in = {&x, &x}, .out = {&y}, .device = d});
    expect_all(d, "add", &y, 2, 0);
    call_run(
        &OPS[OP_activation],
        &(Call){.in = {&y}, .out = {&x}, .attr = &(ActivationAttr){.kind = ACT_SQUARED_RELU}, .device = d});
    expect_all(d, "activation", &x, 4, 0);
    call_run(&OPS[OP_scale_rows],
             &(Call){.in = {&x, &two}, .out = {&y}, .attr = &(ScaleAttr){false}, .device = d});
    expect_all(d, "scale_rows", &y, 8, 0);
    gain.ndim = 1, gain.dim[0] = BEYOND_WIDTH, gain.stride[0] = 1;
    rstd.ndim = 1, rstd.stride[0] = 1;
    call_run(&OPS[OP_norm], &(Call){.in = {&x, &gain},
                                    .out = {&y, &rstd},
                                    .attr = &(NormAttr){.rms = true, .eps = 1e-9},
                                    .device = d});
    expect_all(d, "norm", &y, 1, 0);
    call_run(&OPS[OP_permute],
             &(Call){.in = {&x, &same, &same}, .out = {&y}, .attr = &(PermuteAttr){1}, .device = d});
    expect_all(d, "permute", &y, 4, 0);
    call_run(&OPS[OP_fill], &(Call){.out = {&x}, .attr = &(FillAttr){0}, .device = d});
    call_run(&OPS[OP_unpermute],
             &(Call){.in = {&y, &same, &same}, .out = {&x}, .attr = &(PermuteAttr){1}, .device = d});
    expect_all(d, "unpermute", &x, 4, 0);
    far_free(d, &x), far_free(d, &y), far_free(d, &two), far_free(d, &gain), far_free(d, &rstd),
        far_free(d, &same);
}

/* Runs a linear layer y = x w^T of ones, forward and backward. */
static inline void far_linear(Device *d) {
    enum { ROWS = 1 << 16, IN_WIDTH = 64, OUT_WIDTH = 32784 };
    Tensor x = far_new(d, BF16, ROWS, IN_WIDTH, 1), y = far_new(d, BF16, ROWS, OUT_WIDTH, 0),
           w = far_new(d, BF16, OUT_WIDTH, IN_WIDTH, 1), dw = far_new(d, F32, OUT_WIDTH, IN_WIDTH, 0);
    w.ndim = dw.ndim = 2, w.dim[1] = dw.dim[1] = IN_WIDTH, w.stride[1] = dw.stride[1] = 1;
    const LinearAttr attr = {0};
    call_run(&OPS[OP_linear], &(Call){.in = {&x, &w}, .out = {&y}, .attr = &attr, .device = d});
    expect_all(d, "linear", &y, IN_WIDTH, 0);
    call_run(&OPS[OP_linear_wgrad], &(Call){.in = {&y, &x}, .out = {&dw}, .attr = &attr, .device = d});
    expect_all(d, "linear_wgrad", &dw, (double)IN_WIDTH * ROWS, 0);
    call_run(&OPS[OP_fill], &(Call){.out = {&y}, .attr = &(FillAttr){0x1p-6}, .device = d});
    call_run(&OPS[OP_linear_dgrad], &(Call){.in = {&y, &w}, .out = {&x}, .attr = &attr, .device = d});
    expect_all(d, "linear_dgrad", &x, 512, 0); /* 512.25, rounded to bf16 */
    far_free(d, &x), far_free(d, &y), far_free(d, &w), far_free(d, &dw);
}

/* Looks up rows at the end of a table, computes their gradients, and updates the table. */
static inline void far_vocabulary(Device *d) {
    enum { TOKENS = 64 };
    Tensor w = far_new(d, BF16, BEYOND_ROWS, BEYOND_WIDTH, 1), y = far_new(d, BF16, TOKENS, BEYOND_WIDTH, 0),
           id = far_ids(d, TOKENS, BEYOND_ROWS - TOKENS, 1),
           dw = far_new(d, F32, BEYOND_ROWS, BEYOND_WIDTH, 0);
    id.ndim = w.ndim = dw.ndim = 2, id.dim[0] = 1, id.dim[1] = TOKENS, id.stride[0] = TOKENS,
    id.stride[1] = 1;
    w.dim[1] = dw.dim[1] = BEYOND_WIDTH, w.stride[1] = dw.stride[1] = 1;
    const EmbeddingAttr attr = {.total = BEYOND_ROWS};
    call_run(&OPS[OP_embedding], &(Call){.in = {&id, &w}, .out = {&y}, .attr = &attr, .device = d});
    expect_all(d, "embedding", &y, 1, 0);
    call_run(&OPS[OP_embedding_grad], &(Call){.in = {&y, &id}, .out = {&dw}, .attr = &attr, .device = d});
    expect_all(d, "embedding_grad", &dw, 1, (BEYOND_ROWS - TOKENS) * BEYOND_WIDTH);
    const AdamAttr adam = {
        .group = {{.lr = 1}}, .beta1 = 0, .beta2 = 0, .correction1 = 1, .correction2 = 1, .grad_scale = 1};
    Tensor *g = &dw, p = far_new(d, F32, BEYOND_ROWS, BEYOND_WIDTH, 2),
           m = far_new(d, F32, BEYOND_ROWS, BEYOND_WIDTH, 0),
           v = far_new(d, F32, BEYOND_ROWS, BEYOND_WIDTH, 0);
    call_run(&OPS[OP_fill], &(Call){.out = {g}, .attr = &(FillAttr){4}, .device = d});
    g->ndim = p.ndim = m.ndim = v.ndim = 1,
    g->dim[0] = p.dim[0] = m.dim[0] = v.dim[0] = BEYOND_ROWS * BEYOND_WIDTH;
    g->stride[0] = p.stride[0] = m.stride[0] = v.stride[0] = 1;
    call_run(&OPS[OP_adamw], &(Call){.in = {g}, .out = {&p, &m, &v}, .attr = &adam, .device = d});
    expect_all(d, "adamw, parameters", &p, 1, 0); /* 2 - 4 / sqrt(16) */
    expect_all(d, "adamw, squares", &v, 16, 0);
    far_free(d, &p), far_free(d, &m), far_free(d, &v), far_free(d, &y), far_free(d, &id), far_free(d, &dw);
    far_free(d, &w);
}

static inline void far_loss(Device *d) {
    enum { TOKENS = 65600, COLUMNS = 32768 }; /* logits are 0, so the softmax is 2^-15 */
    Tensor x = far_new(d, BF16, TOKENS, COLUMNS, 0), label = far_ids(d, TOKENS, 0, 0),
           dloss = far_new(d, F32, 1, TOKENS, 1), loss = far_new(d, F32, 1, TOKENS, 0),
           lse = far_new(d, F32, 1, TOKENS, 0);
    label.ndim = dloss.ndim = loss.ndim = lse.ndim = 2;
    label.dim[0] = dloss.dim[0] = loss.dim[0] = lse.dim[0] = 1;
    label.dim[1] = dloss.dim[1] = loss.dim[1] = lse.dim[1] = TOKENS;
    label.stride[1] = dloss.stride[1] = loss.stride[1] = lse.stride[1] = 1;
    const LossAttr attr = {.vocab = COLUMNS};
    call_run(&OPS[OP_cross_entropy],
             &(Call){.in = {&x, &label}, .out = {&loss, &lse}, .attr = &attr, .device = d});
    float last[2];
    device_read(d, last, (char *)loss.data + (TOKENS - 2) * sizeof *last, sizeof last);
    for (int i = 0; i < 2; i++)
        if (!(fabs((double)last[i] - log(COLUMNS)) < 1e-5))
            fail_msg("cross_entropy: the last losses are %g", (double)last[i]);
    call_run(&OPS[OP_cross_entropy_grad],
             &(Call){.in = {&dloss, &x, &label, &lse}, .out = {&x}, .attr = &attr, .device = d});
    uint16_t bits[COLUMNS];
    device_read(d, bits, (char *)x.data + (size_t)(TOKENS - 1) * sizeof bits, sizeof bits);
    for (int i = 0; i < COLUMNS; i++)
        if (fabs((double)bf16_to_float(bits[i]) - (0x1p-15 - (i == 0))) > 0x1p-8)
            fail_msg("cross_entropy_grad: column %d of the last token is %g", i,
                     (double)bf16_to_float(bits[i]));
    far_free(d, &x), far_free(d, &label), far_free(d, &dloss), far_free(d, &loss), far_free(d, &lse);
}
