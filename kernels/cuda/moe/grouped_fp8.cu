/* FP8 GEMMs of all experts: c = sum_k (a a_inverse) (b b_inverse), in fp32. If grouped_fp8_tiles.cu does not support a call,
 * each thread computes one element, in order. c and dw are written or accumulated. */
#include <cuda_fp8.h>

#include "kernels/cuda/moe/grouped_tiles.cuh"

/* An operand: the values of an expert are matrices [rows,columns] whose inverses begin at expert * step. */
struct Side {
    const uint8_t *values;
    Cells inverse;
    int64_t width, rows, columns, step;
    Fp8Blocks blocks;
    __nv_fp8_interpretation_t format;

    /* Element (row, i) of all values; `top` is the first row of the expert's matrix. */
    template <typename R>
    __device__ __forceinline__ R get(int64_t expert, int64_t row, int64_t top, int64_t i) const {
        const __half_raw q = __nv_cvt_fp8_to_halfraw(values[row * width + i], format);
        return (R)__half2float(__half(q)) *
               inverse.get<R>(expert * step + fp8_block_of(blocks, rows, columns, row - top, i));
    }
};

/* `rows` is the number of rows of an expert's matrix, or of all rows if they share blocks. */
static Side side_of(const Tensor *values, const Tensor *inverse, Fp8Blocks blocks, int64_t rows) {
    CHECK(dtype_is_fp8((DType)values->dtype), "grouped FP8 GEMM: the operand is %s, not FP8",
          dtype_name((DType)values->dtype));
    const int64_t width = tensor_width(values);
    const Side s = {data_of<uint8_t>(values),
                    cells(inverse),
                    width,
                    rows,
                    width,
                    fp8_blocks_step(blocks, rows, width),
                    blocks,
                    values->dtype == F8E4M3 ? __NV_E4M3 : __NV_E5M2};
    return s;
}

/* Returns a row's expert, or `experts` if the row is after the last expert's rows. */
static __device__ __forceinline__ int64_t expert_of(const int64_t *offset, int64_t experts, int64_t row) {
    int64_t low = 0, high = experts;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (row < offset[middle + 1])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

template <typename R>
static __global__ void multiply_rows(Side a, Side b, const int64_t *offset, int64_t experts, Cells bias,
                                     Cells scale, Cells c, int64_t rows, int64_t n, bool add) {
    GRID_LOOP(at, rows * n) {
        const int64_t row = at / n, j = at % n, e = expert_of(offset, experts, row), top = e * n;
        R sum = 0;
        if (e == experts && add) continue;
        for (int64_t i = 0; e < experts && i < a.width; i++)
            sum += a.get<R>(e, row, 0, i) * b.get<R>(e, top + j, top, i);
        if (e < experts && bias.data) sum += (scale.data ? scale.get<R>(row) : (R)1) * bias.get<R>(top + j);
        c.put_or_add(at, sum, add);
    }
}

template <typename R>
static __global__ void multiply_columns(Side a, Side b, const int64_t *padded, int64_t experts, Cells dw,
                                        bool add) {
    GRID_LOOP(at, experts * a.rows * b.rows) {
        const int64_t e = at / (a.rows * b.rows), i = at / b.rows % a.rows, j = at % b.rows;
        R sum = 0;
        for (int64_t k = padded[e]; k < padded[e + 1]; k++)
            sum += a.get<R>(e, i, 0, k) * b.get<R>(e, j, 0, k);
        dw.put_or_add(at, sum, add);
    }
}

extern "C" void cuda_fp8_grouped_linear(const Call *c) {
    const Fp8GemmAttr *attr = (const Fp8GemmAttr *)c->attr;
    const Tensor *out = c->out[0];
    const int64_t rows = out->dim[0], n = tensor_width(out), experts = c->in[4]->dim[0] - 1;
    const Side a = side_of(c->in[0], c->in[2], attr->a, rows), b = side_of(c->in[1], c->in[3], attr->b, n);
    if (!tensor_count(out)) return;
    if (grouped_fp8_tiles_can(c, false)) {
        grouped_fp8_tiles_rows(c);
        return;
    }
    REAL_SWITCH(c->in[2]->dtype, multiply_rows<R><<<grid_for(c, rows * n, 128), 128, 0, stream_of(c)>>>(
                                     a, b, ids_of(c->in[4]), experts, cells(c->in[5]), cells(c->in[6]),
                                     cells(out), rows, n, accumulates(out)));
    LAUNCHED();
}

extern "C" void cuda_fp8_grouped_wgrad(const Call *c) {
    const Fp8GemmAttr *attr = (const Fp8GemmAttr *)c->attr;
    const Tensor *dw = c->out[0];
    const Side a = side_of(c->in[0], c->in[2], attr->a, c->in[0]->dim[0]),
               b = side_of(c->in[1], c->in[3], attr->b, c->in[1]->dim[0]);
    const int64_t experts = c->in[4]->dim[0] - 1;
    if (!tensor_count(dw)) return;
    if (grouped_fp8_tiles_can(c, true) && rounds_sums(dw)) {
        grouped_fp8_tiles_wgrad(c);
        return;
    }
    REAL_SWITCH(c->in[2]->dtype,
                multiply_columns<R><<<grid_for(c, tensor_count(dw), 128), 128, 0, stream_of(c)>>>(
                    a, b, ids_of(c->in[4]), experts, cells(dw), accumulates(dw)));
    LAUNCHED();
}
