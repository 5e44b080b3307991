/* Computes GEMMs of 16-bit matrices, y = x w^T + bias, on sm_90a tensor cores. Results do not depend on the
 * number of rows: for any tile size, every element is computed by one chain of wgmma instructions that add 16
 * terms each, in order. Separate warps copy slices of x and slices of w to shared memory, so that steady
 * weights can be copied before the previous kernel ends. */
#include "kernels/cuda/gemm/gemm_plan.cuh"
#include "kernels/cuda/gemm/row_tiles.cuh"

#include <algorithm>

/* A tile shape for blocks with two copying warps. */
template <int GROUPS, int N, int DEPTH, int STAGES, int BLOCKS, bool EIGHT_ = false>
struct PairShape : Shape<GROUPS, N, DEPTH, STAGES, BLOCKS, EIGHT_> {
    static constexpr int THREADS = GROUPS * GROUP_THREADS + 64;
    static constexpr bool EIGHT = EIGHT_;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The ring of slices in shared memory. Each stage has three barriers, which signal that the slice of x has
 * arrived, that the slice of w has arrived, and that the stage is empty. */
template <typename S> struct Slices : Ring<S::STAGES> {
    uint32_t room, barriers;
    __device__ __forceinline__ uint32_t x() const { return room + this->stage * S::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t w() const { return x() + S::W_AT; }
    __device__ __forceinline__ uint32_t has_x() const { return barriers + 8 * this->stage; }
    __device__ __forceinline__ uint32_t has_w() const { return has_x() + 8 * S::STAGES; }
    __device__ __forceinline__ uint32_t empty() const { return has_x() + 16 * S::STAGES; }
};

template <typename S>
__device__ __forceinline__ void copy_x(const RowTiles &g, const CUtensorMap *x, Slices<S> at) {
    wait_for_kernel_before();
#pragma unroll 1
    for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x)
#pragma unroll 1
        for (int slice = 0; slice < g.slices; slice++, at.next()) {
            barrier_wait(at.empty(), at.phase ^ 1);
            barrier_expect(at.has_x(), S::DEPTH * g.box * LINE_BYTES);
#pragma unroll
            for (int i = 0; i < S::DEPTH; i++)
                copy_tile(at.x() + i * S::X_BYTES, x, at.has_x(), (slice * S::DEPTH + i) * LINE, 0,
                          tile % g.down * S::ROWS);
        }
}

/* Copies slices of w. If one tile contains all rows of x, weights are read only once, so the L2 cache need
 * not keep them. */
template <typename S>
__device__ __forceinline__ void copy_w(const RowTiles &g, const CUtensorMap *w, Slices<S> at) {
    const uint64_t policy = cache_policy(g.down == 1);
    if (!g.steady) wait_for_kernel_before();
#pragma unroll 1
    for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x)
#pragma unroll 1
        for (int slice = 0; slice < g.slices; slice++, at.next()) {
            barrier_wait(at.empty(), at.phase ^ 1);
            barrier_expect(at.has_w(), S::DEPTH * S::W_BYTES);
#pragma unroll
            for (int i = 0; i < S::DEPTH; i++)
                copy_tile(at.w() + i * S::W_BYTES, w, at.has_w(), (slice * S::DEPTH + i) * LINE, 0,
                          tile / g.down * S::N, policy);
        }
}

/* Adds the bias to the first eight rows of the tile, and stores these rows. */
template <typename T, int N8>
__device__ __forceinline__ void put_eight(const RowTiles &g, const float (&sum)[N8][4], const T *bias, T *y,
                                          int64_t first) {
    const int row = (int)threadIdx.x / 4;
#pragma unroll
    for (int n = 0; n < N8; n++) {
        const int64_t at = first + 8 * n + threadIdx.x % 4 * 2;
        if (row >= g.m || at >= g.n) continue;
        float a = sum[n][0], b = sum[n][1];
        if (bias) a += to_real<float>(bias[at]), b += to_real<float>(bias[at + 1]);
        *(uint32_t *)(y + row * g.n + at) = pack<T>(a, b);
    }
}

#endif

template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    multiply(const __grid_constant__ RowTiles g, const __grid_constant__ CUtensorMap x,
             const __grid_constant__ CUtensorMap w, const float *of_column, const T *bias, T *y) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char memory[];
    __shared__ uint64_t barriers[3 * S::STAGES];
    Slices<S> at = {{}, (shared_address(memory) + 1023) / 1024 * 1024, shared_address(barriers)};
    const int group = (int)uniform(threadIdx.x / GROUP_THREADS);
    allow_next_kernel();
    if (threadIdx.x == 0) {
        prefetch_map(&w), prefetch_map(&x);
        for (int i = 0; i < 3 * S::STAGES; i++)
            barrier_init(at.barriers + 8 * i, i < 2 * S::STAGES ? 1 : 4 * S::GROUPS);
        barriers_ready();
    }
    __syncthreads();
    if (group == S::GROUPS) {
        const bool has_x = uniform(threadIdx.x / 32) % 2;
        if (!is_elected()) return;
        if (has_x)
            copy_x<S>(g, &x, at);
        else
            copy_w<S>(g, &w, at);
        return;
    }
    wait_for_kernel_before();
    for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x) {
        float sum[S::N / 8][4] = {};
        uint32_t before = 0; /* the barrier that frees the previous slice */
        for (int slice = 0; slice < g.slices; slice++, at.next()) {
            const uint32_t from = uniform(at.x());
            const uint64_t a = tile_descriptor<true>(from + group * 64 * LINE_BYTES, 0, S::STRIDE),
                           b = tile_descriptor<true>(from + S::W_AT);
            barrier_wait(at.has_w(), at.phase);
            barrier_wait(at.has_x(), at.phase);
            Product<T, S::N / 8>::fence(sum);
#pragma unroll
            for (int i = 0; i < S::DEPTH; i++)
#pragma unroll
                for (int k = 0; k < LINE_BYTES; k += 32)
                    Product<T, S::N / 8>::run(sum, a + (i * S::X_BYTES + k) / 16,
                                              b + (i * S::W_BYTES + k) / 16);
            products_begun();
            Product<T, S::N / 8>::template wait<1>(sum);
            if (before && threadIdx.x % 32 == 0) barrier_arrive(before);
            before = at.empty();
        }
        Product<T, S::N / 8>::template wait<0>(sum);
        if (threadIdx.x % 32 == 0) barrier_arrive(before);
        const int64_t row = (int64_t)(tile % g.down) * S::ROWS + threadIdx.x / 32 * 16,
                      column = (int64_t)(tile / g.down) * S::N;
        if (of_column) scale_sums(g, sum, (const float *)NULL, of_column, row, column);
        if constexpr (S::EIGHT)
            put_eight(g, sum, bias, y, column);
        else
            put_sums(g, sum, bias, y, row, column);
    }
#endif
}

template <typename T, typename S> static void launch(const Call *c, const Gemm *gemm) {
    const RowLaunch<S> l(c, gemm->a, gemm->b, gemm->m, gemm->n, gemm->k, LINE, gemm->steady);
    CUDA_CHECK(cudaFuncSetAttribute(multiply<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::ROOM));
    launch_pdl(c, l.blocks, dim3(S::THREADS), S::ROOM, multiply<T, S>, l.g, l.x, l.w, gemm->of_column,
               (const T *)data_of<T>(gemm->bias), data_of<T>(gemm->c));
}

/* Returns how many columns the busiest multiprocessor computes if tiles are `wide` columns wide. */
static int64_t most_columns(int64_t n, int64_t wide, int64_t multiprocessors) {
    return ceil_div(ceil_div(n, wide), multiprocessors) * wide;
}

/* With few rows, tiles are narrow, so that all multiprocessors read weights. If each block computes only one
 * narrow tile, as in the GEMM after attention, the ring of slices leaves room in shared memory for a block of
 * attend_tiles. The GEMM after attention can therefore begin to read its weights before attention ends. */
template <typename T> static void launch_shape(const Call *c, const Gemm *g) {
    const int64_t blocks = cuda_of(c->device)->multiprocessors, rows = ceil_div(g->m, 128);
    if (g->m <= 8 && most_columns(g->n, 48, blocks) < most_columns(g->n, 32, blocks))
        launch<T, PairShape<1, 48, 2, 14, 1, true>>(c, g);
    else if (g->m <= 8 && ceil_div(g->n, 32) <= blocks)
        launch<T, PairShape<1, 32, 4, 7, 1, true>>(c, g);
    else if (g->m <= 8)
        launch<T, PairShape<1, 32, 4, 10, 1, true>>(c, g);
    else if (g->m <= 64)
        launch<T, PairShape<1, 32, 2, 8, 1>>(c, g);
    else if (rows * ceil_div(g->n, 128) < blocks)
        launch<T, PairShape<2, 64, 1, 4, 2>>(c, g);
    else if (rows * ceil_div(g->n, 256) < 2 * blocks)
        launch<T, PairShape<2, 128, 1, 3, 2>>(c, g);
    else
        launch<T, PairShape<2, 256, 1, 4, 1>>(c, g);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static __device__ int code_has_warpgroups = 1;
#else
static __device__ int code_has_warpgroups = 0;
#endif

bool has_warpgroups(Cuda *gpu) {
    if (gpu->warpgroups < 0) {
        gpu->warpgroups = 0;
        if (gpu->capability == 90)
            CUDA_CHECK(cudaMemcpyFromSymbol(&gpu->warpgroups, code_has_warpgroups, sizeof(int)));
    }
    return gpu->warpgroups;
}

/* The result must not depend on the number of rows. */
bool gemm_is_invariant(const Call *c, const Gemm *g) {
    return has_warpgroups(cuda_of(c->device)) && dtype_is_16bit((DType)g->a->dtype) &&
           g->b->dtype == g->a->dtype && g->c->dtype == g->a->dtype &&
           (!g->bias || g->bias->dtype == g->a->dtype) && g->transpose_b && !g->transpose_a &&
           !accumulates(g->c) && g->n % 8 == 0 && g->k % 8 == 0 && g->k > 0 && aligned_16(g->a->data) &&
           aligned_16(g->b->data) && aligned_16(g->c->data);
}

void gemm_invariant(const Call *c, const Gemm *g) {
    CHECK(g->m <= INT32_MAX / 2 && g->n <= INT32_MAX / 2 && g->k <= INT32_MAX / 2,
          "%s: a GEMM of [%lld,%lld] and %lld terms is too large", g->op, (long long)g->m, (long long)g->n,
          (long long)g->k);
    if (g->a->dtype == BF16)
        launch_shape<bf16>(c, g);
    else
        launch_shape<fp16>(c, g);
}
