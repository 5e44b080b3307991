/* Computes GEMMs of FP8 operands by dequantizing the operands first. c is written or accumulated; act is
 * written. */
#include "base/mem.h"
#include "kernels/cpu/gemm.h"

#include <stdlib.h>

void KERNEL(activation)(const Call *);

typedef struct Decoding {
    const Tensor *values, *inverse;
    Fp8Blocks blocks;
    real *out;
} Decoding;

static void decode_rows(void *arg, int64_t begin, int64_t end) {
    const Decoding *d = arg;
    const int64_t rows = tensor_rows(d->values), width = tensor_width(d->values);
    const uint8_t *values = d->values->data;
    const real *inverse = reals(d->inverse);
    const Fp8Type type = d->values->dtype == F8E4M3 ? E4M3 : E5M2;
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < width; i++)
            d->out[r * width + i] = (real)fp8_to_float(type, values[r * width + i]) *
                                    inverse[fp8_block_of(d->blocks, rows, width, r, i)];
}

static real *decode(const Device *device, const Tensor *values, const Tensor *inverse, Fp8Blocks blocks) {
    Decoding d = {values, inverse, blocks, mem_alloc((size_t)tensor_count(values) * sizeof(real) + 1)};
    CHECK(dtype_is_fp8((DType)values->dtype), "fp8_gemm: the operand is %s, not FP8",
          dtype_name((DType)values->dtype));
    pool_for(device->pool, tensor_rows(values), grain_rows(tensor_width(values)), decode_rows, &d);
    return d.out;
}

void KERNEL(fp8_gemm)(const Call *c) {
    const Fp8GemmAttr *attr = c->attr;
    const int64_t m = tensor_rows(c->in[0]), n = tensor_rows(c->in[1]), k = tensor_width(c->in[1]);
    real *a = decode(c->device, c->in[0], c->in[2], attr->a),
         *b = decode(c->device, c->in[1], c->in[3], attr->b);
    KERNEL(gemm)
    (c->device, &(Gemm){.transpose_b = true,
                        .m = m,
                        .n = n,
                        .k = k,
                        .a = a,
                        .lda = k,
                        .b = b,
                        .ldb = k,
                        .c = reals(c->out[0]),
                        .ldc = n,
                        .bias = c->in[4] ? reals(c->in[4]) : NULL,
                        .accumulate = accumulates(c->out[0])});
    free(a), free(b);
    const ActivationAttr activation = {.kind = attr->activation};
    if (c->out[1]) KERNEL(activation)
    (&(Call){.in = {c->out[0]}, .out = {c->out[1]}, .attr = &activation, .device = c->device});
}
