/* Teams are groups of threads that process a row together. This header implements reductions over teams, and
 * computes where the rows of a strided tensor begin. The code is intended for kernels that read each row
 * once. */
#pragma once

#include <string.h>

#include "kernels/cuda/common.cuh"

/* A team consists of 1, 2, 4, ... or 32 threads of one warp, or of several entire warps. A block has `count`
 * teams and the dimensions (size, count). */
struct TeamShape {
    int size, count; /* number of threads per team, and of teams per block */
};
enum { TEAM_LARGEST = 1024, TEAM_BLOCK = 256 /* threads per block if teams are small */ };

/* Returns the shape of teams for rows of `parts` parts, with at most one part per thread; `parts` must be at
 * most TEAM_LARGEST. A block has at most `block` threads (a multiple of 32 up to 512), or consists of a
 * single larger team. Teams of several warps share a block only if `many` is set; otherwise, each such team
 * is a block and synchronizes with the block's barrier. */
static inline TeamShape team_for(int64_t parts, int block, bool many) {
    TeamShape t = {1, 1};
    if (parts > 32)
        t.size = (int)ceil_div(parts, 32) * 32;
    else
        while (t.size < parts) t.size *= 2;
    if (t.size < block && (many || t.size <= 32)) t.count = block / t.size;
    return t;
}
static inline int team_threads(TeamShape s) { return s.size * s.count; }
static inline dim3 team_block(TeamShape s) { return dim3((unsigned)s.size, (unsigned)s.count); }

/* A thread's view of its team. All threads of a block must call the same number of reductions. All threads of
 * a team receive the result without waiting for other teams. Reductions use the two halves of `room`
 * alternately, so that a team passes a barrier between reading a half and overwriting that half. */
template <typename R, bool MANY> struct Team {
    enum { ROOM = 128 }; /* elements of shared memory */
    int size, lane, index;

    __device__ __forceinline__ Team(R *shared)
        : size((int)blockDim.x), lane((int)threadIdx.x), index((int)threadIdx.y) {
        warps = size / 32;
        room = shared + index * warps;
        half = warps > 1 ? 1 << (31 - __clz(warps - 1)) : 0;
    }

    __device__ __forceinline__ R sum(R x) {
        R nothing = 0;
        if (size <= 32) return within_warp(x);
        across_warps<false>(x, nothing);
        return x;
    }
    /* Replaces a and b with their sums over the team. */
    __device__ __forceinline__ void sums(R &a, R &b) {
        if (size > 32) {
            across_warps<true>(a, b);
            return;
        }
        a = within_warp(a);
        b = within_warp(b);
    }

  private:
    R *room;
    int warps, half; /* half: half of the smallest power of two >= `warps` */
    int turn = 0;

    __device__ __forceinline__ R within_warp(R x) const {
        if (size == 32) return warp_sum(x);
        for (int k = size / 2; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
        return x;
    }
    /* If each team has a separate barrier, the block reserves all 16 named barriers that a block can have. */
    __device__ __forceinline__ void wait() const {
        if constexpr (MANY)
            asm volatile("bar.sync %0, %1;" : : "r"(index + 1), "r"(size) : "memory");
        else
            __syncthreads();
    }
    template <bool BOTH> __device__ __forceinline__ void across_warps(R &a, R &b) {
        R *slot = room + 64 * turn;
        const int from = lane & (2 * half - 1);
        turn ^= 1;
        a = warp_sum(a);
        if (BOTH) b = warp_sum(b);
        if (lane % 32 == 0) {
            slot[lane / 32] = a;
            if (BOTH) slot[32 + lane / 32] = b;
        }
        wait();
        a = from < warps ? slot[from] : (R)0;
        if (BOTH) b = from < warps ? slot[32 + from] : (R)0;
        for (int k = half; k > 0; k /= 2) {
            a += __shfl_xor_sync(0xffffffffu, a, k);
            if (BOTH) b += __shfl_xor_sync(0xffffffffu, b, k);
        }
    }
};

/* Loads 16 bytes that this kernel does not write. The asm prevents the compiler from moving the load before
 * wait_for_kernel_before(), and from delaying it to save registers. */
template <typename V> __device__ __forceinline__ V constant_vector(const V *p) {
    static_assert(sizeof(V) == sizeof(uint4), "a vector must have 16 bytes");
    uint4 bits;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                 : "l"(__cvta_generic_to_global(p)));
    V v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Computes where rows begin, like Rows, but faster. Dimensions that are contiguous in memory are merged. At
 * most three merged dimensions are supported, and row numbers must fit into 31 bits. */
struct Starts {
    uint32_t inner, middle; /* sizes of the inner dimensions */
    int64_t stride[3];
    /* True if the distance between consecutive rows is always stride[2], so that no slow division is
     * needed. */
    bool even;

    __host__ __device__ __forceinline__ int64_t operator()(int64_t row) const {
        if (even) return row * stride[2];
        const uint32_t r = (uint32_t)row, outer = r / inner;
        return outer / middle * stride[0] + outer % middle * stride[1] + r % inner * stride[2];
    }
};
/* Returns true if Starts can describe the rows of t. */
static inline bool starts_of(const Tensor *t, Starts *out) {
    int64_t size[3] = {1, 1, 1}, stride[3] = {0, 0, 0};
    int n = 0;
    for (int i = t->ndim - 2; i >= 0; i--) {
        if (t->dim[i] == 1) continue;
        if (n && t->stride[i] == size[n - 1] * stride[n - 1]) {
            size[n - 1] *= t->dim[i];
            continue;
        }
        if (n == 3) return false;
        size[n] = t->dim[i];
        stride[n++] = t->stride[i];
    }
    if (tensor_rows(t) > INT32_MAX) return false;
    const Starts s = {(uint32_t)size[0], (uint32_t)size[1], {stride[2], stride[1], stride[0]}, n <= 1};
    *out = s;
    return true;
}
