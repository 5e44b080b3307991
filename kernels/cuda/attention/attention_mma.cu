/* Implements the ops of attention.cu for 16-bit storage: tensor cores multiply 16-bit values, and all other
 * computations use float. Probabilities and score gradients are rounded to the storage type before they are multiplied.
 * Scores are in units of log(2).
 *
 * Each of four warps processes 16 or 32 lines (query rows or keys) of a block. Tiles with 64 lines of the
 * other operand pass through shared memory. The forward pass and the pass for dq iterate over tiles of keys.
 * The pass for dk and dv iterates over tiles of query rows, with transposed scores. In all three passes, the
 * result of one GEMM is therefore in the registers in which the next GEMM expects its operand. A block's
 * result has at most W columns: for wider heads, several blocks share the result, and each block computes all
 * scores. */
#include "kernels/cuda/attention/mma_planes.cuh"

/* Processing of scores. PLAIN: scores are scaled; CAPPED: scaled, then capped; BIASED: scaled, then
 * biased. */
enum { PLAIN, CAPPED, BIASED };
template <int M> constexpr int OWN = 16 * M *WARPS; /* number of query rows or keys per block */

/* ---- dropout: bit 4 * n + i is set if element [n][i] of a warp's 16 x 64 scores is kept ---- */

/* The positions of a tile's keys. */
struct Run {
    int64_t first;
    /* whole: true if the positions are contiguous; blocks: true if four adjacent keys share one block of
     * random bits */
    bool whole, blocks;
};
__device__ static Run run_of(const Flash &p, int key0) {
    const int n = p.t - key0 < OTHERS ? p.t - key0 : OTHERS;
    Run x = {slice_position(&p.key, key0), slice_run(&p.key, key0, n) == n, false};
    x.blocks = x.whole && x.first % 4 == 0 && p.seq_total % 4 == 0;
    return x;
}

__device__ static uint32_t kept_of_block(const Flash &p, uint64_t index) {
    const Philox4 x = philox4x32(p.drop.seed, p.drop.site, index / 4);
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= (uint32_t)(p.drop.keeps(x.v[i])) << i;
    return bits;
}
__device__ static uint32_t is_kept_at(const Flash &p, const Run &run, uint64_t line, int key0, int key) {
    if (key0 + key >= p.t) return 0;
    if (!run.whole) return is_kept(p, line, key0 + key);
    return p.drop.keeps(philox_u32(p.drop.seed, p.drop.site, line + (uint64_t)(run.first + key)));
}

/* Returns the bits for scores [row,key]; line [16] contains each row's first dropout index. Two lanes share
 * blocks of random bits, and each lane draws every second block. */
__device__ __noinline__ static uint32_t kept_by_row(const Flash &p, const Run &run, const uint64_t *line,
                                                    int key0) {
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    uint32_t kept = 0;
    if (!run.blocks) {
#pragma unroll 1
        for (int i = 0; i < 32; i++)
            kept |= is_kept_at(p, run, line[row + i / 2 % 2 * 8], key0, i / 4 * 8 + column + i % 2) << i;
        return kept;
    }
    uint32_t own = 0; /* 4 bits for each of 4 pairs of n, in each of 2 rows */
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const int key = (i / 2 * 2 + lane % 2) * 8 + column / 4 * 4;
        own |= kept_of_block(p, line[row + i % 2 * 8] + (uint64_t)(run.first + key)) << 4 * i;
    }
    const uint32_t other = __shfl_xor_sync(0xffffffffu, own, 1), mine = lane % 2 * 2;
    const uint32_t even = (lane % 2 ? other : own) >> mine, odd = (lane % 2 ? own : other) >> mine;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int to = i / 2 * 8 + i % 2 * 2; /* the position of the bits for an even n */
        kept |= (even >> 4 * i & 3) << to | (odd >> 4 * i & 3) << (to + 4);
    }
    return kept;
}

/* Returns the bits for scores [key,row] of keys >= key0 + own; line [64] contains each row's first dropout
 * index. Four lanes share blocks of random bits. */
__device__ __noinline__ static uint32_t kept_by_key(const Flash &p, const Run &run, const uint64_t *line,
                                                    int key0, int own) {
    const int lane = threadIdx.x % 32, column = lane % 4 * 2, one = lane / 4 % 4;
    uint32_t kept = 0;
    if (!run.blocks) {
#pragma unroll 1
        for (int i = 0; i < 32; i++)
            kept |= is_kept_at(p, run, line[i / 4 * 8 + column + i % 2], key0, own + lane / 4 + i / 2 % 2 * 8)
                    << i;
        return kept;
    }
    /* bits 4 n to 4 n + 3: whether each of four keys is kept for query row 8 n + column + one % 2 */
    uint32_t drawn = 0;
#pragma unroll 1
    for (int n = 0; n < 8; n++) {
        const int key = own + one / 2 * 8 + lane / 16 * 4;
        drawn |= kept_of_block(p, line[n * 8 + column + one % 2] + (uint64_t)(run.first + key)) << 4 * n;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        kept |= (__shfl_sync(0xffffffffu, drawn, (lane & ~12) | i << 2) >> one & 0x11111111u) << i;
    return kept;
}

__device__ __forceinline__ void drop(float (&x)[OTHERS / 8][4], uint32_t kept) {
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) x[n][i] = kept >> (4 * n + i) & 1 ? x[n][i] : 0;
}

/* ---- a block of rows: for the forward pass and the pass for dq ---- */

/* A block of query rows from one kv group of one sample. Rows begin at row0, and columns of the result begin at
 * `first`. With a causal mask, a tile's work grows with its index, so the tiles with the most work start
 * first. */
struct RowBlock {
    int first, pair, row0;
    int64_t sample, group;
};
template <int W, int ROWS>
__device__ __forceinline__ RowBlock row_block(const Flash &p, int tiles, int windows) {
    const int rest = (int)blockIdx.x / windows, pair = rest / tiles;
    return {(int)blockIdx.x % windows * W, pair, (tiles - 1 - rest % tiles) * ROWS, pair / p.g, pair % p.g};
}

/* Computes range [ROWS] (the keys that each row attends to) and, with dropout, line [ROWS] (the index of each
 * row's first random number). */
template <int ROWS>
__device__ __forceinline__ void describe_rows(const Flash &p, const RowBlock &x, Range *range, Span *span,
                                              uint64_t *line) {
    const int i = threadIdx.x;
    if (p.drops && i < ROWS) line[i] = x.row0 + i < p.rows ? drop_line(p, x.sample, x.group, x.row0 + i) : 0;
    find_ranges(p, x.sample, x.row0, ROWS, range, span);
}

/* Loads all columns of a tile's keys, and `width` columns of its values, beginning at column `first`. */
template <typename T>
__device__ __forceinline__ void load_keys(const Flash &p, const RowBlock &x, int key0, uint32_t keys,
                                          uint32_t values, int first, int width) {
    load_plane<T, OTHERS>(keys, key_lines(p, p.k, x.sample, x.group, key0, OTHERS), p.k.vector, 0, p.d);
    load_plane<T, OTHERS>(values, key_lines(p, p.v, x.sample, x.group, key0, OTHERS), p.v.vector, first,
                          width);
}
template <typename T, int ROWS>
__device__ __forceinline__ void load_rows(const Flash &p, const RowBlock &x, const Heads &of, int width,
                                          uint32_t plane) {
    load_plane<T, ROWS>(plane, query_lines(p, of, x.sample, x.group, x.row0, ROWS), of.vector, 0, width);
}

/* ---- forward ---- */

/* Masks the keys outside each row's range; range [16] contains the rows' ranges. */
__device__ __forceinline__ void hide_keys(float (&score)[OTHERS / 8][4], const Range *range, int key0) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const Range x = range[lane / 4 + 8 * h];
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int key = key0 + n * 8 + lane % 4 * 2 + i;
                if (key < x.lo || key >= x.hi) score[n][2 * h + i] = -INFINITY;
            }
    }
}

/* Replaces q.k with the scaled and capped score. */
__device__ __forceinline__ void cap_scores(const Flash &p, float (&score)[OTHERS / 8][4]) {
    const float cap = (float)p.cap, in = (float)(p.scale / p.cap);
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) score[n][i] = cap * tanhf(score[n][i] * in);
}

/* ---- biases by distance, which are added to scaled scores ---- */

/* Returns the position of a key in a tile, or of the last key if the key does not exist. */
__device__ __forceinline__ int key_position(const Flash &p, const Run &run, int key0, int key) {
    key = key0 + key < p.t ? key : p.t - 1 - key0;
    return (int)(run.whole ? run.first + key : slice_position(&p.key, key0 + key));
}

/* line[h] is the index in the bias table for the key at position 0 and the h-th of this thread's two rows. */
struct BiasLines {
    int line[2];
};
__device__ __forceinline__ BiasLines bias_lines(const Flash &p, const RowBlock &x, int own) {
    BiasLines at;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = x.row0 + own + 8 * h + (int)threadIdx.x % 32 / 4;
        at.line[h] = bias_line(p, x.group, row < p.rows ? row : p.rows - 1);
    }
    return at;
}

/* Scales scores [row,key], and adds the biases. */
__device__ __forceinline__ void add_biases(const Flash &p, const BiasLines &at, int key0,
                                           float (&score)[OTHERS / 8][4]) {
    const Run run = run_of(p, key0);
    const float *bias = (const float *)p.bias, scale = (float)p.scale;
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int key = key_position(p, run, key0, n * 8 + (int)threadIdx.x % 4 * 2 + i);
#pragma unroll
            for (int h = 0; h < 2; h++)
                score[n][2 * h + i] = fmaf(score[n][2 * h + i], scale, bias[at.line[h] + key]);
        }
}

/* Scales scores [key,row] of keys >= key0, and adds the biases. line [64] contains the index of each row's
 * first bias. */
__device__ __forceinline__ void add_biases_by_key(const Flash &p, const int *line, int key0,
                                                  float (&score)[OTHERS / 8][4]) {
    const int lane = threadIdx.x % 32;
    const float *bias = (const float *)p.bias, scale = (float)p.scale;
    int key[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int at = key0 + lane / 4 + 8 * j;
        key[j] = (int)slice_position(&p.key, at < p.t ? at : p.t - 1);
    }
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[n][i] = fmaf(score[n][i], scale, bias[line[n * 8 + lane % 4 * 2 + i % 2] + key[i / 2]]);
}

/* Adds the gradients of scores [row,key] to this thread's elements of bins [buckets,2,THREADS]. Neighbouring
 * keys mostly share a bucket, so gradients are summed until the bucket changes. */
__device__ __forceinline__ void add_to_bins(const Flash &p, const BiasLines &at, int key0,
                                            const float (&ds)[OTHERS / 8][4], float *bins) {
    const Run run = run_of(p, key0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = 0;
        int last = 0;
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int key = key_position(p, run, key0, n * 8 + (int)threadIdx.x % 4 * 2 + i),
                          bucket = p.bucket[at.line[h] + key];
                if (bucket != last) {
                    bins[(last * 2 + h) * THREADS + threadIdx.x] += sum;
                    last = bucket, sum = 0;
                }
                sum += ds[n][2 * h + i];
            }
        bins[(last * 2 + h) * THREADS + threadIdx.x] += sum;
    }
}

/* Adds the bins of the four lanes that share a row, and stores the sums. */
__device__ static void store_bins(const Flash &p, const RowBlock &x, int own, const float *bins) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < 2 * p.buckets; i++) {
        const int row = x.row0 + own + 8 * (i % 2) + lane / 4;
        float sum = bins[i * THREADS + threadIdx.x];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0 && row < p.rows)
            ((float *)p.bias_sums)[((int64_t)x.pair * p.rows + row) * p.buckets + i / 2] = sum;
    }
}
static int bins_bytes(const Flash &p) {
    return p.bias_sums ? 2 * p.buckets * THREADS * (int)sizeof(float) : 0;
}

template <typename T, int W, int MODE>
static __global__ void __launch_bounds__(THREADS, 2)
    forward(const __grid_constant__ Flash p, int tiles, int windows, int stages) {
    constexpr int M = 2, ROWS = OWN<M>;
    extern __shared__ __align__(128) char memory[];
    __shared__ Range range[ROWS];
    __shared__ Span span;
    const RowBlock x = row_block<W, ROWS>(p, tiles, windows);
    const int lane = threadIdx.x % 32, own = (int)threadIdx.x / 32 * 16 * M,
              width = p.e - x.first < W ? p.e - x.first : W;
    const uint32_t q_plane = shared_address(memory), others = q_plane + plane_bytes(ROWS, p.d),
                   k_bytes = plane_bytes(OTHERS, p.d), stage_bytes = k_bytes + plane_bytes(OTHERS, W);
    uint64_t *line = (uint64_t *)(memory + plane_bytes(ROWS, p.d) + stages * stage_bytes);
    const auto load = [&](int key0, int stage) {
        const uint32_t to = others + stage * stage_bytes;
        load_keys<T>(p, x, key0, to, to + k_bytes, x.first, width);
    };
    describe_rows<ROWS>(p, x, range, &span, line);
    load_rows<T, ROWS>(p, x, p.q, p.d, q_plane);
    BiasLines bias[M];
    if constexpr (MODE == BIASED)
        for (int m = 0; m < M; m++) bias[m] = bias_lines(p, x, own + 16 * m);

    float y[M][W / 8][4] = {}, top[M][2], sum[M][2] = {}, shrink[2];
    for (int m = 0; m < M; m++) top[m][0] = top[m][1] = -INFINITY;
    const int begin = span.begin / OTHERS * OTHERS, ahead = stages - 1;
    for (int key0 = begin - ahead * OTHERS, stage = 0; key0 < span.end; key0 += OTHERS, stage ^= ahead) {
        const int coming = key0 + ahead * OTHERS;
        if (!turn(key0 >= begin, coming < span.end, ahead, [&] { load(coming, stage); })) continue;
        const uint32_t k_plane = others + (stage ^ ahead) * stage_bytes;
        const bool hidden = key0 < span.all_begin || key0 + OTHERS > span.all_end;
        uint32_t kept[M];
        if (p.drops)
            for (int m = 0; m < M; m++) kept[m] = kept_by_row(p, run_of(p, key0), line + own + 16 * m, key0);
        float score[M][OTHERS / 8][4];
        tile_gemm<T, M, ROWS>(score, q_plane, own, k_plane, p.d);
#pragma unroll
        for (int m = 0; m < M; m++) {
            if constexpr (MODE == CAPPED) cap_scores(p, score[m]);
            if constexpr (MODE == BIASED) add_biases(p, bias[m], key0, score[m]);
            if (hidden) hide_keys(score[m], range + own + 16 * m, key0);
            softmax_tile(score[m], p.unit, top[m], sum[m], shrink);
#pragma unroll
            for (int n = 0; n < W / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) y[m][n][i] *= shrink[i / 2];
            if (p.drops) drop(score[m], kept[m]);
        }
        add_lines<T, M, W>(y, score, k_plane + k_bytes);
    }
    /* waits for the copies of the rows, for which the loop has not waited if the rows attend to no key */
    all_arrived();
    float *room = (float *)memory + threadIdx.x / 32 * ROOM<W>;
    const Lines to = query_lines(p, p.y, x.sample, x.group, x.row0, ROWS);
#pragma unroll
    for (int m = 0; m < M; m++) {
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float all = sum[m][h];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            factor[h] = all == 0 ? 0 : (float)p.drop.scale / all;
            const int l = own + 16 * m + 8 * h + lane / 4;
            if (x.first == 0 && lane % 4 == 0 && l < to.n)
                p.lse.put((int64_t)x.pair * p.rows + x.row0 + l,
                          all == 0 ? -INFINITY : (top[m][h] + log2f(all)) / (float)LOG2_E);
        }
        store<W>(to, false, x.first, p.e, own + 16 * m, y[m], factor, room);
    }
}

/* ---- backward ---- */

/* Replaces each score with its probability, and dp with the gradient of the score without the factor `scale`. A masked
 * score is -inf. */
template <int MODE>
__device__ __forceinline__ void gradient_of_score(const Flash &p, RowSums<float> of, float &prob, float &dp) {
    const float t = MODE == CAPPED && prob != -INFINITY ? prob / (float)p.cap : 0;
    prob = exp_2(fmaf(prob, p.unit, -of.base));
    dp = prob * (dp - of.delta);
    if constexpr (MODE == CAPPED) dp *= 1 - t * t;
}
__device__ __forceinline__ void scale_by(float (&x)[OTHERS / 8][4], float factor) {
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) x[n][i] *= factor;
}

template <typename T, int W, int MODE>
static __global__ void __launch_bounds__(THREADS, 2)
    backward_rows(const __grid_constant__ Flash p, int windows, int stages) {
    constexpr int ROWS = OWN<1>;
    extern __shared__ __align__(128) char memory[];
    __shared__ Range range[ROWS];
    __shared__ Span span;
    const RowBlock x = row_block<W, ROWS>(p, p.tiles, windows);
    const int lane = threadIdx.x % 32, own = (int)threadIdx.x / 32 * 16;
    const int d_columns = windows * W, k_bytes = plane_bytes(OTHERS, d_columns),
              stage_bytes = k_bytes + plane_bytes(OTHERS, p.e);
    const uint32_t q_plane = shared_address(memory), dy_plane = q_plane + plane_bytes(ROWS, p.d),
                   others = dy_plane + plane_bytes(ROWS, p.e);
    uint64_t *line = (uint64_t *)(memory + (others - q_plane) + stages * stage_bytes);
    const auto load = [&](int key0, int stage) {
        const uint32_t to = others + stage * stage_bytes;
        load_keys<T>(p, x, key0, to, to + k_bytes, 0, p.e);
    };
    describe_rows<ROWS>(p, x, range, &span, line);
    load_rows<T, ROWS>(p, x, p.q, p.d, q_plane);
    load_rows<T, ROWS>(p, x, p.dy, p.e, dy_plane);
    BiasLines bias;
    if constexpr (MODE == BIASED) bias = bias_lines(p, x, own);
    float *bins = (float *)(line + (p.drops ? ROWS : 0));
    const bool sums_biases = MODE == BIASED && p.bias_sums && x.first == 0;
    for (int i = 0; sums_biases && i < 2 * p.buckets; i++) bins[i * THREADS + threadIdx.x] = 0;

    float dq[1][W / 8][4] = {};
    RowSums<float> sums[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = x.row0 + own + 8 * h + lane / 4;
        sums[h] = row < p.rows ? ((const RowSums<float> *)p.sums)[(int64_t)x.pair * p.rows + row]
                               : RowSums<float>{0, 0};
    }
    const int begin = span.begin / OTHERS * OTHERS, ahead = stages - 1;
    for (int key0 = begin - ahead * OTHERS, stage = 0; key0 < span.end; key0 += OTHERS, stage ^= ahead) {
        const int coming = key0 + ahead * OTHERS;
        if (!turn(key0 >= begin, coming < span.end, ahead, [&] { load(coming, stage); })) continue;
        const uint32_t k_plane = others + (stage ^ ahead) * stage_bytes;
        const bool hidden = key0 < span.all_begin || key0 + OTHERS > span.all_end;
        const uint32_t kept = p.drops ? kept_by_row(p, run_of(p, key0), line + own, key0) : 0;
        float prob[1][OTHERS / 8][4], ds[1][OTHERS / 8][4];
        tile_gemm<T, 1, ROWS>(prob, q_plane, own, k_plane, p.d);
        if constexpr (MODE == CAPPED) cap_scores(p, prob[0]);
        if constexpr (MODE == BIASED) add_biases(p, bias, key0, prob[0]);
        if (hidden) hide_keys(prob[0], range + own, key0);
        tile_gemm<T, 1, ROWS>(ds, dy_plane, own, k_plane + k_bytes, p.e);
        if (p.drops) {
            drop(ds[0], kept);
            scale_by(ds[0], (float)p.drop.scale);
        }
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) gradient_of_score<MODE>(p, sums[i / 2], prob[0][n][i], ds[0][n][i]);
        if (sums_biases) add_to_bins(p, bias, key0, ds[0], bins);
        add_lines<T, 1, W>(dq, ds, k_plane + x.first / 64 * OTHERS * ROW_BYTES);
    }
    all_arrived();
    if (sums_biases) store_bins(p, x, own, bins);
    if (!p.dq.cells.data) return;
    __syncthreads();
    const float scale[2] = {(float)p.scale, (float)p.scale};
    store<W>(query_lines(p, p.dq, x.sample, x.group, x.row0, ROWS), p.dq.add, x.first, p.d, own, dq[0], scale,
             (float *)memory + threadIdx.x / 32 * ROOM<W>);
}

/* Iterates, in order, over the tiles of query rows that attend to at least one key of a tile of keys. All
 * threads of a warp must call take(). */
struct Seen {
    const Span *span;
    int tiles, key0, next; /* the next tile to examine */
    uint32_t mask;         /* bit i: tile next - 32 + i is still to be returned */

    __device__ __forceinline__ int take() { /* returns the next tile, or `tiles` if none is left */
        while (!mask) {
            if (next >= tiles) return tiles;
            const int at = next + (int)threadIdx.x % 32;
            const bool sees = at < tiles && span[at].begin < key0 + OTHERS && span[at].end > key0;
            mask = __ballot_sync(0xffffffffu, sees);
            next += 32;
        }
        const int at = __ffs((int)mask) - 1;
        mask &= mask - 1;
        return next - 32 + at;
    }
};

/* The data of a tile of query rows, except the data in planes. */
struct RowTile {
    Range range[OTHERS];
    RowSums<float> sums[OTHERS];
    uint64_t line[OTHERS];
    int bias[OTHERS];
};

/* Masks the scores [key, row] of a tile whose first key is key0. */
__device__ __forceinline__ void hide_rows(float (&score)[OTHERS / 8][4], const Range *range, int key0) {
    const int lane = threadIdx.x % 32, key = key0 + lane / 4;
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Range x = range[n * 8 + lane % 4 * 2 + i % 2];
            if (key + i / 2 * 8 < x.lo || key + i / 2 * 8 >= x.hi) score[n][i] = -INFINITY;
        }
}

/* Processes one warp's 16 keys in a tile of keys, with one tile of query rows. The scores are [key,row]. */
template <typename T, int W, int MODE, typename Tile>
__device__ __forceinline__ void backward_tile(const Flash &p, const Tile &rows, bool hidden, int key0,
                                              int own, uint32_t kept, const uint32_t (&plane)[4], int first,
                                              float (&dk)[1][W / 8][4], float (&dv)[1][W / 8][4]) {
    const int lane = threadIdx.x % 32;
    float prob[1][OTHERS / 8][4], ds[1][OTHERS / 8][4];
    tile_gemm<T, 1, OTHERS>(prob, plane[0], own, plane[2], p.d);
    tile_gemm<T, 1, OTHERS>(ds, plane[1], own, plane[3], p.e);
    if (p.drops) {
        drop(ds[0], kept);
        scale_by(ds[0], (float)p.drop.scale);
    }
    if constexpr (MODE == CAPPED) cap_scores(p, prob[0]);
    if constexpr (MODE == BIASED) add_biases_by_key(p, rows.bias, key0 + own, prob[0]);
    if (hidden) hide_rows(prob[0], rows.range, key0 + own);
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const RowSums<float> of = rows.sums[n * 8 + lane % 4 * 2 + j];
#pragma unroll
            for (int i = j; i < 4; i += 2) gradient_of_score<MODE>(p, of, prob[0][n][i], ds[0][n][i]);
        }
    if (p.drops) drop(prob[0], kept); /* dv is multiplied by the dropout scale at the end */
    if (first < p.e) add_lines<T, 1, W>(dv, prob, plane[3] + first / 64 * OTHERS * ROW_BYTES);
    if (first < p.d) add_lines<T, 1, W>(dk, ds, plane[2] + first / 64 * OTHERS * ROW_BYTES);
}

template <typename T, int W, int MODE>
static __global__ void __launch_bounds__(THREADS, 2)
    backward_keys(const __grid_constant__ Flash p, int tiles, int windows, int stages) {
    extern __shared__ __align__(128) char memory[];
    __shared__ RowTile rows[2];
    const int own = (int)threadIdx.x / 32 * 16, first = (int)blockIdx.x % windows * W,
              rest = (int)blockIdx.x / windows, pair = rest / tiles, key0 = rest % tiles * OTHERS;
    const int64_t sample = pair / p.g, group = pair % p.g;
    const int q_bytes = plane_bytes(OTHERS, windows * W), stage_bytes = 2 * q_bytes;
    const uint32_t k_plane = shared_address(memory), v_plane = k_plane + plane_bytes(OTHERS, p.d),
                   others = v_plane + plane_bytes(OTHERS, p.e);
    const auto load = [&](int tile, int stage) {
        const uint32_t to = others + stage * stage_bytes;
        const int row0 = tile * OTHERS, i = threadIdx.x, row = row0 + i;
        load_plane<T, OTHERS>(to, query_lines(p, p.q, sample, group, row0, OTHERS), p.q.vector, 0, p.d);
        load_plane<T, OTHERS>(to + q_bytes, query_lines(p, p.dy, sample, group, row0, OTHERS), p.dy.vector, 0,
                              p.e);
        if (i >= OTHERS) return;
        const bool there = row < p.rows;
        const int64_t at = there ? row : 0;
        copy_async<8>(shared_address(&rows[stage].range[i]), p.range + sample * p.rows + at, there);
        copy_async<8>(shared_address(&rows[stage].sums[i]),
                      (RowSums<float> *)p.sums + (int64_t)pair * p.rows + at, there);
        if (p.drops) rows[stage].line[i] = there ? drop_line(p, sample, group, row) : 0;
        if constexpr (MODE == BIASED) rows[stage].bias[i] = there ? bias_line(p, group, row) : 0;
    };
    load_plane<T, OTHERS>(k_plane, key_lines(p, p.k, sample, group, key0, OTHERS), p.k.vector, 0, p.d);
    load_plane<T, OTHERS>(v_plane, key_lines(p, p.v, sample, group, key0, OTHERS), p.v.vector, 0, p.e);

    float dk[1][W / 8][4] = {}, dv[1][W / 8][4] = {};
    Seen seen = {p.span + sample * p.tiles, p.tiles, key0, 0, 0};
    const int ahead = stages - 1;
    for (int stage = 0, tile = ahead ? -1 : seen.take(), next; tile < p.tiles; stage ^= ahead, tile = next) {
        next = seen.take();
        const int coming = ahead ? next : tile;
        if (!turn(tile >= 0, coming < p.tiles, ahead, [&] { load(coming, stage); })) continue;
        const Span span = p.span[sample * p.tiles + tile];
        const bool hidden = key0 < span.all_begin || key0 + OTHERS > span.all_end;
        const RowTile &of = rows[stage ^ ahead];
        const uint32_t q_plane = others + (stage ^ ahead) * stage_bytes,
                       plane[4] = {k_plane, v_plane, q_plane, q_plane + q_bytes};
        const uint32_t kept = p.drops ? kept_by_key(p, run_of(p, key0), of.line, key0, own) : 0;
        backward_tile<T, W, MODE>(p, of, hidden, key0, own, kept, plane, first, dk, dv);
    }
    all_arrived();
    const float scale[2] = {(float)p.scale, (float)p.scale},
                kept[2] = {(float)p.drop.scale, (float)p.drop.scale};
    float *room = (float *)memory + threadIdx.x / 32 * ROOM<W>;
    if (p.dk.cells.data)
        store<W>(key_lines(p, p.dk, sample, group, key0, OTHERS), p.dk.add, first, p.d, own, dk[0], scale,
                 room);
    if (p.dv.cells.data)
        store<W>(key_lines(p, p.dv, sample, group, key0, OTHERS), p.dv.add, first, p.e, own, dv[0], kept,
                 room);
}

/* ---- launches ---- */

/* The number of stages, and the size of shared memory. There are two stages if two blocks with two stages fit
 * on a multiprocessor, otherwise one. */
struct Memory {
    int stages, bytes;
};
static Memory memory_of(const Call *c, const void *kernel, int fixed, int stage) {
    /* used: number of bytes that are reserved, or used by the kernel's static variables */
    const int device = cuda_of(c->device)->ordinal, used = 4096;
    int block, all;
    CUDA_CHECK(cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    CUDA_CHECK(cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    const Memory two = {2, fixed + 2 * stage}, one = {1, fixed + stage};
    const bool fits = 2 * (two.bytes + used) <= all && two.bytes + used <= block;
    const Memory m = fits ? two : one;
    CHECK(m.bytes + used <= block,
          "attention: heads of this size need %d bytes of shared memory, but this GPU has %d", m.bytes,
          block);
    /* Every call sets the same value, because ranks that run as threads share the attribute. */
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, block - used));
    return m;
}
/* Returns how many bytes of shared memory a block needs in addition to one stage. The results reuse the
 * planes' memory. */
template <int W> static int at_least_room(int bytes, int stage) {
    const int room = WARPS * ROOM<W> * (int)sizeof(float) - stage;
    return bytes > room ? bytes : room;
}

template <typename T, int W, int MODE> static void run_forward(const Call *c, const Flash &p) {
    const int tiles = (int)ceil_div(p.rows, OWN<2>), windows = (int)ceil_div(p.e, W);
    const int stage = plane_bytes(OTHERS, p.d) + plane_bytes(OTHERS, W),
              fixed = at_least_room<W>(plane_bytes(OWN<2>, p.d) + (p.drops ? OWN<2> * 8 : 0), stage);
    const Memory m = memory_of(c, (const void *)forward<T, W, MODE>, fixed, stage);
    forward<T, W, MODE><<<blocks_of(p, (int64_t)tiles * windows), THREADS, m.bytes, stream_of(c)>>>(
        p, tiles, windows, m.stages);
    LAUNCHED();
}

template <typename T, int W, int MODE> static void run_backward(const Call *c, const Flash &p) {
    const int of_d = (int)ceil_div(p.d, W), of_e = (int)ceil_div(p.e, W), of_both = of_d > of_e ? of_d : of_e;
    if ((p.dq.cells.data || p.bias_sums) && p.rows) {
        const int stage = plane_bytes(OTHERS, of_d * W) + plane_bytes(OTHERS, p.e),
                  own = plane_bytes(OWN<1>, p.d) + plane_bytes(OWN<1>, p.e) + (p.drops ? OWN<1> * 8 : 0) +
                        bins_bytes(p);
        const Memory m =
            memory_of(c, (const void *)backward_rows<T, W, MODE>, at_least_room<W>(own, stage), stage);
        backward_rows<T, W, MODE>
            <<<blocks_of(p, (int64_t)p.tiles * of_d), THREADS, m.bytes, stream_of(c)>>>(p, of_d, m.stages);
        LAUNCHED();
    }
    if ((p.dk.cells.data || p.dv.cells.data) && p.t) {
        const int tiles = (int)ceil_div(p.t, OTHERS), stage = 2 * plane_bytes(OTHERS, of_both * W),
                  own = plane_bytes(OTHERS, p.d) + plane_bytes(OTHERS, p.e);
        const Memory m =
            memory_of(c, (const void *)backward_keys<T, W, MODE>, at_least_room<W>(own, stage), stage);
        backward_keys<T, W, MODE><<<blocks_of(p, (int64_t)tiles * of_both), THREADS, m.bytes, stream_of(c)>>>(
            p, tiles, of_both, m.stages);
        LAUNCHED();
    }
}

template <typename T, int MODE> static void forward_of(const Call *c, const Flash &p) {
    if (p.e <= 64)
        run_forward<T, 64, MODE>(c, p);
    else
        run_forward<T, 128, MODE>(c, p);
}
template <typename T, int MODE> static void backward_of(const Call *c, const Flash &p) {
    if (p.d <= 64 && p.e <= 64)
        run_backward<T, 64, MODE>(c, p);
    else
        run_backward<T, 128, MODE>(c, p);
}

/* Converts the scale to units of log(2). The scale must not be negative, so that a score of -inf remains -inf.
 * With a cap or a bias, the scores already include the scale. */
static Flash in_units(const Flash &p) {
    CHECK(p.scale >= 0, "attention: the scale %g is negative, which 16-bit storage does not support",
          p.scale);
    Flash x = p;
    x.unit = p.cap == 0 && !p.biased ? fmaxf((float)(p.scale * LOG2_E), 1e-37f) : (float)LOG2_E;
    return x;
}

template <typename T> static void forward_of(const Call *c, const Flash &p) {
    if (p.biased)
        forward_of<T, BIASED>(c, p);
    else if (p.cap == 0)
        forward_of<T, PLAIN>(c, p);
    else
        forward_of<T, CAPPED>(c, p);
}
template <typename T> static void backward_of(const Call *c, const Flash &p) {
    if (p.biased)
        backward_of<T, BIASED>(c, p);
    else if (p.cap == 0)
        backward_of<T, PLAIN>(c, p);
    else
        backward_of<T, CAPPED>(c, p);
}

void attention_mma(const Call *c, const Flash *p) {
    if (c->in[0]->dtype == BF16)
        forward_of<bf16>(c, in_units(*p));
    else
        forward_of<fp16>(c, in_units(*p));
}

void attention_grad_mma(const Call *c, const Flash *p) {
    if (c->in[1]->dtype == BF16)
        backward_of<bf16>(c, in_units(*p));
    else
        backward_of<fp16>(c, in_units(*p));
}
