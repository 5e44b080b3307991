/* The scan on tensor cores (ssd_tiles.cu, ssd_tiles_grad.cu): operands, tiles in shared memory, and the kernels that both
 * passes run.
 *
 * Chunks have TILE positions, whatever the op's chunk is. A head is computed in slices of SLICE columns, because y and
 * all gradients are sums over the columns or separate for each column. Narrower slices and states are padded with
 * zeros, and so are the positions of the last chunk. */
#pragma once

#include "kernels/cuda/mamba/ssd_scan.cuh"
#include "kernels/cuda/mamba/split.cuh"

enum {
    TILE = 128,
    SLICE = 64,
    STATE = 128,
    EACH = 8, /* slices of heads that a block computes with the same B and C */
    ROW_BYTES = 128,
    STATE_SIZE = SLICE * STATE,
    X_BYTES = TILE * SLICE * 2,
    B_BYTES = TILE * STATE * 2,
    PAIR_BYTES = TILE * TILE * 2,
    STATE_BYTES = STATE_SIZE * 2 * 2
};

/* The positions of a head in a chunk. c is in units of log(2), and is the sum of two floats. */
struct Steps {
    float2 sum[TILE], late[TILE]; /* c, and c - log2(delta) */
    float delta[TILE];
    float to_end[TILE];     /* exp(c[last] - c[j]), or 0 if j does not affect the state after the chunk */
    float from_start[TILE]; /* exp(c[i]), or 0 if i does not depend on the state before the chunk */
};

/* A slice of a head of a sample, and a chunk. */
struct Unit {
    int64_t sample, group, head, column, width, number; /* number: index of the slice in [b,h,slices] */
};

struct Tiles : Scan<bf16> {
    int64_t slices, parts; /* slices per head; blocks per chunk of a group */
    Steps *steps;          /* [b,h,chunks] */
    bf16 *before;          /* [b,h,slices,chunks,2,SLICE,STATE]: the states before the chunks */

    __device__ __forceinline__ int64_t count() const { return h / g * slices; }
    __device__ __forceinline__ Unit unit(int64_t sample, int64_t group, int64_t i) const {
        const int64_t head = group * (h / g) + i / slices, column = i % slices * SLICE;
        return {sample,
                group,
                head,
                column,
                p - column < SLICE ? p - column : SLICE,
                (sample * h + head) * slices + i % slices};
    }
    __device__ __forceinline__ const Steps *steps_of(const Unit &u, int64_t chunk) const {
        return steps + (u.sample * h + u.head) * chunks + chunk;
    }
    /* Returns the first position of row i's document in the chunk, relative to the chunk. */
    __device__ __forceinline__ int first_row(int64_t sample, int64_t chunk, int i) const {
        const int64_t t = chunk * TILE + i;
        return t < s ? (int)(first_of(sample, t) - chunk * TILE) : 0;
    }
    __device__ __forceinline__ int64_t along() const { return b * width; } /* from a position to the next */
};

/* ---- tiles in shared memory ---- */

/* A plane contains the first 64 columns of all LINES lines, then the next 64 columns. The 16-byte pieces of a line are
 * permuted, so that pieces with the same number in eight adjacent lines are in eight different banks. */
template <int LINES> struct Planes {
    static __device__ __forceinline__ uint32_t at(uint32_t plane, int line, int column) {
        return plane + (column / 64 * LINES + line) * ROW_BYTES + ((column / 8 ^ line) & 7) * 16;
    }
};
typedef Planes<TILE> Plane;           /* of positions */
typedef Planes<2 * SLICE> StatePlane; /* of a split state: the lines of high, then those of low */

template <int LINES, int WIDTH>
__device__ __forceinline__ void copy_plane(uint32_t plane, const bf16 *from, int64_t stride, int64_t lines,
                                           int64_t width) {
    constexpr int PIECES = WIDTH / 8;
#pragma unroll
    for (int e = threadIdx.x; e < LINES * PIECES; e += THREADS) {
        const int line = e / PIECES, column = e % PIECES * 8;
        const bool there = line < lines && column < width;
        copy_async<16>(Planes<LINES>::at(plane, line, column), there ? from + line * stride + column : from,
                       there);
    }
}
__device__ __forceinline__ void copy_state(uint32_t plane, const bf16 *from) {
    copy_plane<2 * SLICE, STATE>(plane, from, STATE, 2 * SLICE, STATE);
}
__device__ __forceinline__ void copy_steps(uint32_t to, const Steps *from) {
    if (threadIdx.x < sizeof *from / 16)
        copy_async<16>(to + threadIdx.x * 16, (const char *)from + threadIdx.x * 16, true);
}

/* Adds the product of operand a and the lines, or columns, of a split state to two adjacent accumulators. */
template <bool COLUMNS>
__device__ __forceinline__ void add_state(float (*c)[4], const uint32_t (&a)[4], uint32_t plane, int n,
                                          int k) {
    uint32_t b[4];
    COLUMNS ? b_columns<StatePlane>(b, plane, n, k) : b_lines<StatePlane>(b, plane, n, k);
    multiply_add(c, a, b);
    COLUMNS ? b_columns<StatePlane>(b, plane, n, SLICE + k) : b_lines<StatePlane>(b, plane, SLICE + n, k);
    multiply_add(c, a, b);
}

/* Element i of accumulator n8 of two adjacent ones is at the same place as this element of operand a. */
__device__ __forceinline__ float element(const uint32_t (&a)[4], int n8, int i) {
    return i % 2 ? upper(a[2 * n8 + i / 2]) : lower(a[2 * n8 + i / 2]);
}

/* Each lane holds two columns in each half of a row of 16 columns. Returns four adjacent columns, the first of which is
 * `paired_column`. */
__device__ __forceinline__ Vec<uint32_t, 2> paired(uint32_t left, uint32_t right) {
    const bool odd = threadIdx.x % 2;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? left : right, 1);
    return odd ? Vec<uint32_t, 2>{other, right} : Vec<uint32_t, 2>{left, other};
}
__device__ __forceinline__ int paired_column() { return threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4; }

__device__ __forceinline__ float decay(float2 i, float2 j) { return exp_2(i.x - j.x + (i.y - j.y)); }

/* The row tile of a warp. Long and short rows of tiles share a quarter of the multiprocessor. */
__device__ __forceinline__ int warp_tile() {
    const int warp = (int)threadIdx.x / 32;
    return warp < 4 ? warp : 11 - warp;
}

/* ---- steps ---- */

/* A block computes the steps of 32 heads in a chunk; a warp computes a head, and each lane four positions. */
static __global__ void __launch_bounds__(THREADS) tile_steps(Tiles o) {
    constexpr int LANE = TILE / 32;
    __shared__ float raw[32][TILE + 1];
    const int64_t blocks = (o.h + 31) / 32, head0 = blockIdx.x % blocks * 32, rest = blockIdx.x / blocks,
                  chunk = rest % o.chunks, sample = rest / o.chunks, first = chunk * TILE,
                  last = o.chunk_last(first), begin = o.first_of(sample, last);
    for (int e = threadIdx.x; e < 32 * TILE; e += THREADS) {
        const int64_t head = head0 + e % 32, t = first + e / 32;
        raw[e % 32][e / 32] = head < o.h && t < o.s ? o.raw(sample, head, t) : 0;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x / 32; i < 32 && head0 + i < o.h; i += THREADS / 32) {
        const int lane = threadIdx.x % 32;
        Steps *to = o.steps + (sample * o.h + head0 + i) * o.chunks + chunk;
        const double rate = (double)o.rate(head0 + i) * 1.4426950408889634;
        double sum[LANE], all = 0;
        float delta[LANE];
        for (int k = 0; k < LANE; k++) {
            const int64_t t = first + lane * LANE + k;
            delta[k] = t < o.s ? fminf(fmaxf(softplus(raw[i][t - first]), o.least), o.most) : 0;
            sum[k] = all += rate * delta[k];
        }
        double before = all;
        for (int k = 1; k < 32; k *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, before, k);
            if (lane >= k) before += other;
        }
        const double end = __shfl_sync(0xffffffffu, before, 31);
        before -= all;
        for (int k = 0; k < LANE; k++) {
            const int at = lane * LANE + k;
            const int64_t t = first + at;
            const double c = sum[k] + before, late = c - log2((double)delta[k]);
            const bool there = t < o.s;
            to->sum[at] = {(float)c, (float)(c - (float)c)};
            to->late[at] =
                delta[k] > 0 ? float2{(float)late, (float)(late - (float)late)} : float2{INFINITY, 0};
            to->delta[at] = delta[k];
            to->to_end[at] = there && t >= begin ? exp_2((float)(end - c)) : 0;
            to->from_start[at] = o.carries(sample, there ? t : last) ? exp_2((float)c) : 0;
        }
    }
}

/* ---- the pass over chunks ---- */

/* A block computes the states of a slice. REVERSE: the gradients of the states after the chunks, and `kept` [b,h,slices,
 * chunks], the derivatives of the states after the chunks by the logarithm of the state's factor. */
template <bool REVERSE>
static __global__ void __launch_bounds__(THREADS, 2)
    pass_tiles(Tiles o, const bf16 *dy, bf16 *out, float *kept) {
    constexpr int STAGE = X_BYTES + B_BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ Steps steps[2];
    __shared__ float room[32];
    const int lane = threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = lane / 4, pair = lane % 4,
              m = warp % 4 * 16, n = warp / 4 * 64;
    const int64_t sample = blockIdx.x / (o.h * o.slices), i = blockIdx.x % (o.h * o.slices);
    const Unit u = o.unit(sample, i / o.count(), i % o.count());
    const auto load = [&](int64_t chunk, int stage) {
        const int64_t t = chunk * TILE, lines = o.s - t;
        const uint32_t to = shared_address(shared) + stage * STAGE;
        if (REVERSE) {
            copy_plane<TILE, SLICE>(to, dy + ((t * o.b + sample) * o.h + u.head) * o.p + u.column,
                                    o.b * o.h * o.p, lines, u.width);
            copy_plane<TILE, STATE>(to + X_BYTES, o.c_of(sample, u.group, t), o.along(), lines, o.n);
        } else {
            copy_plane<TILE, SLICE>(to, o.x_of(sample, u.head, t) + u.column, o.along(), lines, u.width);
            copy_plane<TILE, STATE>(to + X_BYTES, o.b_of(sample, u.group, t), o.along(), lines, o.n);
        }
        copy_steps(shared_address(&steps[stage]), o.steps_of(u, chunk));
    };
    float state[4][2][4] = {};
    load(REVERSE ? o.chunks - 1 : 0, 0);
    for (int64_t k = 0; k < o.chunks; k++) {
        const int64_t chunk = REVERSE ? o.chunks - 1 - k : k,
                      at = (u.number * o.chunks + chunk) * 2 * STATE_SIZE;
        const int stage = (int)k % 2;
        const Steps &step = steps[stage];
        const uint32_t x = shared_address(shared) + stage * STAGE, b = x + X_BYTES;
        copies_arrived();
        __syncthreads();
        if (k + 1 < o.chunks) load(REVERSE ? chunk - 1 : chunk + 1, stage ^ 1);
        float along = 0;
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t high[2], low[2];
#pragma unroll
                for (int n8 = 0; n8 < 2; n8++)
                    split(high[n8], low[n8], state[t][n8][2 * half], state[t][n8][2 * half + 1]);
                const int64_t to = at + (m + row + 8 * half) * STATE + n + t * 16 + paired_column();
                const Vec<uint32_t, 2> h = paired(high[0], high[1]), l = paired(low[0], low[1]);
                *(Vec<uint32_t, 2> *)(out + to) = h;
                *(Vec<uint32_t, 2> *)(out + to + STATE_SIZE) = l;
                if (!REVERSE) continue;
                const Vec<uint32_t, 2> sh = *(const Vec<uint32_t, 2> *)(o.before + to),
                                       sl = *(const Vec<uint32_t, 2> *)(o.before + to + STATE_SIZE);
#pragma unroll
                for (int e = 0; e < 2; e++)
                    along += (lower(h.v[e]) + lower(l.v[e])) * (lower(sh.v[e]) + lower(sl.v[e])) +
                             (upper(h.v[e]) + upper(l.v[e])) * (upper(sh.v[e]) + upper(sl.v[e]));
            }
        const float keep = step.from_start[TILE - 1];
        if (REVERSE) {
            along = block_sum(along, room);
            if (!threadIdx.x) kept[u.number * o.chunks + chunk] = keep * along;
        }
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int e = 0; e < 8; e++) state[t][e / 4][e % 4] *= keep;
#pragma unroll
        for (int j = 0; j < TILE; j += 16) {
            uint32_t a[4], y[4];
            Split factors;
            a_columns<Plane>(a, x, m, j);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int first = j + e / 2 * 8 + 2 * pair;
                float2 f;
                if (REVERSE)
                    f = *(const float2 *)(step.from_start + first);
                else {
                    const float2 end = *(const float2 *)(step.to_end + first),
                                 delta = *(const float2 *)(step.delta + first);
                    f = {end.x * delta.x, end.y * delta.y};
                }
                split(factors.high[e], factors.low[e], lower(a[e]) * f.x, upper(a[e]) * f.y);
            }
#pragma unroll
            for (int t = 0; t < 4; t++) {
                b_columns<Plane>(y, b, n + t * 16, j);
                multiply_add(state[t], factors, y);
            }
        }
    }
}

/* ---- host code ---- */

/* Returns the operands, and sets `end` to the scratch memory after those that both passes need. */
static Tiles tiles_of(const ScanAttr *a, Tensor *const *in, char *scratch, char **end) {
    ScanAttr tiled = *a;
    float *unused;
    Tiles o = {};
    tiled.chunk = TILE;
    (Scan<bf16> &)o = scan_of<bf16>(&tiled, in, NULL, &unused);
    o.slices = ceil_div(o.p, SLICE), o.parts = ceil_div(o.h / o.g * o.slices, EACH);
    o.before = (bf16 *)scratch;
    o.steps = (Steps *)(scratch + o.b * o.h * o.slices * o.chunks * STATE_BYTES);
    *end = (char *)(o.steps + o.b * o.h * o.chunks);
    return o;
}

static void prepare_tiles(const Call *c, const Tiles &o) {
    launch_tiles(c, tile_steps, o.b * o.chunks * ceil_div(o.h, 32), 0, o);
    launch_tiles(c, pass_tiles<false>, o.b * o.h * o.slices, 2 * (X_BYTES + B_BYTES), o, NULL, o.before,
                 NULL);
}
