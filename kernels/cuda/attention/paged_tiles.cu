/* paged_attention for 16-bit storage on sm_90a: up to 64 queries, of tokens and heads that share keys, are the rows of
 * a product on the tensor cores. One warp copies tiles of TILE keys and values from pages to shared memory, and groups
 * of four warps multiply them. Each split of SPLIT keys has a separate softmax, and the splits are merged in order, by
 * the block that computes them or by a second kernel. A row's result therefore depends on neither other rows nor the
 * number of blocks. Rows that were stored in earlier passes are copied before the previous kernel ends. Scores are in
 * units of log(2). */
#include "kernels/cuda/attention/paged.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/pdl.cuh"

enum { TILE = LINE, ROWS = 64, MOST_STAGES = 4, TILE_BYTES = TILE * LINE_BYTES /* of 64 columns */ };
constexpr double LOG2E = 1.4426950408889634;

/* A block's rows belong to tokens [first, first + n) of one request, and to heads of one group. */
struct Tiles {
    const int64_t *tile;    /* [tiles]: first token of each tile; NULL: one token each */
    int tiles, each, parts; /* number of tiles; tokens per group of warps; blocks per tile */
    int stages;             /* number of stages in the ring of keys */
    float unit, in, cap;    /* score = product * unit, or cap * tanh(product * in) * unit */
};

/* The factors by which the old result and a new result are multiplied. `max` is the new result's largest score. */
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

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Waits for the warps that multiply. */
template <int GROUPS> __device__ __forceinline__ void groups_wait() {
    asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * GROUP_THREADS) : "memory");
}
/* Makes this thread's stores visible to the tensor cores. */
__device__ __forceinline__ void publish_stores() { asm volatile("fence.proxy.async;" ::: "memory"); }

/* Loads this group's rows, with zeros after the last row and column. */
template <typename T, int BOXES>
__device__ __forceinline__ void load_queries(const Paged &p, const T *q, int tokens, uint32_t to) {
    for (int i = threadIdx.x % GROUP_THREADS; i < ROWS * BOXES * 8; i += GROUP_THREADS) {
        const int row = i / (BOXES * 8), unit = i % (BOXES * 8), token = row / (int)p.r,
                  head = row % (int)p.r;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (token < tokens && unit * 8 < p.d)
            x = *(const uint4 *)(q + token * p.q_token + head * p.q_head + unit * 8);
        put_shared(to + unit / 8 * TILE_BYTES + row * LINE_BYTES + ((unit ^ row) & 7) * 16,
                   {x.x, x.y, x.z, x.w});
    }
}

/* Stores zeros in rows [from, TILE) of a tile. */
template <int GROUPS, int BOXES> __device__ __forceinline__ void clear_rows(uint32_t to, int from) {
    for (int i = from * BOXES * 8 + threadIdx.x; i < TILE * BOXES * 8; i += GROUPS * GROUP_THREADS)
        put_shared(to + i % BOXES * TILE_BYTES + i / BOXES * 16, {0, 0, 0, 0});
}

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
    /* Returns the address of the tile of keys. The tile of values follows it. */
    template <int BOXES> __device__ __forceinline__ uint32_t tile() const {
        return room + stage * 2 * BOXES * TILE_BYTES;
    }
    __device__ __forceinline__ uint32_t full() const { return barriers + 8 * stage; }
    __device__ __forceinline__ uint32_t empty() const { return barriers + 8 * (MOST_STAGES + stage); }
};

/* The keys and splits of a block's rows. */
struct Work {
    int first, last; /* tokens */
    int begin, end;  /* splits */
    int from, to;    /* keys [from, to); `from` is a multiple of TILE */
    int hi;          /* end of the keys that are written */
    int old;         /* end of the keys that were stored before this pass */
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
        if (key + TILE > w.old) wait_for_kernel_before();
        barrier_wait(at.empty(), at.phase ^ 1);
        barrier_expect(at.full(), 2 * BOXES * TILE_BYTES);
#pragma unroll
        for (int i = 0; i < 2 * BOXES; i++)
            copy_tile(to + i * TILE_BYTES, i < BOXES ? k : v, at.full(), i % BOXES * LINE, blockIdx.y, row);
    }
}

/* A softmax over some keys: sums of values, largest score, sum. */
template <int N8> struct Softmax {
    float y[N8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

typedef float Scores[TILE / 8][4];

/* Starts the products of the queries and a tile of keys. */
template <typename T, int BOXES>
__device__ __forceinline__ void begin_scores(Scores &score, uint64_t queries, const KeyRing &at) {
    const uint64_t keys = tile_descriptor<true>(uniform(at.tile<BOXES>()));
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) score[n][i] = 0;
    barrier_wait(at.full(), at.phase);
    Product<T, TILE / 8>::fence(score);
#pragma unroll
    for (int i = 0; i < BOXES * TILE_BYTES; i += TILE_BYTES)
#pragma unroll
        for (int c = 0; c < LINE_BYTES; c += 32)
            Product<T, TILE / 8>::run(score, queries + (i + c) / 16, keys + (i + c) / 16);
    products_begun();
}

/* Converts a tile's products to the probabilities of its keys. lo, hi: the keys that this thread's rows attend to.
 * `shrink` is the factor by which the sums of values so far must be multiplied. */
template <typename T, int N8>
__device__ __forceinline__ void soften(const Tiles &t, Softmax<N8> &x, Scores &score, int key,
                                       const int (&lo)[2], const int (&hi)[2], float (&shrink)[2],
                                       uint32_t (&prob)[TILE / 16][4]) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4 && t.cap != 0; i++) score[n][i] = t.cap * tanhf(score[n][i] * t.in);
    hide_keys(score, key, lo, hi);
    softmax_tile(score, t.unit, x.top, x.sum, shrink);
#pragma unroll
    for (int j = 0; j < TILE / 16; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            prob[j][i] = pack<T>(score[2 * j + i / 2][i % 2 * 2], score[2 * j + i / 2][i % 2 * 2 + 1]);
}

/* Starts the products of a tile's probabilities and values. FIRST: the sums so far are zero. end: the end of the values
 * that are written; other values may be NaN. */
template <typename T, int GROUPS, int BOXES, bool FIRST>
__device__ __forceinline__ void begin_values(Softmax<BOXES * 8> &x, const KeyRing &at, int key, int end,
                                             const float (&shrink)[2], uint32_t (&prob)[TILE / 16][4]) {
    const uint32_t from = uniform(at.tile<BOXES>() + BOXES * TILE_BYTES);
    const uint64_t values = tile_descriptor<false>(from, TILE_BYTES);
    if (key + TILE > end) {
        clear_rows<GROUPS, BOXES>(from, end - key);
        publish_stores();
        groups_wait<GROUPS>();
    }
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

/* The softmax of keys [from, to) of a split, with one or two tiles. One tile's softmax is computed during the other
 * tile's products. */
template <typename T, int GROUPS, int BOXES>
__device__ __forceinline__ void attend_split(const Tiles &t, Softmax<BOXES * 8> &x, uint64_t queries,
                                             KeyRing &at, int from, int to, int end, const int (&lo)[2],
                                             const int (&hi)[2]) {
    static_assert((int)SPLIT == 2 * TILE, "a split has two tiles");
    Scores score;
    float shrink[2];
    uint32_t prob[TILE / 16][4];
    begin_scores<T, BOXES>(score, queries, at);
    if (from + TILE < to) {
        Scores second;
        KeyRing next = at;
        next.next();
        begin_scores<T, BOXES>(second, queries, next);
        Product<T, TILE / 8>::template wait<1>(score);
        soften<T>(t, x, score, from, lo, hi, shrink, prob);
        begin_values<T, GROUPS, BOXES, true>(x, at, from, end, shrink, prob);
        Product<T, TILE / 8>::template wait<1>(second);
        soften<T>(t, x, second, from + TILE, lo, hi, shrink, prob);
        end_values<T>(x, at);
        begin_values<T, GROUPS, BOXES, false>(x, at, from + TILE, end, shrink, prob);
    } else {
        Product<T, TILE / 8>::template wait<0>(score);
        soften<T>(t, x, score, from, lo, hi, shrink, prob);
        begin_values<T, GROUPS, BOXES, true>(x, at, from, end, shrink, prob);
    }
    end_values<T>(x, at);
}

/* Merges the softmax of a split. */
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

/* Stores half h of this thread's softmax, for a line of y: as part of the splits, or normalized. */
template <int N8>
__device__ __forceinline__ void put_part(const Paged &p, const Softmax<N8> &x, int h, float *out) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = n * 8 + lane % 4 * 2 + i;
            if (c < p.e) out[c] = x.y[n][2 * h + i];
        }
    if (lane % 4 == 0) out[p.e] = x.top[h], out[p.e + 1] = x.sum[h];
}
template <typename T, int N8>
__device__ __forceinline__ void put_line(const Paged &p, const Softmax<N8> &x, int h, bool there, T *y) {
    const float all = x.sum[h];
#pragma unroll
    for (int n = 0; n < N8; n += 4) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = all == 0 ? 0 : pack<T>(x.y[n + i][2 * h] / all, x.y[n + i][2 * h + 1] / all);
        gather_columns(v);
        const int c = 8 * (n + (int)threadIdx.x % 4);
        if (there && c < p.e) *(uint4 *)(y + c) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* Four warps compute the rows of tokens [own, own + tokens). */
template <typename T, int GROUPS, int BOXES>
__device__ __forceinline__ void attend_rows(const Paged &p, const Tiles &t, const Work &w, int own,
                                            int tokens, uint32_t q_at, KeyRing at, const T *q, T *y,
                                            float *lse, float *part) {
    const int row = threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4;
    int lo[2] = {0, 0}, hi[2] = {0, 0}; /* the keys that this thread's rows attend to */
    for (int h = 0; h < 2; h++)
        if ((row + 8 * h) / (int)p.r < tokens) {
            const Range keys(p, own + (row + 8 * h) / (int)p.r);
            lo[h] = (int)keys.lo, hi[h] = (int)keys.hi;
        }
    wait_for_kernel_before();
    load_queries<T, BOXES>(p, q + own * p.q_token + blockIdx.y * p.q_group, tokens, q_at);
    publish_stores();
    groups_wait<GROUPS>();
    Softmax<BOXES * 8> all;
    for (int split = w.begin; split < w.end; split++) {
        Softmax<BOXES * 8> x;
        const int from = max(split * SPLIT, w.from), to = min(w.to, (split + 1) * SPLIT);
        if (from < to)
            attend_split<T, GROUPS, BOXES>(t, x, tile_descriptor<true>(q_at), at, from, to, w.hi, lo, hi);
        merge_split(all, x);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = (row + 8 * h) / (int)p.r;
        const int64_t head = blockIdx.y * p.r + (row + 8 * h) % (int)p.r, line = (own + i) * p.g * p.r + head;
        if (part && i < tokens) put_part(p, all, h, part + (line * p.splits + w.begin) * (p.e + 2));
        if (part) continue;
        put_line(p, all, h, i < tokens, y + line * p.e);
        if (i < tokens && threadIdx.x % 4 == 0)
            lse[head * p.tokens + own + i] =
                all.sum[h] == 0 ? -INFINITY : (all.top[h] + log2f(all.sum[h])) / (float)LOG2E;
    }
}

#endif

/* part: for each token, head and split, e values, then the largest score and the sum; NULL if a block computes all
 * splits. */
template <typename T, int GROUPS, int BOXES>
static __global__ void __launch_bounds__((GROUPS + 1) * GROUP_THREADS, GROUPS == 1 ? 2 : 1)
    attend_tiles(const __grid_constant__ Paged p, const __grid_constant__ Tiles t,
                 const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const T *q,
                 T *y, float *lse, float *part) {
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
    if (w.first > w.last || (part && w.from >= w.to)) { /* nothing to do */
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
        attend_rows<T, GROUPS, BOXES>(p, t, w, own, min(t.each, w.last + 1 - own),
                                      queries + group * BOXES * TILE_BYTES, at, q, y, lse, part);
    }
#endif
}

/* One block per token and head. */
template <typename T>
static __global__ void __launch_bounds__(128)
    merge_tiles(const Paged p, const float *part, T *y, float *lse) {
    enum { MANY = 12 /* splits whose loads are in flight together */ };
    const int64_t at = blockIdx.x, heads = p.g * p.r, token = at / heads, head = at % heads;
    allow_next_kernel();
    const Range keys(p, token);
    wait_for_kernel_before();
    for (int64_t c = threadIdx.x; c < p.e; c += blockDim.x) {
        float result = 0, most = -INFINITY, all = 0;
#pragma unroll 1
        for (int64_t split = keys.lo / SPLIT; split * SPLIT < keys.hi; split += MANY) {
            float max[MANY], sum[MANY], more[MANY];
#pragma unroll
            for (int i = 0; i < MANY; i++) {
                const bool there = (split + i) * SPLIT < keys.hi;
                const float *of = part + (at * p.splits + split + i) * (p.e + 2);
                max[i] = there ? of[p.e] : -INFINITY, sum[i] = there ? of[p.e + 1] : 0,
                more[i] = there ? of[c] : 0;
            }
#pragma unroll
            for (int i = 0; i < MANY; i++) {
                const MergeTiles merge(&most, &all, max[i], sum[i]);
                result = merge.of(result, more[i]);
            }
        }
        y[at * p.e + c] = from_real<T>(all == 0 ? 0 : result / all);
        if (c == 0) lse[head * p.tokens + token] = all == 0 ? -INFINITY : (most + log2f(all)) / (float)LOG2E;
    }
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

/* With many tokens, more blocks are unnecessary, and would need much scratch memory. */
int64_t paged_tile_blocks(const Call *c, const Paged &p) {
    return c->in[8] ? p.tokens > PAGED_TILE ? INT64_MAX : c->in[8]->dim[0] * parts_of(p) * p.g
                    : p.tokens * p.g;
}

template <typename T, int GROUPS, int BOXES>
static void launch(const Call *c, const Paged &p, const Tiles &t, float *part) {
    const int room = (GROUPS + 2 * t.stages) * BOXES * TILE_BYTES + 1024;
    const Tensor *k = c->in[1], *v = c->in[2];
    const CUtensorMap k_map = tile_map(c, k, k->dim[0], p.d, p.k_row, p.g, p.k_group, TILE),
                      v_map = tile_map(c, v, v->dim[0], p.e, p.v_row, p.g, p.v_group, TILE);
    const auto kernel = attend_tiles<T, GROUPS, BOXES>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room));
    launch_pdl(c, dim3((unsigned)(t.tiles * t.parts), (unsigned)p.g, (unsigned)(part ? p.splits : 1)),
               dim3((GROUPS + 1) * GROUP_THREADS), room, kernel, p, t, k_map, v_map,
               (const T *)data_of<T>(c->in[0]), data_of<T>(c->out[0]), data_of<float>(c->out[1]), part);
    if (part)
        launch_pdl(c, dim3((unsigned)(p.tokens * p.g * p.r)), dim3(128), 0, merge_tiles<T>, p,
                   (const float *)part, data_of<T>(c->out[0]), data_of<float>(c->out[1]));
}

template <typename T> static void run(const Call *c, const Paged &p, float *part) {
    const AttentionAttr *a = &p.attr;
    const Tensor *list = c->in[8];
    const bool capped = a->softcap != 0, wide = p.d > LINE || p.e > LINE;
    Tiles t = {};
    t.tile = ids_of(list);
    t.each = rows_each(p);
    t.parts = list ? (int)parts_of(p) : 1;
    t.cap = (float)a->softcap, t.in = capped ? (float)(a->scale / a->softcap) : 0;
    t.unit = (float)((capped ? 1 : a->scale) * LOG2E);
    t.tiles = (int)(list ? list->dim[0] : p.tokens);
    t.stages = part ? SPLIT / TILE : list ? MOST_STAGES : 3; /* 3: room for two blocks on a multiprocessor */
    if (list)
        wide ? launch<T, 2, 2>(c, p, t, part) : launch<T, 2, 1>(c, p, t, part);
    else
        wide ? launch<T, 1, 2>(c, p, t, part) : launch<T, 1, 1>(c, p, t, part);
}

void paged_run_tiles(const Call *c, const Paged &p, float *part) {
    if (c->in[0]->dtype == BF16)
        run<bf16>(c, p, part);
    else
        run<fp16>(c, p, part);
}
