/* Computes the FP8 GEMMs of all experts by dequantizing each expert's operands first, like fp8_gemm. c and dw are
 * written or accumulated. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/gemm.h"

/* A part of an operand: rows [first, first + rows), columns [column, column + columns) of the values. */
typedef struct Part {
    int64_t first, rows, column, columns;
} Part;

/* Returns the numbers that a part of expert e's operand represents. `all` is the number of rows with blocks. */
static real *decode(const Tensor *values, const Tensor *inverse, Fp8Blocks blocks, int64_t e, int64_t all,
                    Part p) {
    const Fp8Type type = values->dtype == F8E4M3 ? E4M3 : E5M2;
    const int64_t width = tensor_width(values), top = blocks == FP8_ROWS ? 0 : p.first;
    const real *by = reals(inverse) + e * fp8_blocks_step(blocks, p.rows, p.columns);
    real *out = mem_alloc((size_t)(p.rows * p.columns) * sizeof *out + 1);
    for (int64_t r = 0; r < p.rows; r++)
        for (int64_t i = 0; i < p.columns; i++)
            out[r * p.columns + i] =
                (real)fp8_to_float(type,
                                   ((const uint8_t *)values->data)[(p.first + r) * width + p.column + i]) *
                by[fp8_block_of(blocks, all, p.columns, p.first + r - top, p.column + i)];
    return out;
}

/* Computes c = a b^T, where a and b are parts of the operands of expert e. */
static void multiply(const Call *c, int64_t e, Part a, Part b, real *to) {
    const Fp8GemmAttr *attr = c->attr;
    const Tensor *out = c->out[0];
    if (a.rows == 0 || a.columns == 0) {
        if (!accumulates(out)) memset(to, 0, (size_t)(a.rows * b.rows) * sizeof *to);
        return;
    }
    real *x = decode(c->in[0], c->in[2], attr->a, e, c->in[0]->dim[0], a),
         *w = decode(c->in[1], c->in[3], attr->b, e, c->in[1]->dim[0], b);
    Device alone = *c->device;
    alone.pool = NULL; /* experts run in parallel */
    KERNEL(gemm)
    (&alone, &(Gemm){.transpose_b = true,
                     .fixed_order = attr->fixed_order,
                     .m = a.rows,
                     .n = b.rows,
                     .k = a.columns,
                     .a = x,
                     .lda = a.columns,
                     .b = w,
                     .ldb = a.columns,
                     .c = to,
                     .ldc = b.rows,
                     .accumulate = accumulates(out)});
    free(x), free(w);
}

static void run_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t *offset = int64s(c->in[4]), n = tensor_width(c->out[0]), k = tensor_width(c->in[0]);
    for (int64_t e = begin; e < end; e++) {
        const int64_t first = offset[e], rows = offset[e + 1] - first;
        real *to = reals(c->out[0]) + first * n;
        multiply(c, e, (Part){first, rows, 0, k}, (Part){e * n, n, 0, k}, to);
        for (int64_t r = 0; c->in[5] && r < rows; r++)
            for (int64_t j = 0; j < n; j++)
                to[r * n + j] += (c->in[6] ? reals(c->in[6])[first + r] : 1) * reals(c->in[5])[e * n + j];
    }
}

void KERNEL(fp8_grouped_linear)(const Call *c) {
    const Tensor *out = c->out[0], *offset = c->in[4];
    const int64_t experts = offset->dim[0] - 1, n = tensor_width(out), used = int64s(offset)[experts];
    if (!accumulates(out))
        memset(reals(out) + used * n, 0, (size_t)((out->dim[0] - used) * n) * sizeof(real));
    pool_for(c->device->pool, experts, 1, run_rows, (void *)c);
}

static void run_experts(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t *padded = int64s(c->in[4]), m = c->in[0]->dim[0], n = c->in[1]->dim[0];
    for (int64_t e = begin; e < end; e++) {
        const int64_t column = padded[e], columns = padded[e + 1] - column;
        multiply(c, e, (Part){0, m, column, columns}, (Part){0, n, column, columns},
                 reals(c->out[0]) + e * m * n);
    }
}

void KERNEL(fp8_grouped_wgrad)(const Call *c) {
    pool_for(c->device->pool, c->in[4]->dim[0] - 1, 1, run_experts, (void *)c);
}
