/* Finds the tiles of grouped GEMMs and stores their sums, for grouped_tiles.cu and grouped_fp8_tiles.cu.
 *
 * A persistent cluster of two blocks computes pairs of tiles in sequence. A tile has ROWS rows and COLUMNS columns. The
 * tiles of a pair share an operand: each block copies half of it to the shared memory of both blocks. One warp of a
 * block copies slices of the operands, and two warpgroups each multiply 64 rows of a tile. A warpgroup stores its sums
 * by copies from shared memory, which continue while it multiplies the next tile. */
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/moe/grouped_tiles.cuh"

enum { ROWS = 128, COLUMNS = 256, GROUPS = 2, MOST_EXPERTS = 2048 };
/* A slice has one line for each row of a tile (a) and for each of its columns (b). A chunk consists of 64 lines. */
enum {
    A_BYTES = ROWS * LINE_BYTES,
    B_BYTES = COLUMNS * LINE_BYTES,
    STAGE_BYTES = A_BYTES + B_BYTES,
    CHUNK = 64 * LINE_BYTES
};

/* A kernel computes y = x w^T (FORWARD), dx = dy w (DGRAD) or dw = dy^T x (WGRAD). */
typedef enum Kind { FORWARD, DGRAD, WGRAD } Kind;

struct Grouped {
    const int64_t *offset;
    int experts;
    int down, across; /* numbers of pairs: in the rows of an expert's dw, and in the columns of the result */
    int64_t rows;     /* of x, including the rows after the last expert's rows */
    int m, n, k;      /* rows of dw; columns of the result; terms of y and dx */
    bool add;
    Cells bias, scale; /* as in grouped.cu */
};

/* If `beside` is true, the tiles of a pair are next to each other, and share rows. Otherwise, one is below the other,
 * and they share columns. */
template <bool beside> struct Extent {
    static constexpr int DOWN = beside ? ROWS : 2 * ROWS, ACROSS = beside ? 2 * COLUMNS : COLUMNS;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- pairs of tiles ---- */

struct Pair {
    int expert; /* -1: rows after the last expert's rows */
    int column;
    int64_t row, rows; /* the first row, and the number of rows from there to the end of the expert's rows */
    int first, terms;  /* WGRAD: the first term, and the number of terms */
    int slices;
};

/* Computes before[e], the number of pairs in the rows before expert e. The rows after the last expert count as one more
 * expert. One warp calls this function. */
template <int height> static __device__ __forceinline__ void count_pairs(const Grouped &g, int *before) {
    const int lane = threadIdx.x % 32;
    int base = 0;
    for (int at = 0; at <= g.experts; at += 32) {
        const int i = at + lane;
        const int64_t first = i <= g.experts ? g.offset[i] : 0,
                      last = i < g.experts ? g.offset[i + 1] : (i == g.experts ? g.rows : 0);
        const int pairs = (int)((last - first + height - 1) / height);
        int sum = pairs;
        for (int k = 1; k < 32; k *= 2) {
            const int left = __shfl_up_sync(0xffffffffu, sum, k);
            if (lane >= k) sum += left;
        }
        if (i <= g.experts) before[i] = base + sum - pairs;
        base += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) before[g.experts + 1] = base;
}

template <Kind kind> static __device__ __forceinline__ int all_pairs(const Grouped &g, const int *before) {
    return (kind == WGRAD ? g.experts * g.down : before[g.experts + 1]) * g.across;
}

/* Returns the last expert before which there are no more than `row` pairs of rows. */
static __device__ __forceinline__ int expert_of(const Grouped &g, const int *before, int row) {
    int low = 0, high = g.experts;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (before[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

template <Kind kind, bool beside, int TERMS>
static __device__ __forceinline__ Pair find_pair(const Grouped &g, const int *before, int i) {
    Pair p = {};
    int row, column;
    if (kind == WGRAD) {
        p.expert = i / (g.down * g.across);
        in_bands(i % (g.down * g.across), g.down, g.across, &row, &column);
        p.first = (int)g.offset[p.expert];
        p.terms = (int)g.offset[p.expert + 1] - p.first;
        p.slices = (p.terms + TERMS - 1) / TERMS;
        p.row = row * Extent<beside>::DOWN, p.rows = g.m - p.row;
    } else {
        in_bands(i, before[g.experts + 1], g.across, &row, &column);
        const int e = expert_of(g, before, row);
        p.expert = e < g.experts ? e : -1;
        p.row = g.offset[e] + (int64_t)(row - before[e]) * Extent<beside>::DOWN;
        p.rows = (e < g.experts ? g.offset[e + 1] : g.rows) - p.row;
        p.slices = e < g.experts ? (g.k + TERMS - 1) / TERMS : 0;
    }
    p.column = column * Extent<beside>::ACROSS;
    return p;
}

/* A ring of pairs in a block's shared memory. One thread finds pairs before the other warps need them. */
struct Pairs : Ring<4> {
    enum { DEPTH = 4, READERS = GROUPS * GROUP_THREADS / 32 + 1 /* warps */ };
    struct Room {
        Pair pair[DEPTH];
        uint64_t barriers[2 * DEPTH];
    };
    Room *room;

    __device__ __forceinline__ explicit Pairs(Room *r) : room(r) {}
    __device__ __forceinline__ uint32_t full() const { return shared_address(room->barriers + stage); }
    __device__ __forceinline__ uint32_t empty() const { return full() + 8 * DEPTH; }
    __device__ __forceinline__ void init() const {
        for (int i = 0; i < 2 * DEPTH; i++)
            barrier_init(shared_address(room->barriers + i), i < DEPTH ? 1 : READERS);
    }
    __device__ __forceinline__ void write(const Pair &p) {
        barrier_wait(empty(), phase ^ 1);
        room->pair[stage] = p;
        barrier_arrive(full());
        next();
    }
    /* Reads the next pair, and returns false at the end. Only the first active lane of a warp arrives. */
    __device__ __forceinline__ bool read(Pair *p) {
        barrier_wait(full(), phase);
        *p = room->pair[stage];
        const uint32_t lanes = __activemask();
        __syncwarp(lanes);
        if ((int)(threadIdx.x % 32) == __ffs((int)lanes) - 1) barrier_arrive(empty());
        next();
        return p->slices >= 0;
    }
};

/* Writes a block's pairs, and a pair with -1 slices. Only one thread may call this function. */
template <Kind kind, bool beside, int TERMS>
static __device__ __forceinline__ void find_pairs(const Grouped &g, const int *before, Pairs to) {
    const int pairs = all_pairs<kind>(g, before);
#pragma unroll 1
    for (int i = blockIdx.x / 2; i < pairs; i += gridDim.x / 2)
        to.write(find_pair<kind, beside, TERMS>(g, before, i));
    Pair end = {};
    end.slices = -1;
    to.write(end);
}

/* ---- sums ---- */

/* Adds the bias to a warpgroup's sums. */
template <int N8>
static __device__ __forceinline__ void add_bias(float (&sum)[N8][4], const Grouped &g, int expert,
                                                int64_t row, int64_t rows, int column) {
    const int lane = threadIdx.x % 32, first = threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (first + 8 * h >= rows) continue;
        const float by = g.scale.data ? g.scale.get<float>(row + first + 8 * h) : 1;
#pragma unroll
        for (int q = 0; q < N8; q++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int at = column + 8 * q + lane % 4 * 2 + i;
                if (at < g.n) sum[q][2 * h + i] += by * g.bias.get<float>((int64_t)expert * g.n + at);
            }
    }
}

/* Writes the sums of one line's columns, of which `q` is the first eight, to a chunk. */
template <typename T, int N8>
static __device__ __forceinline__ void put_chunk(uint32_t chunk, const float (&sum)[N8][4], int q, T) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % GROUP_THREADS / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = pack<T>(sum[q + i + j / 2][j % 2 * 2], sum[q + i + j / 2][j % 2 * 2 + 1]);
        store_matrices(chunk + row * LINE_BYTES + (((i + lane / 16) ^ (row % 8)) * 16), x);
    }
}
/* Odd rows write the halves of a line in reverse order, so that four rows use all banks. */
template <int N8>
static __device__ __forceinline__ void put_chunk(uint32_t chunk, const float (&sum)[N8][4], int q, float) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 4;
    const bool odd = row % 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = odd ? sum[q + (i ^ 2)][j] : sum[q + i][j];
        const int at = 2 * (odd ? i ^ 2 : i) + lane % 4 / 2;
        const uint32_t to = chunk + row * LINE_BYTES + ((at ^ (row % 8)) * 16) + lane % 2 * 8;
        put_shared(to, x[0], x[1]);
        put_shared(to + 8 * LINE_BYTES, x[2], x[3]);
    }
}

/* Copies a warpgroup's sums to the matrix y, or adds them to it. */
template <typename Y, int CHUNKS, int N8>
static __device__ __forceinline__ void copy_sums(const float (&sum)[N8][4], const CUtensorMap *y,
                                                 uint32_t room, int group, int column, int plane, int row,
                                                 bool add) {
    enum { WIDE = LINE_BYTES / sizeof(Y), PARTS = 8 * N8 / (CHUNKS * WIDE) };
    const bool copies = threadIdx.x % GROUP_THREADS == 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (copies) copies_have_read();
        threads_wait<GROUP_THREADS>(2 + group);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            put_chunk(room + c * CHUNK, sum, (part * CHUNKS + c) * WIDE / 8, Y());
        show_to_copies();
        threads_wait<GROUP_THREADS>(2 + group);
        if (!copies) continue;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            copy_tile_out(y, room + c * CHUNK, column + (part * CHUNKS + c) * WIDE, plane, row, add);
        copies_begun_out();
    }
}

/* Stores or adds a warpgroup's sums, of which `rows` rows are needed. `y` is the first row. */
template <typename T, int N8>
static __device__ __forceinline__ void put_sums(const float (&sum)[N8][4], T *y, int64_t n, int64_t rows,
                                                int column, bool add) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int q = 0; q < N8; q++) {
            const int at = column + 8 * q + lane % 4 * 2;
            if (row + 8 * h >= rows || at >= n) continue;
            uint32_t *const to = (uint32_t *)(y + (row + 8 * h) * n + at);
            float a = sum[q][2 * h], b = sum[q][2 * h + 1];
            if (add) {
                const Vec<T, 2> old = *(const Vec<T, 2> *)to;
                a += to_real<float>(old.v[0]), b += to_real<float>(old.v[1]);
            }
            *to = pack<T>(a, b);
        }
}

#endif

/* ---- launches ---- */

/* Returns true if pairs next to each other compute fewer unneeded elements than pairs below each other. On average, half
 * a pair of an expert's rows is unneeded. */
static bool is_beside(const Grouped &g) {
    const int64_t each = g.rows / g.experts + 1, across = ceil_div(g.n, COLUMNS);
    return ceil_div(across, 2) * 2 * (2 * each + ROWS) <= across * (2 * each + 2 * ROWS);
}

/* Launches a kernel with clusters of two blocks on all multiprocessors that GEMMs may use. */
template <typename... Parameters, typename... Arguments>
static void launch_clusters(const Call *c, void (*kernel)(Parameters...), int threads, int bytes,
                            const Arguments &...arguments) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 2, cluster.val.clusterDim.y = 1, cluster.val.clusterDim.z = 1;
    const Cuda *gpu = cuda_of(c->device);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)gpu->multiprocessors), config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)bytes, config.stream = stream_of(c);
    config.attrs = &cluster, config.numAttrs = 1;
    int clusters = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    clusters = (int)least(clusters, (gpu->multiprocessors - gpu->gemm_sm_margin) / 2);
    config.gridDim = dim3(2 * (unsigned)(clusters > 1 ? clusters : 1));
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
    LAUNCHED();
}
