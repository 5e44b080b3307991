/* FP8 GEMMs of all experts: c = sum_k (a a_inverse) (b b_inverse), in fp32. If grouped_fp8_tiles.cu does not support a
 * call, sums are chains of multiply-adds (ordered_gemm.cuh). c and dw are written or accumulated. */
#include <cuda_fp8.h>

#include "kernels/cuda/gemm/ordered_gemm.cuh"
#include "kernels/cuda/moe/experts.cuh"
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

template <typename R>
static __global__ void __launch_bounds__(ORDERED_THREADS)
    multiply_rows(Side a, Side b, OrderedGemm g, Experts e, int64_t across) {
    const RowTile t = find_tile(e, blockIdx.x / across, ORDERED_TILE);
    const bool tail = t.expert == e.count;
    if (t.expert < 0 || (tail && g.add)) return;
    const int64_t j0 = blockIdx.x % across * ORDERED_TILE, top = t.expert * g.n;
    g.c_at = t.first * g.c_row, g.bias_at = top, g.scale_at = t.first;
    g.m = t.rows;
    if (tail) g.k = 0, g.bias.data = NULL;
    ordered_tile_of<R, ORDERED_TILE, ORDERED_TILE, 4, 4>(
        g, 0, j0, [&](int64_t i, int64_t p) { return a.get<R>(t.expert, t.first + i, 0, p); },
        [&](int64_t j, int64_t p) { return b.get<R>(t.expert, top + j0 + j, top, p); });
}

template <typename R>
static __global__ void __launch_bounds__(ORDERED_THREADS)
    multiply_columns(Side a, Side b, OrderedGemm g, const int64_t *padded, int64_t down, int64_t across) {
    const int64_t expert = blockIdx.x / (down * across), tile = blockIdx.x % (down * across),
                  i0 = tile / across * ORDERED_TILE, j0 = tile % across * ORDERED_TILE,
                  first = padded[expert];
    g.k = padded[expert + 1] - first;
    g.c_at = expert * g.m * g.n;
    ordered_tile_of<R, ORDERED_TILE, ORDERED_TILE, 4, 4>(
        g, i0, j0, [&](int64_t i, int64_t p) { return a.get<R>(expert, i0 + i, 0, first + p); },
        [&](int64_t j, int64_t p) { return b.get<R>(expert, j0 + j, 0, first + p); });
}

static OrderedGemm gemm_of(const Call *c, int64_t m, int64_t n, int64_t k) {
    OrderedGemm g = {};
    g.c = cells(c->out[0]), g.bias = cells(c->in[5]), g.scale = cells(c->in[6]);
    g.a_col = g.b_row = 1, g.c_row = n, g.c_col = 1;
    g.m = m, g.n = n, g.k = k;
    g.add = accumulates(c->out[0]);
    return g;
}

extern "C" void cuda_fp8_grouped_linear(const Call *c) {
    const Fp8GemmAttr *attr = (const Fp8GemmAttr *)c->attr;
    const Tensor *out = c->out[0];
    const Experts e = {ids_of(c->in[4]), c->in[4]->dim[0] - 1, out->dim[0]};
    const int64_t n = tensor_width(out), across = ceil_div(n, ORDERED_TILE);
    if (!tensor_count(out)) return;
    if (grouped_fp8_tiles_can(c, false)) {
        grouped_fp8_tiles_rows(c);
        return;
    }
    const Side a = side_of(c->in[0], c->in[2], attr->a, e.rows), b = side_of(c->in[1], c->in[3], attr->b, n);
    REAL_SWITCH(c->in[2]->dtype, multiply_rows<R>
                <<<blocks(row_tiles(e, ORDERED_TILE) * across), ORDERED_THREADS, 0, stream_of(c)>>>(
                    a, b, gemm_of(c, 0, n, a.width), e, across));
    LAUNCHED();
}

extern "C" void cuda_fp8_grouped_wgrad(const Call *c) {
    const Fp8GemmAttr *attr = (const Fp8GemmAttr *)c->attr;
    const Tensor *dw = c->out[0];
    const int64_t experts = c->in[4]->dim[0] - 1, m = c->in[0]->dim[0], n = c->in[1]->dim[0],
                  down = ceil_div(m, ORDERED_TILE), across = ceil_div(n, ORDERED_TILE);
    if (!tensor_count(dw)) return;
    if (grouped_fp8_tiles_can(c, true) && rounds_sums(dw)) {
        grouped_fp8_tiles_wgrad(c);
        return;
    }
    const Side a = side_of(c->in[0], c->in[2], attr->a, m), b = side_of(c->in[1], c->in[3], attr->b, n);
    REAL_SWITCH(c->in[2]->dtype,
                multiply_columns<R><<<blocks(experts * down * across), ORDERED_THREADS, 0, stream_of(c)>>>(
                    a, b, gemm_of(c, m, n, 0), ids_of(c->in[4]), down, across));
    LAUNCHED();
}
