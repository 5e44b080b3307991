/* Computes the ops of kernels/cpu/grouped.c: expert e multiplies its rows [offset[e], offset[e+1]) by its
 * block of the weight. Only the GPU knows the offsets, so the grid has enough tiles for all possible offsets.
 * Each tile finds its expert, and surplus tiles exit immediately.
 *
 * Tensor cores compute GEMMs of 16-bit operands if rows are multiples of 16 bytes, y and dx have the
 * operands' type, and dw has the operands' type or F32 (on sm_90a, grouped_tiles.cu does). All other GEMMs, and all
 * GEMMs in batch-invariant mode, are chains of multiply-adds (ordered_gemm.cuh). y is written, with zeros in the rows after the last
 * expert; dx and dw are written or accumulated. */
#include "kernels/cuda/gemm/ordered_gemm.cuh"
#include "kernels/cuda/moe/experts.cuh"
#include "kernels/cuda/moe/grouped_tiles.cuh"
#include "kernels/cuda/moe/router.cuh"
#include "kernels/cuda/moe/tensor_tile.cuh"

#include <algorithm>

/* ---- kernels ---- */

/* The biases of all experts, and the factors of rows. */
struct Biases {
    Cells bias, scale; /* bias.data is NULL if there is no bias; scale.data is NULL if the scale is 1 */
};

/* Adds an expert's bias to the tile that begins at row `first` and column `column`. */
static __device__ __forceinline__ void add_biases(float (&sum)[TENSOR_SUMS][4], const Biases &b,
                                                  int64_t first, int64_t column, int64_t rows,
                                                  int64_t columns) {
#pragma unroll
    for (int q = 0; q < TENSOR_SUMS; q++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int i = tensor_row(q) + k / 2 * 8, j = tensor_column(q) + k % 2;
            if (i < rows && j < columns)
                sum[q][k] +=
                    (b.scale.data ? b.scale.get<float>(first + i) : 1.0f) * b.bias.get<float>(column + j);
        }
}

/* If `along` is true, w_e is [n,k], and y = x w_e^T; otherwise, w_e is [k,n], and y = x w_e. Biases are
 * added. */
template <typename T, bool along>
static __global__ void __launch_bounds__(TENSOR_THREADS, 2)
    tensor_rows(const T *x, const T *w, T *y, Experts e, Biases biases, int64_t n, int64_t k, int64_t down,
                int64_t across, bool add) {
    int64_t row, column;
    in_bands<int64_t>(blockIdx.x, down, across, &row, &column);
    const RowTile t = find_tile(e, row, TENSOR_TILE);
    const bool tail = t.expert == e.count;
    if (t.expert < 0 || (tail && add)) return;
    const int64_t j = column * TENSOR_TILE;
    float sum[TENSOR_SUMS][4] = {};
    if (!tail) {
        const TensorSide<T> a = {x + t.first * k, k, t.rows};
        const TensorSide<T> b = {w + t.expert * n * k + (along ? j * k : j), along ? k : n, n - j};
        tensor_tile<T, true, along>(sum, a, b, k);
        if (biases.bias.data) add_biases(sum, biases, t.first, t.expert * n + j, t.rows, n - j);
    }
    tensor_put(sum, y + t.first * n + j, n, t.rows, n - j, add);
}

/* Computes dw_e [m,n] = dy_e^T x_e. */
template <typename T, typename Y>
static __global__ void __launch_bounds__(TENSOR_THREADS, 2)
    tensor_experts(const T *dy, const T *x, Y *dw, Experts e, int64_t m, int64_t n, int64_t down,
                   int64_t across, bool add) {
    const int64_t expert = blockIdx.x / (down * across), first = e.offset[expert],
                  rows = e.offset[expert + 1] - first;
    if (add && rows == 0) return;
    int64_t i, j;
    in_bands<int64_t>(blockIdx.x % (down * across), down, across, &i, &j);
    i *= TENSOR_TILE, j *= TENSOR_TILE;
    float sum[TENSOR_SUMS][4] = {};
    const TensorSide<T> a = {dy + first * m + i, m, m - i}, b = {x + first * n + j, n, n - j};
    tensor_tile<T, false, false>(sum, a, b, rows);
    tensor_put(sum, dw + (expert * m + i) * n + j, n, m - i, n - j, add);
}

/* Computes g, the GEMM of one expert, for one tile. The weight of each expert has `step` elements. */
template <typename R>
static __global__ void __launch_bounds__(ORDERED_THREADS)
    ordered_rows(OrderedGemm g, Experts e, int64_t step, int64_t across) {
    const RowTile t = find_tile(e, blockIdx.x / across, ORDERED_TILE);
    const bool tail = t.expert == e.count;
    if (t.expert < 0 || (tail && g.add)) return;
    g.a_at = t.first * g.a_row, g.b_at = t.expert * step, g.c_at = t.first * g.c_row;
    g.m = t.rows;
    g.bias_at = t.expert * g.n, g.scale_at = t.first;
    if (tail) g.k = 0, g.bias.data = NULL;
    ordered_tile<R, ORDERED_TILE, ORDERED_TILE, 4, 4>(g, 0, blockIdx.x % across * ORDERED_TILE);
}

template <typename R>
static __global__ void __launch_bounds__(ORDERED_THREADS)
    ordered_experts(OrderedGemm g, Experts e, int64_t down, int64_t across) {
    const int64_t expert = blockIdx.x / (down * across), tile = blockIdx.x % (down * across),
                  first = e.offset[expert];
    g.k = e.offset[expert + 1] - first;
    if (g.add && g.k == 0) return;
    g.a_at = first * g.a_col, g.b_at = first * g.b_row, g.c_at = expert * g.m * g.n;
    ordered_tile<R, ORDERED_TILE, ORDERED_TILE, 4, 4>(g, tile / across * ORDERED_TILE,
                                                      tile % across * ORDERED_TILE);
}

/* ---- launches ---- */

static Experts experts_of(const Call *c) {
    const Tensor *offset = c->in[2];
    const Experts e = {ids_of(offset), offset->dim[0] - 1, c->in[0]->dim[0]};
    CHECK(e.count > 0, "grouped linear: the offsets are for %lld experts", (long long)e.count);
    return e;
}

/* Returns true if tensor cores can multiply the call's 16-bit operands and store a result of type `to`. */
static bool on_tensor_cores(const Call *c, int to) {
    const Tensor *a = c->in[0], *b = c->in[1], *out = c->out[0];
    const auto in_units = [](const Tensor *x) { return aligned_16(x->data) && tensor_width(x) % 8 == 0; };
    return !((const LinearAttr *)c->attr)->fixed_order && dtype_is_16bit((DType)a->dtype) &&
           a->dtype == b->dtype && out->dtype == to && in_units(a) && in_units(b) && in_units(out);
}

/* Returns the biases for a call to grouped_linear. Calls to grouped_linear_dgrad have no biases. */
static Biases biases_of(const Call *c) {
    const Biases b = {cells(c->in[3]), cells(c->in[4])};
    return b;
}

template <typename T, bool along> static void launch_tensor_rows(const Call *c, const Experts &e) {
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t n = tensor_width(y), down = row_tiles(e, TENSOR_TILE), across = ceil_div(n, TENSOR_TILE);
    CUDA_CHECK(cudaFuncSetAttribute(tensor_rows<T, along>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    TENSOR_ROOM));
    tensor_rows<T, along><<<blocks(down * across), TENSOR_THREADS, TENSOR_ROOM, stream_of(c)>>>(
        data_of<T>(x), data_of<T>(c->in[1]), data_of<T>(y), e, biases_of(c), n, tensor_width(x), down, across,
        accumulates(y));
    LAUNCHED();
}

template <typename T, typename Y> static void launch_tensor_experts(const Call *c, const Experts &e) {
    const Tensor *dy = c->in[0], *x = c->in[1], *dw = c->out[0];
    const int64_t m = tensor_width(dy), n = tensor_width(x), down = ceil_div(m, TENSOR_TILE),
                  across = ceil_div(n, TENSOR_TILE);
    CUDA_CHECK(
        cudaFuncSetAttribute(tensor_experts<T, Y>, cudaFuncAttributeMaxDynamicSharedMemorySize, TENSOR_ROOM));
    tensor_experts<T, Y><<<blocks(e.count * down * across), TENSOR_THREADS, TENSOR_ROOM, stream_of(c)>>>(
        data_of<T>(dy), data_of<T>(x), data_of<Y>(dw), e, m, n, down, across, accumulates(dw));
    LAUNCHED();
}

static OrderedGemm grouped_gemm_of(const Call *c, int64_t m, int64_t n, int64_t k) {
    OrderedGemm g = {};
    g.a = cells(c->in[0]), g.b = cells(c->in[1]), g.c = cells(c->out[0]), g.bias = cells(NULL);
    g.m = m, g.n = n, g.k = k;
    g.c_row = n, g.c_col = 1;
    g.add = accumulates(c->out[0]);
    return g;
}

static void launch_ordered_rows(const Call *c, const Experts &e, bool along) {
    const int64_t n = tensor_width(c->out[0]), k = tensor_width(c->in[0]), across = ceil_div(n, ORDERED_TILE);
    OrderedGemm g = grouped_gemm_of(c, 0, n, k);
    g.bias = biases_of(c).bias, g.scale = biases_of(c).scale;
    g.a_row = k, g.a_col = 1;
    g.b_row = along ? 1 : n, g.b_col = along ? k : 1;
    REAL_SWITCH(c->in[0]->dtype, ordered_rows<R>
                <<<blocks(row_tiles(e, ORDERED_TILE) * across), ORDERED_THREADS, 0, stream_of(c)>>>(
                    g, e, n * k, across));
    LAUNCHED();
}

static void launch_ordered_experts(const Call *c, const Experts &e) {
    const int64_t m = tensor_width(c->in[0]), n = tensor_width(c->in[1]), down = ceil_div(m, ORDERED_TILE),
                  across = ceil_div(n, ORDERED_TILE);
    OrderedGemm g = grouped_gemm_of(c, m, n, 0);
    g.a_row = 1, g.a_col = m;
    g.b_row = n, g.b_col = 1;
    REAL_SWITCH(c->in[0]->dtype, ordered_experts<R>
                <<<blocks(e.count * down * across), ORDERED_THREADS, 0, stream_of(c)>>>(g, e, down, across));
    LAUNCHED();
}

/* If `along` is true, the weight of each expert is [n,k]; otherwise, the weight is [k,n]. */
static void run_rows(const Call *c, bool along) {
    const Experts e = experts_of(c);
    const int64_t n = tensor_width(c->out[0]), k = tensor_width(c->in[0]);
    CHECK(tensor_count(c->in[1]) == e.count * n * k,
          "grouped linear: the weight of %lld experts has %lld elements, not %lld", (long long)e.count,
          (long long)tensor_count(c->in[1]), (long long)(e.count * n * k));
    if (!tensor_count(c->out[0])) return;
    if (!on_tensor_cores(c, c->in[0]->dtype))
        launch_ordered_rows(c, e, along);
    else if (grouped_tiles_can(c))
        grouped_tiles_rows(c, along);
    else if (c->in[0]->dtype == BF16)
        along ? launch_tensor_rows<bf16, true>(c, e) : launch_tensor_rows<bf16, false>(c, e);
    else
        along ? launch_tensor_rows<fp16, true>(c, e) : launch_tensor_rows<fp16, false>(c, e);
}

extern "C" void cuda_grouped_linear(const Call *c) { run_rows(c, true); }

/* Each thread processes one column of one expert. */
template <typename R>
static __global__ void bias_gradients(Cells dy, Cells scale, Cells dbias, Experts e, int64_t n, bool add) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, expert = blockIdx.y;
    if (i >= n) return;
    R sum = 0;
    for (int64_t row = e.offset[expert]; row < e.offset[expert + 1]; row++)
        sum += (scale.data ? scale.get<R>(row) : (R)1) * dy.get<R>(row * n + i);
    dbias.put_or_add(expert * n + i, sum, add);
}

/* Each warp processes one row. */
template <typename R>
static __global__ void scale_gradients(Cells dy, Cells bias, Cells dscale, Experts e, int64_t n, bool add) {
    WARP_LOOP(row, e.rows) {
        const int64_t expert = expert_of(e.offset, e.count, row);
        R dot = 0;
        for (int64_t i = threadIdx.x % 32; expert < e.count && i < n; i += 32)
            dot += dy.get<R>(row * n + i) * bias.get<R>(expert * n + i);
        dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0) dscale.put_or_add(row, dot, add);
    }
}

enum { BIAS_THREADS = 256 };

extern "C" void cuda_grouped_bias_grad(const Call *c) {
    const Experts e = experts_of(c);
    const Tensor *dbias = c->out[0], *dscale = c->out[1];
    const int64_t n = tensor_width(c->in[0]);
    if (dbias) {
        const dim3 grid((unsigned)ceil_div(n, BIAS_THREADS), (unsigned)e.count);
        REAL_SWITCH(lead_type(c), bias_gradients<R>
                    <<<grid, BIAS_THREADS, 0, stream_of(c)>>>(cells(c->in[0]), cells(c->in[3]), cells(dbias),
                                                              e, n, accumulates(dbias)));
        LAUNCHED();
    }
    if (!dscale || !e.rows) return;
    REAL_SWITCH(lead_type(c),
                scale_gradients<R><<<grid_for(c, e.rows, WARPS), 32 * WARPS, 0, stream_of(c)>>>(
                    cells(c->in[0]), cells(c->in[1]), cells(dscale), e, n, accumulates(dscale)));
    LAUNCHED();
}

extern "C" void cuda_grouped_linear_dgrad(const Call *c) { run_rows(c, false); }

extern "C" void cuda_grouped_linear_wgrad(const Call *c) {
    const Experts e = experts_of(c);
    if (!tensor_count(c->out[0])) return;
    const Tensor *dw = c->out[0];
    const bool narrow = on_tensor_cores(c, c->in[0]->dtype);
    if (!narrow && !on_tensor_cores(c, F32))
        launch_ordered_experts(c, e);
    else if (grouped_tiles_can(c) && rounds_sums(dw))
        grouped_tiles_wgrad(c);
    else if (c->in[0]->dtype == BF16)
        narrow ? launch_tensor_experts<bf16, bf16>(c, e) : launch_tensor_experts<bf16, float>(c, e);
    else
        narrow ? launch_tensor_experts<fp16, fp16>(c, e) : launch_tensor_experts<fp16, float>(c, e);
}
