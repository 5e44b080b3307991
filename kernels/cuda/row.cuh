/* Rows that several threads work on together: teams of threads and their sums, and where the rows of a
 * strided tensor begin, for kernels that touch each row once. */
#ifndef ISOTRON_KERNELS_CUDA_ROW_CUH
#define ISOTRON_KERNELS_CUDA_ROW_CUH

#include "kernels/cuda/common.cuh"

/* A team is 1, 2, 4, ... or 32 threads of a warp, of which a block has several, or a whole block of more. */
struct TeamShape {
    int size, count; /* threads of a team, teams of a block */
};
enum { TEAM_LARGEST = 1024, TEAM_BLOCK = 256 /* threads of a block of small teams */ };

/* For rows of so many parts, one or less to a thread; at most TEAM_LARGEST. */
static inline TeamShape team_for(int64_t parts) {
    if (parts > 32) {
        const TeamShape block = {(int)ceil_div(parts, 32) * 32, 1};
        return block;
    }
    int size = 1;
    while (size < parts) size *= 2;
    const TeamShape some = {size, TEAM_BLOCK / size};
    return some;
}
static inline int team_threads(TeamShape s) { return s.size * s.count; }

/* A thread's view of its team. All threads of a block call the sums, equally often; all of a team get the
 * result. Two parts of `room` serve in turn: who writes to one again has passed a barrier that all reached
 * after reading it. */
template <typename R> struct Team {
    enum { ROOM = 128 }; /* elements of shared memory */
    int size, lane, index;
    R *room;
    int turn;

    __device__ __forceinline__ Team(TeamShape s, R *shared)
        : size(s.size), lane((int)threadIdx.x % s.size), index((int)threadIdx.x / s.size), room(shared),
          turn(0) {}

    __device__ __forceinline__ R sum(R x) {
        R nothing = 0;
        if (size <= 32) return within_warp(x);
        across_warps<false>(x, nothing);
        return x;
    }
    /* Each of a and b becomes its sum. */
    __device__ __forceinline__ void sums(R &a, R &b) {
        if (size > 32) {
            across_warps<true>(a, b);
            return;
        }
        a = within_warp(a);
        b = within_warp(b);
    }

  private:
    __device__ __forceinline__ R within_warp(R x) const {
        for (int k = size / 2; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
        return x;
    }
    template <bool BOTH> __device__ __forceinline__ void across_warps(R &a, R &b) {
        const int of_warp = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        R *slot = room + 64 * turn;
        turn ^= 1;
        a = warp_sum(a);
        if (BOTH) b = warp_sum(b);
        if (of_warp == 0) {
            slot[warp] = a;
            if (BOTH) slot[32 + warp] = b;
        }
        __syncthreads();
        a = warp_sum(of_warp < size / 32 ? slot[of_warp] : (R)0);
        if (BOTH) b = warp_sum(of_warp < size / 32 ? slot[32 + of_warp] : (R)0);
    }
};

/* Where rows begin, as Rows, but quick to compute: dimensions that follow one another in memory count as one,
 * of which there may be three, and row numbers have 31 bits. */
struct Starts {
    uint32_t inner, middle; /* sizes of the inner dimensions */
    int64_t stride[3];

    __host__ __device__ __forceinline__ int64_t operator()(int64_t row) const {
        const uint32_t r = (uint32_t)row, outer = r / inner;
        return outer / middle * stride[0] + outer % middle * stride[1] + r % inner * stride[2];
    }
};
/* Whether t's rows are like that. */
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
    const Starts s = {(uint32_t)size[0], (uint32_t)size[1], {stride[2], stride[1], stride[0]}};
    *out = s;
    return true;
}

#endif
