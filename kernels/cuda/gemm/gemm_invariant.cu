/* GEMMs of 16-bit matrices on the tensor cores of sm_90a whose results do not depend on the number of rows: y = x w^T +
 * bias. Every element is one chain of wgmma over 16 terms at a time, in order, whatever the size of the tile. A
 * persistent block runs one tile after the other. One warp copies slices of LINE terms of both operands to shared
 * memory, and the other warps multiply them. */
#include "kernels/cuda/gemm/gemm_plan.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"

#include <algorithm>

/* Tiles of 64 * GROUPS rows and N columns, in slices of LINE * DEPTH terms. BLOCKS run on a multiprocessor. If EIGHT,
 * there are at most eight rows, which are in shared memory once; the products of the other rows are those of the same
 * lines. */
template <int GROUPS_, int N_, int DEPTH_, int STAGES_, int BLOCKS_, bool EIGHT_ = false> struct Shape {
    static constexpr int GROUPS = GROUPS_, N = N_, DEPTH = DEPTH_, STAGES = STAGES_, BLOCKS = BLOCKS_,
                         ROWS = 64 * GROUPS, THREADS = GROUPS * GROUP_THREADS + 32, LINES = EIGHT_ ? 8 : ROWS,
                         X_BYTES = LINES * LINE_BYTES, W_BYTES = N * LINE_BYTES,
                         STAGE_BYTES = DEPTH * (X_BYTES + W_BYTES), ROOM = STAGES * STAGE_BYTES + 1024,
                         STRIDE = EIGHT_ ? 0 : 8 * LINE_BYTES;
};

struct InvariantGemm {
    int64_t m, n;
    int slices, down, across, box; /* slices of terms; tiles; rows of a copy of x */
    bool steady;                   /* LinearAttr */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Stores a group's sums at row `row`, columns from `first` on. */
template <typename T, int N8>
__device__ __forceinline__ void put_sums(const InvariantGemm &g, float (&sum)[N8][4], const T *bias, T *y,
                                         int64_t row, int64_t first) {
    const int lane = threadIdx.x % 32;
    row += lane / 4;
    if (bias) {
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int64_t at = first + 8 * n + lane % 4 * 2 + i;
                const float b = at < g.n ? to_real<float>(bias[at]) : 0;
                sum[n][i] += b, sum[n][2 + i] += b;
            }
    }
#pragma unroll
    for (int n = 0; n < N8; n += 4)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = pack<T>(sum[n + i][2 * h], sum[n + i][2 * h + 1]);
            gather_columns(x);
            const int64_t at = first + 8 * (n + lane % 4);
            if (row + 8 * h < g.m && at < g.n)
                *(uint4 *)(y + (row + 8 * h) * g.n + at) = make_uint4(x[0], x[1], x[2], x[3]);
        }
}

#endif

template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    multiply(const __grid_constant__ InvariantGemm g, const __grid_constant__ CUtensorMap x,
             const __grid_constant__ CUtensorMap w, const T *bias, T *y) {
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
    Ring<S::STAGES> at;
    if (group == S::GROUPS) {
        if (!is_elected()) return;
        const auto load_w = [&](int column, int slice, int stage) {
            const uint32_t to = room + stage * S::STAGE_BYTES + S::DEPTH * S::X_BYTES,
                           bar = shared_address(&full[stage]);
            barrier_expect(bar, S::DEPTH * (g.box * LINE_BYTES + S::W_BYTES));
#pragma unroll
            for (int i = 0; i < S::DEPTH; i++)
                copy_tile(to + i * S::W_BYTES, &w, bar, (slice * S::DEPTH + i) * LINE, 0, column);
        };
        int early = 0; /* number of slices whose weights are loaded before the previous kernel has ended */
        const int first = blockIdx.x / g.down * S::N;
#pragma unroll 1
        for (; g.steady && early < S::STAGES && early < g.slices; early++) load_w(first, early, early);
        wait_for_kernel_before();
#pragma unroll 1
        for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x) {
            const int row = tile % g.down * S::ROWS, column = tile / g.down * S::N;
#pragma unroll 1
            for (int slice = 0; slice < g.slices; slice++, at.next()) {
                const uint32_t to = room + at.stage * S::STAGE_BYTES, bar = shared_address(&full[at.stage]);
                if (--early < 0) {
                    barrier_wait(shared_address(&empty[at.stage]), at.phase ^ 1);
                    load_w(column, slice, at.stage);
                }
#pragma unroll
                for (int i = 0; i < S::DEPTH; i++)
                    copy_tile(to + i * S::X_BYTES, &x, bar, (slice * S::DEPTH + i) * LINE, 0, row);
            }
        }
        return;
    }
    wait_for_kernel_before();
    for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x) {
        float sum[S::N / 8][4] = {};
        uint32_t before = 0; /* barrier of the slice before */
        for (int slice = 0; slice < g.slices; slice++, at.next()) {
            const uint32_t from = uniform(room + at.stage * S::STAGE_BYTES);
            const uint64_t a = tile_descriptor<true>(from + group * 64 * LINE_BYTES, 0, S::STRIDE),
                           b = tile_descriptor<true>(from + S::DEPTH * S::X_BYTES);
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
        put_sums<T>(g, sum, bias, y, (int64_t)(tile % g.down) * S::ROWS + threadIdx.x / 32 * 16,
                    (int64_t)(tile / g.down) * S::N);
    }
#endif
}

template <typename T, typename S> static void launch(const Call *c, const Gemm *gemm) {
    InvariantGemm g = {gemm->m, gemm->n};
    g.slices = (int)ceil_div(gemm->k, LINE * S::DEPTH);
    g.down = (int)ceil_div(g.m, S::ROWS), g.across = (int)ceil_div(g.n, S::N);
    g.box = (int)least(S::LINES, ceil_div(g.m, 8) * 8);
    g.steady = gemm->steady;
    const CUtensorMap x = tile_map(c, gemm->a, g.m, gemm->k, gemm->k, 1, gemm->k, g.box),
                      w = tile_map(c, gemm->b, g.n, gemm->k, gemm->k, 1, gemm->k, S::N);
    const int64_t most = (int64_t)cuda_of(c->device)->multiprocessors * S::BLOCKS;
    CUDA_CHECK(cudaFuncSetAttribute(multiply<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::ROOM));
    launch_pdl(c, dim3((unsigned)least(most, (int64_t)g.down * g.across)), dim3(S::THREADS), S::ROOM,
               multiply<T, S>, g, x, w, (const T *)data_of<T>(gemm->bias), data_of<T>(gemm->c));
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
