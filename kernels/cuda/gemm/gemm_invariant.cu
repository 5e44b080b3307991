/* GEMMs of 16-bit matrices on the tensor cores of sm_90a whose results do not depend on the number of rows: y = x w^T +
 * bias. Every element is one chain of wgmma over 16 terms at a time, in order, whatever the size of the tile. */
#include "kernels/cuda/gemm/gemm_plan.cuh"
#include "kernels/cuda/gemm/row_tiles.cuh"

#include <algorithm>

template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    multiply(const __grid_constant__ RowTiles g, const __grid_constant__ CUtensorMap x,
             const __grid_constant__ CUtensorMap w, const float *of_column, const T *bias, T *y) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char memory[];
    __shared__ uint64_t full[S::STAGES], empty[S::STAGES];
    const uint32_t room = (shared_address(memory) + 1023) / 1024 * 1024;
    const int group = (int)uniform(threadIdx.x / GROUP_THREADS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++)
            barrier_init(shared_address(&full[i]), 1), barrier_init(shared_address(&empty[i]), 4 * S::GROUPS);
        barriers_ready();
    }
    __syncthreads();
    allow_next_kernel();
    if (group == S::GROUPS) {
        if (is_elected()) load_slices<S, LINE, LINE>(g, &x, &w, room, full, empty);
        return;
    }
    Ring<S::STAGES> at;
    wait_for_kernel_before();
    for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x) {
        float sum[S::N / 8][4] = {};
        uint32_t before = 0; /* barrier of the slice before */
        for (int slice = 0; slice < g.slices; slice++, at.next()) {
            const uint32_t from = uniform(room + at.stage * S::STAGE_BYTES);
            const uint64_t a = tile_descriptor<true>(from + group * 64 * LINE_BYTES, 0, S::STRIDE),
                           b = tile_descriptor<true>(from + S::W_AT);
            barrier_wait(shared_address(&full[at.stage]), at.phase);
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
            before = shared_address(&empty[at.stage]);
        }
        Product<T, S::N / 8>::template wait<0>(sum);
        if (threadIdx.x % 32 == 0) barrier_arrive(before);
        const int64_t row = (int64_t)(tile % g.down) * S::ROWS + threadIdx.x / 32 * 16,
                      column = (int64_t)(tile / g.down) * S::N;
        if (of_column) scale_sums(g, sum, (const float *)NULL, of_column, row, column);
        put_sums<T>(g, sum, bias, y, row, column);
    }
#endif
}

template <typename T, typename S> static void launch(const Call *c, const Gemm *gemm) {
    const RowTiles g = row_tiles<S>(gemm->m, gemm->n, gemm->k, LINE, gemm->steady);
    const CUtensorMap x = tile_map(c, gemm->a, g.m, gemm->k, gemm->k, 1, gemm->k, g.box),
                      w = tile_map(c, gemm->b, g.n, gemm->k, gemm->k, 1, gemm->k, S::N);
    const int64_t most = (int64_t)cuda_of(c->device)->multiprocessors * S::BLOCKS;
    CUDA_CHECK(cudaFuncSetAttribute(multiply<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::ROOM));
    launch_pdl(c, dim3((unsigned)least(most, (int64_t)g.down * g.across)), dim3(S::THREADS), S::ROOM,
               multiply<T, S>, g, x, w, gemm->of_column, (const T *)data_of<T>(gemm->bias),
               data_of<T>(gemm->c));
}

/* Few rows have narrow tiles, so that all multiprocessors read weights. */
template <typename T> static void launch_shape(const Call *c, const Gemm *g) {
    const int64_t blocks = cuda_of(c->device)->multiprocessors, rows = ceil_div(g->m, 128);
    if (g->m <= 8)
        launch<T, Shape<1, 32, 2, 20, 1, true>>(c, g);
    else if (g->m <= 64)
        launch<T, Shape<1, 32, 2, 8, 1>>(c, g);
    else if (rows * ceil_div(g->n, 128) < blocks)
        launch<T, Shape<2, 64, 1, 4, 2>>(c, g);
    else if (rows * ceil_div(g->n, 256) < 2 * blocks)
        launch<T, Shape<2, 128, 1, 3, 2>>(c, g);
    else
        launch<T, Shape<2, 256, 1, 4, 1>>(c, g);
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

/* The answer must not depend on the number of rows. */
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
