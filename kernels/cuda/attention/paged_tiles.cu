/* paged_attention for 16-bit storage on sm_90a: up to 64 queries (of tokens and heads that share keys) are
 * the rows of one matrix product on the tensor cores. One warp copies tiles of TILE keys and values from
 * pages to shared memory, and groups of four warps multiply them. Each split of SPLIT keys has a separate
 * softmax, and splits are always merged in order, so that a row's result depends on neither other rows nor
 * the number of blocks. If one block computes all splits, the same block also merges the splits. If each split
 * has a separate block, the last of these blocks to finish merges the splits; for tiles of many tokens, a
 * second kernel merges them. Keys and values that were stored in earlier passes are copied without waiting for
 * the previous kernel to end. If every token is a tile, a block can also rotate its queries, and rotate and
 * store its new key. Scores are in units of log(2). */
#include "kernels/cuda/attention/paged.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/rope.cuh"

enum { TILE = LINE, ROWS = 64, MOST_STAGES = 4, TILE_BYTES = TILE * LINE_BYTES /* of 64 columns */ };
constexpr double LOG2E = 1.4426950408889634;

/* A block's rows belong to tokens [first, first + n) of one request, and to heads of one group. */
struct Tiles {
    const int64_t *tile;    /* [tiles]: first token of each tile; NULL if a tile is one token */
    int tiles, each, parts; /* number of tiles, of tokens per group of warps, and of blocks per tile */
    int stages;             /* number of stages in the ring of keys */
    unsigned *arrived;      /* Cuda.arrived */
    /* score = product * unit, or cap * tanh(product * in / (2 log2(e))) * unit */
    float unit, in, cap;
};

/* Computes the factors by which the old result and a new result are multiplied when they are merged. `max` is
 * the new result's largest score. */
struct MergeTiles {
    float old, fresh;
    __device__ __forceinline__ MergeTiles(float *most, float *all, float max, float sum) {
        const float m = fmaxf(*most, max), base = m == -INFINITY ? 0 : m;
        old = exp_2(*most - base), fresh = exp_2(max - base);
        *most = m, *all = fmaf(*all, old, __fmul_rn(sum, fresh));
    }
    __device__ __forceinline__ float of(float y, float more) const {
        return fmaf(y, old, __fmul_rn(more, fresh));
    }
};

/* The results of the splits for each row of y: the weighted sum of values [e], the largest score, and the sum
 * of the weights. */
struct Parts {
    float *y;
    float2 *top;
    __device__ __forceinline__ Parts(const Paged &p, float *part)
        : y(part), top((float2 *)(part + p.tokens * p.g * p.r * p.splits * p.e)) {}
};

/* Returns the factor that normalizes a softmax, or 0 if the softmax has no key. */
__device__ __forceinline__ float inverse(float sum) { return sum == 0 ? 0 : 1 / sum; }

/* Merges the splits of one token and head with one warp, and stores the result. The function's code must be
 * short, because it is rarely in the instruction cache. Splits are therefore copied to `room` in shared memory,
 * not to registers. */
enum { MERGED = 16 /* splits */ };
typedef float4 MergeRoom[MERGED][32];
template <typename T>
__device__ __forceinline__ void merge_line(const Paged &p, const Parts &parts, const Range &keys,
                                           int64_t token, int64_t head, MergeRoom &room, T *y, float *lse) {
    const int lane = threadIdx.x % 32, c = 4 * lane, end = (int)((keys.hi + SPLIT - 1) / SPLIT);
    const int64_t line = token * p.g * p.r + head, first = line * p.splits;
    float most = -INFINITY, all = 0;
    float4 result = make_float4(0, 0, 0, 0);
    for (int split = (int)(keys.lo / SPLIT); split < end; split += MERGED) {
        const int n = min((int)MERGED, end - split);
#pragma unroll 1
        for (int i = 0; i < n; i++)
            copy_async<16>(shared_address(&room[i][lane]),
                           parts.y + (first + split + i) * p.e + (c < p.e ? c : 0), c < p.e);
        const float2 top = lane < n ? __ldcg(parts.top + first + split + lane) : make_float2(-INFINITY, 0);
        copies_arrived();
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const float4 x = room[i][lane];
            const MergeTiles merge(&most, &all, __shfl_sync(0xffffffffu, top.x, i),
                                   __shfl_sync(0xffffffffu, top.y, i));
            result.x = merge.of(result.x, x.x), result.y = merge.of(result.y, x.y);
            result.z = merge.of(result.z, x.z), result.w = merge.of(result.w, x.w);
        }
    }
    const float part = inverse(all);
    if (c < p.e)
        *(uint2 *)(y + line * p.e + c) =
            make_uint2(pack<T>(result.x * part, result.y * part), pack<T>(result.z * part, result.w * part));
    if (c == 0) lse[head * p.tokens + token] = all == 0 ? -INFINITY : (most + log2f(all)) / (float)LOG2E;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Synchronizes the warps that multiply. */
template <int GROUPS> __device__ __forceinline__ void groups_wait() {
    asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * GROUP_THREADS) : "memory");
}
/* Makes this thread's stores visible to the tensor cores. */
__device__ __forceinline__ void publish_stores() { asm volatile("fence.proxy.async;" ::: "memory"); }

/* Stores 8 elements in a tile, as unit `unit` of a row. */
template <typename T>
__device__ __forceinline__ void put_unit(uint32_t tile, int row, int unit, const Run<T, 8> &x) {
    put_shared(tile + unit / 8 * TILE_BYTES + row * LINE_BYTES + ((unit ^ row) & 7) * 16,
               {x.word(0), x.word(1), x.word(2), x.word(3)});
}

/* Loads the query rows of this group of warps. Elements after the last row and column are set to 0. */
template <typename T, int BOXES>
__device__ __forceinline__ void load_queries(const Paged &p, const T *q, int tokens, uint32_t to) {
    for (int i = threadIdx.x % GROUP_THREADS; i < ROWS * BOXES * 8; i += GROUP_THREADS) {
        const int row = i / (BOXES * 8), unit = i % (BOXES * 8), token = row / (int)p.r,
                  head = row % (int)p.r;
        Run<T, 8> x;
        x.clear();
        if (token < tokens && unit * 8 < p.d)
            x = ((const Run<T, 8> *)(q + token * p.q_token + head * p.q_head))[unit];
        put_unit(to, row, unit, x);
    }
}

/* Stores zeros in rows [from, TILE) of a tile. */
template <int GROUPS, int BOXES> __device__ __forceinline__ void clear_rows(uint32_t to, int from) {
    for (int i = from * BOXES * 8 + threadIdx.x; i < TILE * BOXES * 8; i += GROUPS * GROUP_THREADS)
        put_shared(to + i % BOXES * TILE_BYTES + i / BOXES * 16, {0, 0, 0, 0});
}

/* ---- new rows ---- */

/* A new key and a new value. */
template <typename T> using NewUnits = Run<T, 8>[2][2 * LINE / 8];

/* Loads the heads x of a token at position `at`, rotates the queries and stores them in tile q. If `stores` is
 * true, also rotates the key, and stores key and value in `units` and in the pools. A thread rotates one run of
 * pairs in several heads. Tile rows without a query may contain any values, because hide_keys hides all keys
 * from these rows. */
template <typename T, int BOXES>
__device__ __forceinline__ void rotate_rows(const Paged &p, const NewRows &o, int64_t token, int64_t at,
                                            const T *x, uint32_t q, bool stores, NewUnits<T> &units) {
    typedef Run<T, 8> Unit;
    const int runs = o.pairs / 8, all = (int)p.d / 8, each = all - runs, run = threadIdx.x % each,
              together = GROUP_THREADS / each;
    const int64_t row = stores ? o.row[token] : 0;
    const bool there = at >= 0 && at < o.positions, turns = run < runs;
    const int64_t angles = there ? at * o.pairs : 0;
    Run<float, 8> cos, sin;
    if (turns)
        cos = ((const Run<float, 8> *)(o.cos + angles))[run],
        sin = ((const Run<float, 8> *)(o.sin + angles))[run];
    Unit *const key = (Unit *)((T *)o.pool[0] + row * p.k_row + blockIdx.y * p.k_group);
    Unit *const value = (Unit *)((T *)o.pool[1] + row * p.v_row + blockIdx.y * p.v_group);
    /* a run that is not rotated consists of one unit, `low` */
    const int rotated = o.interleaved ? 2 * run : run, low = turns ? rotated : run + runs,
              high = o.interleaved ? low + 1 : low + runs;
    wait_for_kernel_before();
    if (!there && threadIdx.x == 0) raise_assert(o.failure, o.message, at, o.positions);
    for (int head = threadIdx.x / each; head < p.r + stores && (int)threadIdx.x < together * each;
         head += together) {
        const Unit *from = (const Unit *)(x + head * p.q_head);
        Turned<T> pairs = {from[low], from[turns ? high : low]};
        if (turns) {
            float v[16];
            turn_pairs(pairs, o.interleaved, cos, sin, v);
            pairs.low.fill(v), pairs.high.fill(v + 8);
        }
        for (int i = 0; i < 1 + turns; i++) {
            const int unit = i ? high : low;
            const Unit &y = i ? pairs.high : pairs.low;
            if (head < p.r)
                put_unit(q, head, unit, y);
            else
                units[0][unit] = key[unit] = y;
        }
    }
    if (stores && (int)threadIdx.x < all)
        units[1][threadIdx.x] = value[threadIdx.x] = ((const Unit *)(x + (p.r + 1) * p.q_head))[threadIdx.x];
    Unit zero;
    zero.clear();
    for (int unit = all; unit < BOXES * 8 && (int)threadIdx.x < p.r; unit++)
        put_unit(q, threadIdx.x, unit, zero);
}

/* Stores a new key and a new value in row `row` of a stage's tiles. */
template <typename T, int BOXES>
__device__ __forceinline__ void put_new_row(uint32_t keys, int row, const NewUnits<T> &units, int n) {
    const int which = threadIdx.x / 64, unit = threadIdx.x % 64;
    if (unit < n) put_unit(keys + which * BOXES * TILE_BYTES, row, unit, units[which][unit]);
}

/* ---- attention ---- */

/* Sets scores to -inf for keys that a row does not attend to. */
__device__ __forceinline__ void hide_keys(float (&score)[TILE / 8][4], int key, const int (&lo)[2],
                                          const int (&hi)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (key >= lo[h] && key + TILE <= hi[h]) continue;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int at = key + n * 8 + (int)threadIdx.x % 4 * 2 + i;
                if (at < lo[h] || at >= hi[h]) score[n][2 * h + i] = -INFINITY;
            }
    }
}

/* Each stage has two barriers: one signals that the stage is full, the other that it is empty. */
struct KeyRing {
    int stages, stage;
    uint32_t phase, room, barriers;
    __device__ __forceinline__ void next() {
        if (++stage == stages) stage = 0, phase ^= 1;
    }
    /* Returns the address of the current stage's tile of keys. The tile of values follows the tile of
     * keys. */
    template <int BOXES> __device__ __forceinline__ uint32_t tile() const {
        return room + stage * 2 * BOXES * TILE_BYTES;
    }
    __device__ __forceinline__ uint32_t full() const { return barriers + 8 * stage; }
    __device__ __forceinline__ uint32_t empty() const { return barriers + 8 * (MOST_STAGES + stage); }
};

/* The tokens, splits and keys that a block processes. */
struct Work {
    int first, last; /* tokens */
    int begin, end;  /* splits */
    int from, to;    /* keys [from, to); `from` is a multiple of TILE */
    int hi;          /* end of the keys that at least one row attends to */
    int old;         /* end of the keys that earlier passes stored */
    bool adds;       /* true if the block itself stores row hi - 1 */
};

/* One thread copies the tiles of keys and values. */
template <int BOXES>
__device__ __forceinline__ void copy_keys(const Paged &p, const Work &w, const CUtensorMap *k,
                                          const CUtensorMap *v, KeyRing at) {
    const int64_t *pages = p.table + p.request[w.first] * p.width;
    const int page = (int)p.attr.page;
    for (int key = w.from; key < w.to; key += TILE, at.next()) {
        const uint32_t to = at.tile<BOXES>();
        const int row = (int)pages[key / page] * page + key % page;
        if (!w.adds && key + TILE > w.old) wait_for_kernel_before();
        barrier_wait(at.empty(), at.phase ^ 1);
        barrier_expect(at.full(), 2 * BOXES * TILE_BYTES);
#pragma unroll
        for (int i = 0; i < 2 * BOXES; i++)
            copy_tile(to + i * TILE_BYTES, i < BOXES ? k : v, at.full(), i % BOXES * LINE, blockIdx.y, row);
    }
}

/* An unnormalized softmax over some keys: the weighted sum of values, the largest score, and the sum of the
 * weights. */
template <int N8> struct Softmax {
    float y[N8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

typedef float Scores[TILE / 8][4];

/* Completes the tile that contains the last key: later values in the tile become zeros, because they may be
 * NaN. */
template <typename T, int GROUPS, int BOXES>
__device__ __forceinline__ void end_tile(const Paged &p, const Work &w, const NewUnits<T> &units,
                                         uint32_t keys, int rows) {
    if (w.adds) put_new_row<T, BOXES>(keys, rows - 1, units, (int)p.d / 8);
    clear_rows<GROUPS, BOXES>(keys + BOXES * TILE_BYTES, rows);
    publish_stores();
    groups_wait<GROUPS>();
}

/* Starts multiplying the queries by a tile of keys. */
template <typename T, int GROUPS, int BOXES>
__device__ __forceinline__ void begin_scores(const Paged &p, const Work &w, const NewUnits<T> &units,
                                             Scores &score, uint64_t queries, const KeyRing &at, int key) {
    const uint64_t keys = tile_descriptor<true>(uniform(at.tile<BOXES>()));
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) score[n][i] = 0;
    barrier_wait(at.full(), at.phase);
    if (key + TILE >= w.hi) end_tile<T, GROUPS, BOXES>(p, w, units, uniform(at.tile<BOXES>()), w.hi - key);
    Product<T, TILE / 8>::fence(score);
#pragma unroll
    for (int i = 0; i < BOXES * TILE_BYTES; i += TILE_BYTES)
#pragma unroll
        for (int c = 0; c < LINE_BYTES; c += 32)
            Product<T, TILE / 8>::run(score, queries + (i + c) / 16, keys + (i + c) / 16);
    products_begun();
}

/* Uses tanh(x) = 1 - 2 / (exp(2 x) + 1), which needs much less code than tanhf. The absolute error, a few ulp
 * of cap, is smaller than the rounding error of a probability. */
__device__ __forceinline__ float capped(const Tiles &t, float product) {
    return t.cap - __fdividef(2 * t.cap, exp_2(product * t.in) + 1);
}

/* Converts a tile's products to unnormalized probabilities. This thread's rows attend to keys [lo, hi).
 * `shrink` becomes the factor by which the sums of values so far must be multiplied. */
template <typename T, int N8>
__device__ __forceinline__ void soften(const Tiles &t, Softmax<N8> &x, Scores &score, int key,
                                       const int (&lo)[2], const int (&hi)[2], float (&shrink)[2],
                                       uint32_t (&prob)[TILE / 16][4]) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4 && t.cap != 0; i++) score[n][i] = capped(t, score[n][i]);
    hide_keys(score, key, lo, hi);
    softmax_tile(score, t.unit, x.top, x.sum, shrink);
#pragma unroll
    for (int j = 0; j < TILE / 16; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            prob[j][i] = pack<T>(score[2 * j + i / 2][i % 2 * 2], score[2 * j + i / 2][i % 2 * 2 + 1]);
}

/* Starts multiplying a tile's probabilities by the tile's values. FIRST: true if the sums so far are zero. */
template <typename T, int BOXES, bool FIRST>
__device__ __forceinline__ void begin_values(Softmax<BOXES * 8> &x, const KeyRing &at,
                                             const float (&shrink)[2], uint32_t (&prob)[TILE / 16][4]) {
    const uint32_t from = uniform(at.tile<BOXES>() + BOXES * TILE_BYTES);
    const uint64_t values = tile_descriptor<false>(from, TILE_BYTES);
#pragma unroll
    for (int n = 0; n < BOXES * 8 && !FIRST; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) x.y[n][i] *= shrink[i / 2];
    Product<T, BOXES * 8>::fence(x.y);
#pragma unroll
    for (int j = 0; j < TILE / 16; j++) product_of_registers<T>(x.y, prob[j], values + j * LINE_BYTES);
    products_begun();
}

/* Waits for the sums of values, and frees the stage. */
template <typename T, int N8> __device__ __forceinline__ void end_values(Softmax<N8> &x, KeyRing &at) {
    Product<T, N8>::template wait<0>(x.y);
    if (threadIdx.x % 32 == 0) barrier_arrive(at.empty());
    at.next();
}

/* Computes the softmax over keys [from, to) of a split, that is, one or two tiles. The softmax of one tile
 * overlaps with the matrix products of the other tile. */
template <typename T, int GROUPS, int BOXES>
__device__ __forceinline__ void attend_split(const Paged &p, const Tiles &t, const Work &w,
                                             const NewUnits<T> &units, Softmax<BOXES * 8> &x,
                                             uint64_t queries, KeyRing &at, int from, int to,
                                             const int (&lo)[2], const int (&hi)[2]) {
    static_assert((int)SPLIT == 2 * TILE, "a split has two tiles");
    Scores score;
    float shrink[2];
    uint32_t prob[TILE / 16][4];
    begin_scores<T, GROUPS, BOXES>(p, w, units, score, queries, at, from);
    if (from + TILE < to) {
        Scores second;
        KeyRing next = at;
        next.next();
        begin_scores<T, GROUPS, BOXES>(p, w, units, second, queries, next, from + TILE);
        Product<T, TILE / 8>::template wait<1>(score);
        soften<T>(t, x, score, from, lo, hi, shrink, prob);
        begin_values<T, BOXES, true>(x, at, shrink, prob);
        Product<T, TILE / 8>::template wait<1>(second);
        soften<T>(t, x, second, from + TILE, lo, hi, shrink, prob);
        end_values<T>(x, at);
        begin_values<T, BOXES, false>(x, at, shrink, prob);
    } else {
        Product<T, TILE / 8>::template wait<0>(score);
        soften<T>(t, x, score, from, lo, hi, shrink, prob);
        begin_values<T, BOXES, true>(x, at, shrink, prob);
    }
    end_values<T>(x, at);
}

/* Merges the softmax of a split (`more`) into x. */
template <int N8> __device__ __forceinline__ void merge_split(Softmax<N8> &x, Softmax<N8> &more) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        more.sum[h] += __shfl_xor_sync(0xffffffffu, more.sum[h], 1);
        more.sum[h] += __shfl_xor_sync(0xffffffffu, more.sum[h], 2);
        const MergeTiles merge(&x.top[h], &x.sum[h], more.top[h], more.sum[h]);
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) x.y[n][i] = merge.of(x.y[n][i], more.y[n][i]);
    }
}

/* put_part and put_line store half h of this thread's softmax, which is the result for one row of y. put_part
 * stores the unnormalized result of a split, and put_line stores the normalized result. */
template <int N8>
__device__ __forceinline__ void put_part(const Paged &p, const Softmax<N8> &x, int h, const Parts &parts,
                                         int64_t part) {
#pragma unroll
    for (int n = 0; n < N8; n++) {
        const int64_t c = n * 8 + threadIdx.x % 4 * 2;
        if (c < p.e) *(float2 *)(parts.y + part * p.e + c) = make_float2(x.y[n][2 * h], x.y[n][2 * h + 1]);
    }
    if (threadIdx.x % 4 == 0) parts.top[part] = make_float2(x.top[h], x.sum[h]);
}
template <typename T, int N8>
__device__ __forceinline__ void put_line(const Paged &p, const Softmax<N8> &x, int h, bool there, T *y) {
    const float part = inverse(x.sum[h]);
#pragma unroll
    for (int n = 0; n < N8; n += 4) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = pack<T>(x.y[n + i][2 * h] * part, x.y[n + i][2 * h + 1] * part);
        gather_columns(v);
        const int c = 8 * (n + (int)threadIdx.x % 4);
        if (there && c < p.e) *(uint4 *)(y + c) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* Several blocks share a token and a group; the last block to finish merges the splits of all of them. */
template <typename T>
__device__ __forceinline__ void merge_if_last(const Paged &p, const Parts &parts, int64_t token,
                                              unsigned *arrived, MergeRoom *room, T *y, float *lse) {
    __shared__ bool last;
    const Range keys(p, token);
    const int64_t splits = keys.lo < keys.hi ? (keys.hi + SPLIT - 1) / SPLIT - keys.lo / SPLIT : 1;
    unsigned *const count = arrived + token * p.g + blockIdx.y;
    groups_wait<1>();
    if (threadIdx.x == 0) {
        unsigned others;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(others) : "l"(count) : "memory");
        last = others == splits - 1;
        if (last) *count = 0;
    }
    groups_wait<1>();
    for (int r = threadIdx.x / 32; last && r < p.r; r += GROUP_THREADS / 32)
        merge_line(p, parts, keys, token, blockIdx.y * p.r + r, room[threadIdx.x / 32], y, lse);
}

/* Computes the rows of tokens [own, own + tokens) with four warps. MERGES: true if the block computes one
 * split of one token. */
template <typename T, int GROUPS, int BOXES, bool MERGES>
__device__ __forceinline__ void attend_rows(const Paged &p, const Tiles &t, const NewRows &o, const Work &w,
                                            int own, int tokens, uint32_t q_at, KeyRing at, MergeRoom *room,
                                            const T *q, T *y, float *lse, float *part) {
    __shared__ NewUnits<T> units;
    const int row = threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
    int lo[2] = {0, 0}, hi[2] = {0, 0}; /* the keys that this thread's rows attend to */
    for (int h = 0; h < 2; h++)
        if ((row + 8 * h) / (int)p.r < tokens) {
            const Range keys(p, own + (row + 8 * h) / (int)p.r);
            lo[h] = (int)keys.lo, hi[h] = (int)keys.hi;
        }
    q += own * p.q_token + blockIdx.y * p.q_group;
    if (MERGES && o.cos) {
        rotate_rows<T, BOXES>(p, o, own, w.hi - 1, q, q_at, w.adds, units);
    } else {
        wait_for_kernel_before();
        load_queries<T, BOXES>(p, q, tokens, q_at);
    }
    publish_stores();
    groups_wait<GROUPS>();
    Softmax<BOXES * 8> all;
    for (int split = w.begin; split < w.end; split++) {
        Softmax<BOXES * 8> x;
        const int from = max(split * SPLIT, w.from), to = min(w.to, (split + 1) * SPLIT);
        if (from < to)
            attend_split<T, GROUPS, BOXES>(p, t, w, units, x, tile_descriptor<true>(q_at), at, from, to, lo,
                                           hi);
        merge_split(all, x);
    }
    const Parts parts(p, part);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = (row + 8 * h) / (int)p.r;
        const int64_t head = blockIdx.y * p.r + (row + 8 * h) % (int)p.r, line = (own + i) * p.g * p.r + head;
        if (part && i < tokens) put_part(p, all, h, parts, line * p.splits + w.begin);
        if (part) continue;
        put_line(p, all, h, i < tokens, y + line * p.e);
        if (i < tokens && threadIdx.x % 4 == 0)
            lse[head * p.tokens + own + i] =
                all.sum[h] == 0 ? -INFINITY : (all.top[h] + log2f(all.sum[h])) / (float)LOG2E;
    }
    if (MERGES) merge_if_last(p, parts, own, t.arrived, room, y, lse);
}

#endif

/* `part` is the memory of Parts, or NULL if each block computes all splits. */
template <typename T, int GROUPS, int BOXES, bool MERGES>
static __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, GROUPS == 1 ? 2 : 1)
    attend_tiles(const __grid_constant__ Paged p, const __grid_constant__ Tiles t,
                 const __grid_constant__ NewRows o, const __grid_constant__ CUtensorMap k,
                 const __grid_constant__ CUtensorMap v, const T *q, T *y, float *lse, float *part) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char memory[]; /* barriers, then queries, keys and values */
    const uint32_t barriers = shared_address(memory),
                   queries = (barriers + 16 * MOST_STAGES + 1023) / 1024 * 1024;
    const KeyRing at = {t.stages, 0, 0, queries + GROUPS * BOXES * TILE_BYTES, barriers};
    const int group = (int)uniform(threadIdx.x / GROUP_THREADS),
              block = gridDim.x - 1 - blockIdx.x, /* the last tokens of a prompt have the most keys */
        tile = block / t.parts;
    Work w;
    allow_next_kernel();
    const int start = t.tile ? (int)t.tile[tile] : tile, after = !t.tile              ? tile + 1
                                                                 : tile + 1 < t.tiles ? (int)t.tile[tile + 1]
                                                                                      : (int)p.tokens;
    w.first = start + block % t.parts * GROUPS * t.each, w.last = min(after, w.first + GROUPS * t.each) - 1;
    const int lo = w.first > w.last ? 0 : (int)Range(p, w.first).lo;
    w.hi = w.first > w.last ? 0 : (int)Range(p, w.last).hi;
    w.begin = part ? blockIdx.z : lo / SPLIT, w.end = part ? w.begin + 1 : (w.hi + SPLIT - 1) / SPLIT;
    w.from = max(lo, w.begin * SPLIT) / TILE * TILE, w.to = min(w.hi, w.end * SPLIT);
    w.old = t.tile ? 0 : (int)p.position[w.first];
    w.adds = MERGES && o.cos && w.to == w.hi;
    if (w.first > w.last || (part && w.from >= w.to && (blockIdx.z || lo < w.hi))) { /* nothing to do */
        if (blockIdx.z == 0) wait_for_kernel_before();
        return;
    }
    if (threadIdx.x == 0) {
        prefetch_map(&k), prefetch_map(&v);
        for (int i = 0; i < MOST_STAGES; i++)
            barrier_init(barriers + 8 * i, 1), barrier_init(barriers + 8 * (MOST_STAGES + i), 4 * GROUPS);
        barriers_ready();
    }
    __syncthreads();
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(GROUPS == 1 ? 40 : 24));
        if (uniform(threadIdx.x / 32) == GROUPS * GROUP_THREADS / 32 && is_elected())
            copy_keys<BOXES>(p, w, &k, &v, at);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 1 ? 216 : 240));
        const int own = w.first + group * t.each;
        attend_rows<T, GROUPS, BOXES, MERGES>(p, t, o, w, own, min(t.each, w.last + 1 - own),
                                              queries + group * BOXES * TILE_BYTES, at,
                                              (MergeRoom *)(memory + (at.room - barriers)), q, y, lse, part);
    }
#endif
}

template <typename T>
static __global__ void __launch_bounds__(GROUP_THREADS)
    merge_tiles(const Paged p, const float *part, T *y, float *lse) {
    __shared__ MergeRoom room[GROUP_THREADS / 32];
    const int64_t heads = p.g * p.r, line = blockIdx.x * (GROUP_THREADS / 32) + threadIdx.x / 32,
                  token = line / heads;
    const bool there = token < p.tokens;
    allow_next_kernel();
    const Range keys(p, there ? token : 0);
    wait_for_kernel_before();
    if (there)
        merge_line(p, Parts(p, (float *)part), keys, token, line % heads, room[threadIdx.x / 32], y, lse);
}

bool paged_has_tiles(const Call *c) {
    const Tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    const AttentionAttr *a = (const AttentionAttr *)c->attr;
    return has_warpgroups(cuda_of(c->device)) && dtype_is_16bit((DType)q->dtype) && !c->in[7] &&
           a->alibi == 0 && q->dim[3] <= ROWS && q->dim[4] <= 2 * LINE && v->dim[4] <= 2 * LINE &&
           rows_are_aligned(q) && rows_are_aligned(k) && rows_are_aligned(v);
}

static int rows_each(const Paged &p) { return ROWS / (int)p.r; }
static int64_t parts_of(const Paged &p) { return ceil_div(PAGED_TILE, 2 * rows_each(p)); }

/* With many tokens, separate blocks for splits are unnecessary, and would need much scratch memory. */
int64_t paged_tile_blocks(const Call *c, const Paged &p) {
    return c->in[8] ? p.tokens > PAGED_TILE ? INT64_MAX : c->in[8]->dim[0] * parts_of(p) * p.g
                    : p.tokens * p.g;
}

template <typename T, int GROUPS, int BOXES, bool MERGES>
static void launch(const Call *c, const Paged &p, const Tiles &t, const NewRows &o, float *part) {
    const int room = (GROUPS + 2 * t.stages) * BOXES * TILE_BYTES + 1024;
    const Tensor *k = c->in[1], *v = c->in[2];
    const CUtensorMap k_map = tile_map(c, k, k->dim[0], p.d, p.k_row, p.g, p.k_group, TILE),
                      v_map = tile_map(c, v, v->dim[0], p.e, p.v_row, p.g, p.v_group, TILE);
    const auto kernel = attend_tiles<T, GROUPS, BOXES, MERGES>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room));
    launch_pdl(c, dim3((unsigned)(t.tiles * t.parts), (unsigned)p.g, (unsigned)(part ? p.splits : 1)),
               dim3((GROUPS + 1) * GROUP_THREADS), room, kernel, p, t, o, k_map, v_map,
               (const T *)data_of<T>(c->in[0]), data_of<T>(c->out[0]), data_of<float>(c->out[1]), part);
    if (part && !MERGES)
        launch_pdl(c, dim3((unsigned)ceil_div(p.tokens * p.g * p.r, GROUP_THREADS / 32)), dim3(GROUP_THREADS),
                   0, merge_tiles<T>, p, (const float *)part, data_of<T>(c->out[0]),
                   data_of<float>(c->out[1]));
}

template <typename T> static void run(const Call *c, const Paged &p, const NewRows &o, float *part) {
    const AttentionAttr *a = &p.attr;
    const Tensor *list = c->in[8];
    const bool has_cap = a->softcap != 0, wide = p.d > LINE || p.e > LINE;
    Tiles t = {};
    t.tile = ids_of(list);
    t.each = rows_each(p);
    t.parts = list ? (int)parts_of(p) : 1;
    t.cap = (float)a->softcap, t.in = has_cap ? (float)(2 * LOG2E * a->scale / a->softcap) : 0;
    t.unit = (float)((has_cap ? 1 : a->scale) * LOG2E);
    t.tiles = (int)(list ? list->dim[0] : p.tokens);
    t.arrived = cuda_of(c->device)->arrived;
    /* with 3 stages, two blocks fit on a multiprocessor */
    t.stages = part ? SPLIT / TILE : list ? MOST_STAGES : 3;
    if (list)
        wide ? launch<T, 2, 2, false>(c, p, t, o, part) : launch<T, 2, 1, false>(c, p, t, o, part);
    else if (part)
        wide ? launch<T, 1, 2, true>(c, p, t, o, part) : launch<T, 1, 1, true>(c, p, t, o, part);
    else
        wide ? launch<T, 1, 2, false>(c, p, t, o, part) : launch<T, 1, 1, false>(c, p, t, o, part);
}

void paged_run_tiles(const Call *c, const Paged &p, const NewRows &o, float *part) {
    if (c->in[0]->dtype == BF16)
        run<bf16>(c, p, o, part);
    else
        run<fp16>(c, p, o, part);
}
