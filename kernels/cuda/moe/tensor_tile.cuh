/* Multiplies 16-bit matrices on tensor cores, with accumulators in F32. A block of TENSOR_THREADS threads
 * computes a tile of TENSOR_TILE x TENSOR_TILE elements. cp.async copies operands to shared memory, which
 * holds TENSOR_STAGES slices of TENSOR_DEPTH terms. Rows in shared memory have 128 bytes; their 16-byte units
 * are permuted by the row number (PTX ISA: 128-byte swizzle), so that neither copies nor reads of eight rows
 * at a time have bank conflicts. Slices are multiplied by wgmma (warpgroups) on sm_90a, and by mma (warps) on
 * other architectures. */
#pragma once

#include "kernels/cuda/mma.cuh"

#include <type_traits>

enum {
    TENSOR_TILE = 128,
    TENSOR_DEPTH = 64,
    TENSOR_STAGES = 3,
    TENSOR_THREADS = 256,
    TENSOR_SLICE = TENSOR_TILE * TENSOR_DEPTH * 2, /* in bytes */
    /* bytes of dynamic shared memory; two blocks fit on a multiprocessor */
    TENSOR_ROOM = 2 * TENSOR_STAGES * TENSOR_SLICE + 1024,
    /* number of groups of four accumulators per thread */
    TENSOR_SUMS = TENSOR_TILE * TENSOR_TILE / TENSOR_THREADS / 4,
};

/* One operand, beginning at the tile's first line (a row or column of c). */
template <typename T> struct TensorSide {
    const T *at;
    /* The number of elements between consecutive lines if `along` (a line's terms are contiguous), otherwise
     * between consecutive terms. */
    int64_t pitch;
    int64_t lines; /* number of lines */
};

/* ---- shared memory ---- */

/* Returns the byte offset in a slice of the 16-byte unit that begins with this element. If `along` is false,
 * the elements of 64 lines are adjacent for each term, and the next 64 lines follow after all terms. */
template <bool along> __host__ __device__ __forceinline__ uint32_t tensor_place(int line, int term) {
    return along ? line * 128 + ((term / 8 ^ line % 8) * 16)
                 : line / 64 * (TENSOR_DEPTH * 128) + term * 128 + ((line / 8 % 8 ^ term % 8) * 16);
}

/* A thread's part of the copy of one operand: COUNT units of 16 bytes, in lines or terms at intervals of
 * STEP. */
template <typename T, bool along> struct TensorCopy {
    static constexpr int UNITS = TENSOR_DEPTH / 8, ACROSS = along ? UNITS : TENSOR_TILE / 8;
    static constexpr int STEP = TENSOR_THREADS / ACROSS, COUNT = TENSOR_SLICE / 16 / TENSOR_THREADS;
    const T *from;
    int64_t pitch;
    int down, unit,
        /* down: first line if `along` is true, otherwise first term; unit: first element in the other
         * dimension */
        lines;
    uint32_t to;

    __device__ __forceinline__ explicit TensorCopy(const TensorSide<T> &x) {
        down = threadIdx.x / ACROSS, unit = threadIdx.x % ACROSS * 8;
        lines = (int)(x.lines < TENSOR_TILE ? x.lines : TENSOR_TILE);
        from = x.at + down * x.pitch + unit;
        pitch = x.pitch;
        to = along ? tensor_place<true>(down, unit) : tensor_place<false>(unit, down);
    }
    /* Copies the next slice of an operand in which `terms` terms are left. Elements after the last term or
     * the last line become 0. */
    __device__ __forceinline__ void slice(uint32_t tile, int64_t terms) {
#pragma unroll
        for (int q = 0; q < COUNT; q++) {
            const int at = down + q * STEP;
            const bool there = along ? at < lines && unit < terms : at < terms && unit < lines;
            copy_async<16>(tile + to + q * STEP * 128, from + q * STEP * pitch, there);
        }
        from += along ? TENSOR_DEPTH : TENSOR_DEPTH * pitch;
    }
};

/* ---- multiplication of a slice ---- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Returns a matrix descriptor for wgmma (PTX ISA). The descriptor contains the address, the distance between
 * groups of 64 lines (only used if `along` is false) and the distance between groups of 8 rows, all in units
 * of 16 bytes. The swizzle spans 128 bytes. */
template <bool along> __device__ __forceinline__ uint64_t tensor_matrix(uint32_t at) {
    const uint64_t leading = along ? 1 : TENSOR_DEPTH * 128 / 16, stride = 8 * 128 / 16;
    return (uint64_t)(at >> 4 & 0x3fff) | leading << 16 | stride << 32 | (uint64_t)1 << 62;
}

#define SUMS(q)   "+f"(sum[q][0]), "+f"(sum[q][1]), "+f"(sum[q][2]), "+f"(sum[q][3])
#define SUMS_4(q) SUMS(q), SUMS(q + 1), SUMS(q + 2), SUMS(q + 3)
#define OPERANDS                                                                                             \
    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                               \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                      \
    "%64, %65, 1, 1, 1, %66, %67;"
template <typename T, bool a_along, bool b_along>
__device__ __forceinline__ void multiply_16(float (&sum)[TENSOR_SUMS][4], uint64_t a, uint64_t b) {
    if (std::is_same<T, bf16>::value)
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16" OPERANDS
                     : SUMS_4(0), SUMS_4(4), SUMS_4(8), SUMS_4(12)
                     : "l"(a), "l"(b), "n"(!a_along), "n"(!b_along));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" OPERANDS
                     : SUMS_4(0), SUMS_4(4), SUMS_4(8), SUMS_4(12)
                     : "l"(a), "l"(b), "n"(!a_along), "n"(!b_along));
}

template <typename T, bool a_along, bool b_along>
__device__ __forceinline__ void multiply_slice(float (&sum)[TENSOR_SUMS][4], uint32_t a, uint32_t b) {
    a += threadIdx.x / 128 * tensor_place<a_along>(64, 0);
    /* The accumulators are operands of this statement, so that the compiler does not move accesses to them
     * into the multiplication. */
    asm volatile("wgmma.fence.sync.aligned;" : SUMS_4(0), SUMS_4(4), SUMS_4(8), SUMS_4(12)::"memory");
#pragma unroll
    for (int term = 0; term < TENSOR_DEPTH; term += 16)
        multiply_16<T, a_along, b_along>(sum, tensor_matrix<a_along>(a + (a_along ? term * 2 : term * 128)),
                                         tensor_matrix<b_along>(b + (b_along ? term * 2 : term * 128)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_4(0), SUMS_4(4), SUMS_4(8), SUMS_4(12)::"memory");
}

/* Makes this thread's copies visible to wgmma after the next barrier. */
__device__ __forceinline__ void publish_copies(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

/* Returns the row of accumulators 0 and 1 in a group of four. Accumulators 2 and 3 are eight rows below. */
__device__ __forceinline__ int tensor_row(int) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ __forceinline__ int tensor_column(int q) { return q * 8 + threadIdx.x % 4 * 2; }

#else

template <bool along> __device__ __forceinline__ void read_matrices(uint32_t (&x)[4], uint32_t at) {
    if (along)
        load_matrices(x, at);
    else
        load_transposed(x, at);
}

/* Each of eight warps computes 64 x 32 elements. Returns the offset of the 16 bytes whose address this lane
 * passes to ldmatrix: a row of the 8 x 8 matrix that begins 8 * lower lines and 8 * later terms after (line,
 * term). */
template <bool along>
__device__ __forceinline__ uint32_t lane_place(int line, int term, int lower, int later) {
    const int row = threadIdx.x % 8;
    return tensor_place<along>(line + 8 * lower + (along ? row : 0), term + 8 * later + (along ? 0 : row));
}

template <typename T, bool a_along, bool b_along>
__device__ __forceinline__ void multiply_slice(float (&sum)[TENSOR_SUMS][4], uint32_t a, uint32_t b) {
    const int warp = threadIdx.x / 32, m0 = warp / 4 * 64, n0 = warp % 4 * 32;
    const int odd = threadIdx.x / 8 % 2, high = threadIdx.x / 16 % 2;
#pragma unroll
    for (int term = 0; term < TENSOR_DEPTH; term += 16) {
        uint32_t right[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++)
            read_matrices<b_along>(right[j], b + lane_place<b_along>(n0 + 16 * j, term, high, odd));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t left[4];
            read_matrices<a_along>(left, a + lane_place<a_along>(m0 + 16 * i, term, odd, high));
#pragma unroll
            for (int j = 0; j < 4; j++)
                multiply_add<T>(sum[4 * i + j], left, right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
    }
}

__device__ __forceinline__ void publish_copies(void) {}

/* Returns the row of accumulators 0 and 1 in a group of four. Accumulators 2 and 3 are eight rows below. */
__device__ __forceinline__ int tensor_row(int q) {
    return threadIdx.x / 128 * 64 + q / 4 * 16 + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int tensor_column(int q) {
    return threadIdx.x / 32 % 4 * 32 + q % 4 * 8 + threadIdx.x % 4 * 2;
}

#endif

/* ---- the tile ---- */

/* Computes sum += a b over k terms. In each operand, the size of the contiguous dimension must be a multiple
 * of eight. */
template <typename T, bool a_along, bool b_along>
__device__ __forceinline__ void tensor_tile(float (&sum)[TENSOR_SUMS][4], const TensorSide<T> &a,
                                            const TensorSide<T> &b, int64_t k) {
    extern __shared__ char room[];
    const uint32_t base = (shared_address(room) + 1023) / 1024 * 1024;
    TensorCopy<T, a_along> left(a);
    TensorCopy<T, b_along> right(b);
    int64_t ahead = k; /* number of terms whose copies have not begun */
    int next = 0;      /* the stage of the next copy */
    const auto after = [](int stage) { return stage + 1 == TENSOR_STAGES ? 0 : stage + 1; };
    const auto fetch = [&]() {
        const uint32_t at = base + 2 * TENSOR_SLICE * next;
        if (ahead > 0) left.slice(at, ahead), right.slice(at + TENSOR_SLICE, ahead);
        copies_begun();
        ahead -= TENSOR_DEPTH;
        next = after(next);
    };
#pragma unroll
    for (int i = 0; i + 1 < TENSOR_STAGES; i++) fetch();
    while (ahead + (TENSOR_STAGES - 1) * TENSOR_DEPTH > 0) {
        copies_wait<TENSOR_STAGES - 2>();
        publish_copies();
        __syncthreads(); /* the slice has arrived, and no thread reads the previous slice any more */
        const uint32_t at = base + 2 * TENSOR_SLICE * after(next);
        fetch();
        multiply_slice<T, a_along, b_along>(sum, at, at + TENSOR_SLICE);
    }
    copies_wait<0>();
}

/* Stores two adjacent elements of a row. `at` is even. */
template <typename Y> __device__ __forceinline__ void put_pair(Y *y, float a, float b, bool add) {
    Vec<Y, 2> *to = (Vec<Y, 2> *)y;
    if (add) {
        const Vec<Y, 2> old = *to;
        a += to_real<float>(old.v[0]), b += to_real<float>(old.v[1]);
    }
    const Vec<Y, 2> pair = {{from_real<Y>(a), from_real<Y>(b)}};
    *to = pair;
}

/* Stores the tile in c [lines,n], beginning at c's first element. n must be even. Only existing lines and
 * columns are stored. */
template <typename Y>
__device__ __forceinline__ void tensor_put(const float (&sum)[TENSOR_SUMS][4], Y *c, int64_t n, int64_t lines,
                                           int64_t columns, bool add) {
#pragma unroll
    for (int q = 0; q < TENSOR_SUMS; q++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = tensor_row(q) + 8 * half, column = tensor_column(q);
            if (row < lines && column < columns)
                put_pair(c + row * n + column, sum[q][2 * half], sum[q][2 * half + 1], add);
        }
}
