/* Finds the experts of rows and of tiles of rows. Only the GPU knows the offsets. */
#pragma once

#include "kernels/cuda/common.cuh"

enum { ORDERED_TILE = 64 }; /* height and width of a tile whose sums are in order */

struct Experts {
    const int64_t *offset;
    int64_t count, rows;
};

struct RowTile {
    int64_t expert; /* Experts.count for rows after the last expert's rows; -1 for a surplus tile */
    int64_t first, rows;
};

/* Returns the expert and the rows of tile number `tile`. An expert's tiles begin at the expert's first row.
 * All threads of the block must call this function. */
static __device__ RowTile find_tile(const Experts &e, int64_t tile, int height) {
    __shared__ int64_t sums[32];
    __shared__ RowTile found;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int64_t base = 0; /* number of tiles of the experts in previous rounds */
    if (threadIdx.x == 0) found.expert = -1;
    for (int64_t at = 0; at <= e.count; at += blockDim.x) {
        const int64_t i = at + threadIdx.x;
        const int64_t first = i <= e.count ? e.offset[i] : 0,
                      last = i < e.count ? e.offset[i + 1] : (i == e.count ? e.rows : 0),
                      tiles = (last - first + height - 1) / height;
        int64_t before = tiles;
        for (int k = 1; k < 32; k *= 2) {
            const int64_t left = __shfl_up_sync(0xffffffffu, before, k);
            if (lane >= k) before += left;
        }
        before -= tiles;
        __syncthreads();
        if (lane == 31) sums[warp] = before + tiles;
        __syncthreads();
        before += base;
        for (int k = 0; k < warps; k++) {
            if (k < warp) before += sums[k];
            base += sums[k];
        }
        if (tile >= before && tile < before + tiles) {
            const int64_t row = first + (tile - before) * height;
            found.expert = i, found.first = row, found.rows = last - row < height ? last - row : height;
        }
    }
    __syncthreads();
    return found;
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

/* Returns a number of tiles that is sufficient for all offsets: each expert, and the rows after the last
 * expert's rows, may need one partial tile. */
static inline int64_t row_tiles(const Experts &e, int64_t height) { return e.rows / height + e.count + 1; }

static inline unsigned blocks(int64_t tiles) {
    CHECK(tiles <= INT32_MAX, "grouped linear: %lld tiles are too many for one launch", (long long)tiles);
    return (unsigned)tiles;
}
