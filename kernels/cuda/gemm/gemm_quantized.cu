/* Computes GEMMs y = x w^T of a 16-bit x and a one-byte weight on sm_90a tensor cores. Results do not depend
 * on the number of rows.
 *
 * FP8 weights: x has already been rounded to E4M3. A tensor core adds 32 products and the previous sum with a
 * precision of about 14 bits. Tensor cores therefore sum only LINE_BYTES products at a time, and float
 * additions add these partial sums in order.
 *
 * I8 weights: additional warps convert slices of the weight to the type of x, because this type represents
 * integers up to 127 exactly. The weight is read from memory once, one byte per element. With many rows, the
 * entire weight is converted first (quantized.cu). In both cases, sums are computed as in
 * gemm_invariant.cu. */
#include "kernels/cuda/gemm/gemm_quantized.cuh"
#include "kernels/cuda/gemm/row_tiles.cuh"

/* Teams of warps take turns converting the lines of w. With few columns, each warp is a team, because waiting
 * for shared memory takes longer than the conversion. */
enum { CONVERTERS = 8 /* warps */ };
template <typename S> constexpr int teams = S::N == 32 ? CONVERTERS : 2;
template <typename S> constexpr int converted_lines = S::N == 32 ? CONVERTERS : 4; /* in shared memory */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Converts the two integers in bytes 0 and 2 of x to 16-bit floats. An integer's bits become the lowest
 * mantissa bits of a float in which the last mantissa bit has the value 1. A subtraction then leaves the
 * integer. */
template <typename T> __device__ __forceinline__ uint32_t two_integers(uint32_t x);
template <> __device__ __forceinline__ uint32_t two_integers<bf16>(uint32_t x) {
    const uint32_t low = (x & 0x007f007fu) | 0x43004300u,
                   sign = (x & 0x00800080u) | 0x43004300u; /* 128, 256 */
    __nv_bfloat162 a, b;
    memcpy(&a, &low, sizeof a), memcpy(&b, &sign, sizeof b);
    a = __hsub2(a, b);
    memcpy(&x, &a, sizeof x);
    return x;
}
template <> __device__ __forceinline__ uint32_t two_integers<fp16>(uint32_t x) {
    const uint32_t biased = x ^ 0x64806480u, zero = 0x64806480u; /* 1024 + 128 + x, 1024 + 128 */
    __half2 a, b;
    memcpy(&a, &biased, sizeof a), memcpy(&b, &zero, sizeof b);
    a = __hsub2(a, b);
    memcpy(&x, &a, sizeof x);
    return x;
}

/* Converts eight integers to 16 bytes of 16-bit floats. */
template <typename T>
__device__ __forceinline__ void eight_integers(uint32_t a, uint32_t b, uint32_t (&out)[4]) {
    out[0] = two_integers<T>(__byte_perm(a, 0, 0x4140)), out[1] = two_integers<T>(__byte_perm(a, 0, 0x4342));
    out[2] = two_integers<T>(__byte_perm(b, 0, 0x4140)), out[3] = two_integers<T>(__byte_perm(b, 0, 0x4342));
}

/* Converts a tile of N lines of 128 integers to two tiles of N lines of 64 floats. Eight threads convert a
 * line, and write to different banks. */
template <typename T, int N, int THREADS>
__device__ __forceinline__ void convert(uint32_t from, uint32_t to, int thread) {
    const int piece = thread % 8, half = piece / 4;
#pragma unroll
    for (int line = thread / 8; line < N; line += THREADS / 8) {
        uint32_t q[4], x[2][4];
        const int swizzle = line % 8;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(q[0]), "=r"(q[1]), "=r"(q[2]), "=r"(q[3])
                     : "r"(from + line * LINE_BYTES + (piece ^ swizzle) * 16));
        eight_integers<T>(q[0], q[1], x[0]), eight_integers<T>(q[2], q[3], x[1]);
        const uint32_t tile = to + half * N * LINE_BYTES + line * LINE_BYTES;
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint32_t out[4];
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = s ^ half ? x[1][i] : x[0][i];
            put_shared(tile + ((piece % 4 * 2 + (s ^ half)) ^ swizzle) * 16, out);
        }
    }
}

#endif

/* The accumulators of large tiles need more registers than warps have at the start. The group that contains
 * the copying warp therefore releases registers to the other groups. */
template <typename S> constexpr bool grows = S::N == 256;
template <typename S> constexpr int fp8_threads = grows<S> ? (S::GROUPS + 1) * GROUP_THREADS : S::THREADS;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <typename T, typename S>
__device__ __forceinline__ void multiply_group(const RowTiles &g, uint32_t room, int group, uint64_t *full,
                                               uint64_t *empty, const float *of_row, const float *of_column,
                                               const T *bias, T *y) {
    constexpr int PART = S::N < 128 ? S::N : 128, PARTS = S::N / PART;
    typedef Fp8Product<__nv_fp8_e4m3, PART / 8> Multiply;
    Ring<S::STAGES> at;
    float part[S::DEPTH][PART / 8][4] = {};
    wait_for_kernel_before();
    for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x) {
        float sum[PARTS][PART / 8][4] = {};
        for (int slice = 0; slice < g.slices; slice++, at.next()) {
            const uint32_t from = uniform(room + at.stage * S::STAGE_BYTES);
            const uint64_t a = tile_descriptor<true>(from + group * 64 * LINE_BYTES, 0, S::STRIDE),
                           b = tile_descriptor<true>(from + S::W_AT);
            barrier_wait(shared_address(&full[at.stage]), at.phase);
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
#pragma unroll
                for (int i = 0; i < S::DEPTH; i++) {
                    const uint64_t u = a + i * S::X_BYTES / 16,
                                   v = b + (i * S::W_BYTES + p * PART * LINE_BYTES) / 16;
                    Multiply::fence(part[i]);
                    Multiply::template run<false>(part[i], u, v);
#pragma unroll
                    for (int k = 32; k < LINE_BYTES; k += 32)
                        Multiply::template run<true>(part[i], u + k / 16, v + k / 16);
                }
                products_begun();
#pragma unroll
                for (int i = 0; i < S::DEPTH; i++) Multiply::template wait<0>(part[i]);
                if (p == PARTS - 1 && threadIdx.x % 32 == 0) barrier_arrive(shared_address(&empty[at.stage]));
#pragma unroll
                for (int i = 0; i < S::DEPTH; i++)
#pragma unroll
                    for (int n = 0; n < PART / 8; n++)
#pragma unroll
                        for (int j = 0; j < 4; j++) sum[p][n][j] += part[i][n][j];
            }
        }
        const int64_t row = (int64_t)(tile % g.down) * S::ROWS + threadIdx.x / 32 * 16,
                      column = (int64_t)(tile / g.down) * S::N;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            scale_sums(g, sum[p], of_row, of_column, row, column + p * PART);
            put_sums<T>(g, sum[p], bias, y, row, column + p * PART);
        }
    }
}

#endif

template <typename T, typename S>
static __global__ void __launch_bounds__(fp8_threads<S>, S::BLOCKS)
    multiply_fp8(const __grid_constant__ RowTiles g, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ CUtensorMap w, const float *of_row, const float *of_column,
                 const T *bias, T *y) {
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
        if constexpr (grows<S>) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (uniform(threadIdx.x / 32) == S::GROUPS * 4 && is_elected())
            load_slices<S, LINE_BYTES, LINE_BYTES>(g, &x, &w, room, full, empty);
    } else {
        if constexpr (grows<S>) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_group<T, S>(g, room, group, full, empty, of_row, of_column, bias, y);
    }
#endif
}

template <typename S> constexpr int int8_room = S::ROOM + converted_lines<S> * 2 * S::W_BYTES;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* With n teams, each team converts every n-th line of w. The barrier `ready` signals that a line has been
 * converted, and the barrier `released` signals that the line has been multiplied. */
template <typename T, typename S>
__device__ __forceinline__ void convert_lines(const RowTiles &g, uint32_t room, uint32_t converted,
                                              uint64_t *full, uint64_t *empty, uint64_t *ready,
                                              uint64_t *released) {
    constexpr int TEAM = CONVERTERS * 32 / teams<S>;
    const int thread = threadIdx.x - S::GROUPS * GROUP_THREADS, team = (int)uniform(thread / TEAM);
    const int tiles = ((int)(g.down * g.across) - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    Ring<S::STAGES> at;
    Ring<converted_lines<S>> line;
    int turn = 0; /* turn: the team that converts the current line */
#pragma unroll 1
    for (int slice = 0; slice < tiles * g.slices; slice++, at.next())
#pragma unroll 1
        for (int i = 0; i < S::DEPTH; i++, line.next(), turn = turn + 1 == teams<S> ? 0 : turn + 1) {
            if (turn != team) continue;
            barrier_wait(shared_address(&full[at.stage]), at.phase);
            barrier_wait(shared_address(&released[line.stage]), line.phase ^ 1);
            convert<T, S::N, TEAM>(room + at.stage * S::STAGE_BYTES + S::W_AT + i * S::W_BYTES,
                                   converted + line.stage * 2 * S::W_BYTES, thread % TEAM);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                barrier_arrive(shared_address(&ready[line.stage]));
                barrier_arrive(shared_address(&empty[at.stage]));
            }
        }
}

#endif

template <typename T, typename S>
static __global__ void __launch_bounds__(S::THREADS + CONVERTERS * 32, S::BLOCKS)
    multiply_int8(const __grid_constant__ RowTiles g, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ CUtensorMap w, const float *of_column, const T *bias, T *y) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int CONVERTED = converted_lines<S>, TEAM_WARPS = CONVERTERS / teams<S>;
    extern __shared__ char memory[];
    __shared__ uint64_t full[S::STAGES], empty[S::STAGES], ready[CONVERTED], released[CONVERTED];
    const uint32_t room = (shared_address(memory) + 1023) / 1024 * 1024,
                   converted = room + S::STAGES * S::STAGE_BYTES;
    const int group = (int)uniform(threadIdx.x / GROUP_THREADS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(shared_address(&full[i]), 1);
            barrier_init(shared_address(&empty[i]), 4 * S::GROUPS + S::DEPTH * TEAM_WARPS);
        }
        for (int i = 0; i < CONVERTED; i++) {
            barrier_init(shared_address(&ready[i]), TEAM_WARPS);
            barrier_init(shared_address(&released[i]), 4 * S::GROUPS);
        }
        barriers_ready();
    }
    __syncthreads();
    allow_next_kernel();
    if (group == S::GROUPS + CONVERTERS / 4) {
        if (is_elected()) load_slices<S, LINE, LINE_BYTES>(g, &x, &w, room, full, empty);
        return;
    }
    if (group >= S::GROUPS) {
        convert_lines<T, S>(g, room, converted, full, empty, ready, released);
        return;
    }
    Ring<S::STAGES> at;
    Ring<CONVERTED> line;
    wait_for_kernel_before();
    for (int tile = blockIdx.x; tile < g.down * g.across; tile += gridDim.x) {
        float sum[S::N / 8][4] = {};
        uint32_t before = 0,
                 /* the barriers of the previous line and, after the last line of a slice, of the slice's
                  * stage */
            stage_before = 0;
        for (int slice = 0; slice < g.slices; slice++, at.next()) {
            barrier_wait(shared_address(&full[at.stage]), at.phase);
#pragma unroll
            for (int i = 0; i < S::DEPTH; i++, line.next()) {
                const uint64_t a = tile_descriptor<true>(uniform(room + at.stage * S::STAGE_BYTES) +
                                                             group * 64 * LINE_BYTES,
                                                         0, S::STRIDE),
                               b = tile_descriptor<true>(uniform(converted + line.stage * 2 * S::W_BYTES));
                barrier_wait(shared_address(&ready[line.stage]), line.phase);
                Product<T, S::N / 8>::fence(sum);
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int k = 0; k < LINE_BYTES; k += 32)
                        Product<T, S::N / 8>::run(sum, a + ((2 * i + h) * S::X_BYTES + k) / 16,
                                                  b + (h * S::W_BYTES + k) / 16);
                products_begun();
                Product<T, S::N / 8>::template wait<1>(sum);
                if (before && threadIdx.x % 32 == 0) {
                    barrier_arrive(before);
                    if (stage_before) barrier_arrive(stage_before);
                }
                before = shared_address(&released[line.stage]);
                stage_before = i == S::DEPTH - 1 ? shared_address(&empty[at.stage]) : 0;
            }
        }
        Product<T, S::N / 8>::template wait<0>(sum);
        if (threadIdx.x % 32 == 0) barrier_arrive(before), barrier_arrive(stage_before);
        const int64_t row = (int64_t)(tile % g.down) * S::ROWS + threadIdx.x / 32 * 16,
                      column = (int64_t)(tile / g.down) * S::N;
        scale_sums(g, sum, (const float *)NULL, of_column, row, column);
        put_sums<T>(g, sum, bias, y, row, column);
    }
#endif
}

/* ---- launches ---- */

template <typename T, typename S> static void launch_fp8(const Call *c, const QuantizedGemm *q) {
    const RowLaunch<S> l(c, q->x, q->w, q->m, q->n, q->k, LINE_BYTES, q->steady);
    CUDA_CHECK(
        cudaFuncSetAttribute(multiply_fp8<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::ROOM));
    launch_pdl(c, l.blocks, dim3(fp8_threads<S>), S::ROOM, multiply_fp8<T, S>, l.g, l.x, l.w, q->of_row,
               q->of_column, (const T *)data_of<T>(q->bias), data_of<T>(q->y));
}

template <typename T, typename S> static void launch_int8(const Call *c, const QuantizedGemm *q) {
    const RowLaunch<S> l(c, q->x, q->w, q->m, q->n, q->k, LINE_BYTES, q->steady);
    const int bytes = int8_room<S>;
    CUDA_CHECK(cudaFuncSetAttribute(multiply_int8<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    launch_pdl(c, l.blocks, dim3(S::THREADS + CONVERTERS * 32), (size_t)bytes, multiply_int8<T, S>, l.g, l.x,
               l.w, q->of_column, (const T *)data_of<T>(q->bias), data_of<T>(q->y));
}

/* With few rows, tiles are narrow, so that all multiprocessors read weights. */
template <typename T> static void launch_shape(const Call *c, const QuantizedGemm *q) {
    const int64_t blocks = cuda_of(c->device)->multiprocessors, rows = ceil_div(q->m, 128);
    const bool fp8 = q->w->dtype == F8E4M3;
    if (q->m <= 8)
        fp8 ? launch_fp8<T, Shape<1, 32, 2, 20, 1, true>>(c, q)
            : launch_int8<T, Shape<1, 32, 2, 13, 1, true, 2>>(c, q);
    else if (q->m <= 64)
        fp8 ? launch_fp8<T, Shape<1, 32, 2, 8, 1>>(c, q)
            : launch_int8<T, Shape<1, 32, 2, 4, 1, false, 2>>(c, q);
    else if (!fp8)
        launch_int8<T, Shape<2, 64, 1, 4, 1, false, 2>>(c, q);
    else if (rows * ceil_div(q->n, 128) < blocks / 2)
        launch_fp8<T, Shape<2, 64, 1, 4, 2>>(c, q);
    else if (rows * ceil_div(q->n, 256) < 2 * blocks)
        launch_fp8<T, Shape<2, 128, 1, 6, 1>>(c, q);
    else
        launch_fp8<T, Shape<2, 256, 1, 4, 1>>(c, q);
}

bool gemm_quantized_can(const Call *c, const QuantizedGemm *q) {
    return has_warpgroups(cuda_of(c->device)) && dtype_is_16bit((DType)q->y->dtype) &&
           (!q->bias || q->bias->dtype == q->y->dtype) && q->n % 8 == 0 && q->k % 16 == 0 && q->k > 0 &&
           aligned_16(q->x->data) && aligned_16(q->w->data) && aligned_16(q->y->data);
}

void gemm_quantized(const Call *c, const QuantizedGemm *q) {
    CHECK(q->m <= INT32_MAX / 2 && q->n <= INT32_MAX / 2 && q->k <= INT32_MAX / 2,
          "linear_quantized: a GEMM of [%lld,%lld] and %lld terms is too large", (long long)q->m,
          (long long)q->n, (long long)q->k);
    if (q->y->dtype == BF16)
        launch_shape<bf16>(c, q);
    else
        launch_shape<fp16>(c, q);
}
