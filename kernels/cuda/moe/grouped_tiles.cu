/* Computes grouped GEMMs of 16-bit operands with wgmma: expert e multiplies its rows [offset[e], offset[e+1]) by its
 * block of the weight (y = x w^T, dx = dy w), or computes the gradient of this block (dw = dy^T x). Only the GPU knows
 * the offsets. */
#include "kernels/cuda/moe/grouped_pairs.cuh"

enum { TERMS = LINE, THREADS = GROUPS * GROUP_THREADS + 64 };

/* The ring of slices has STAGES stages. Each warpgroup has room for CHUNKS chunks of sums. Sums of gradients of weights
 * are added to F32 in memory, which is slow, so their chunks are copied in smaller portions. */
template <Kind kind> struct Room {
    static constexpr int STAGES = kind == WGRAD ? 4 : 3, CHUNKS = kind == WGRAD ? 2 : 4,
                         SUMS_AT = STAGES * STAGE_BYTES, BYTES = SUMS_AT + GROUPS * CHUNKS * CHUNK + 1024;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- slices ---- */

/* The ring of slices in a block's shared memory. Each stage has two barriers, which signal that the slice has arrived,
 * and that both blocks of the cluster have read their copies of it. */
template <Kind kind> struct Slices : Ring<Room<kind>::STAGES> {
    uint32_t room, barriers;
    __device__ __forceinline__ uint32_t a() const { return room + this->stage * STAGE_BYTES; }
    __device__ __forceinline__ uint32_t b() const { return a() + A_BYTES; }
    __device__ __forceinline__ uint32_t full() const { return barriers + 8 * this->stage; }
    __device__ __forceinline__ uint32_t empty() const { return full() + 8 * Room<kind>::STAGES; }
};

/* Copies the lines of a slice whose terms are down the lines: `count` chunks of 64 columns, from chunk `from` on. */
template <bool to_both>
static __device__ __forceinline__ void copy_chunks(uint32_t to, const CUtensorMap *map, uint32_t full,
                                                   int column, int plane, int term, int from, int count) {
    for (int c = from; c < from + count; c++)
        if (to_both)
            copy_tile_to_both(to + c * CHUNK, map, full, column + c * LINE, plane, term);
        else
            copy_tile(to + c * CHUNK, map, full, column + c * LINE, plane, term);
}

/* Copies a slice of operand a: 128 rows of x or dy, or 128 columns of dy (WGRAD). */
template <Kind kind, bool beside>
static __device__ __forceinline__ void copy_a(const Slices<kind> &at, const CUtensorMap *a, const Pair &p,
                                              int term, int row, int rank) {
    if (kind == WGRAD)
        copy_chunks<false>(at.a(), a, at.full(), row, 0, p.first + term, 0, 2);
    else if (beside)
        copy_tile_to_both(at.a() + rank * (A_BYTES / 2), a, at.full(), term, 0, row + rank * (ROWS / 2));
    else
        copy_tile(at.a(), a, at.full(), term, 0, row);
}

/* Copies a slice of operand b: 256 rows of w (FORWARD), or 256 columns of w or x. */
template <Kind kind, bool beside>
static __device__ __forceinline__ void copy_b(const Slices<kind> &at, const CUtensorMap *b, const Pair &p,
                                              int term, int column, int rank) {
    if (kind == FORWARD && beside)
        copy_tile(at.b(), b, at.full(), term, p.expert, column);
    else if (kind == FORWARD)
        copy_tile_to_both(at.b() + rank * (B_BYTES / 2), b, at.full(), term, p.expert,
                          column + rank * (COLUMNS / 2));
    else
        copy_chunks<!beside>(at.b(), b, at.full(), column, kind == WGRAD ? 0 : p.expert,
                             kind == WGRAD ? p.first + term : term, beside ? 0 : 2 * rank, beside ? 4 : 2);
}

/* Copies the slices of all tiles of a block. Only one thread may call this function. */
template <Kind kind, bool beside>
static __device__ __forceinline__ void copy_slices(const Grouped &g, const CUtensorMap *a,
                                                   const CUtensorMap *b, Pairs pairs, Slices<kind> at,
                                                   int rank) {
    Pair p;
#pragma unroll 1
    while (pairs.read(&p)) {
        const int row = (int)p.row + (beside ? 0 : rank * ROWS),
                  column = p.column + (beside ? rank * COLUMNS : 0);
        const bool has_a = beside || rank * ROWS < p.rows, has_b = !beside || column < g.n;
#pragma unroll 1
        for (int slice = 0; slice < p.slices; slice++, at.next()) {
            barrier_wait(at.empty(), at.phase ^ 1);
            barrier_expect(at.full(), (has_a ? A_BYTES : 0) + (has_b ? B_BYTES : 0));
            if (has_a) copy_a<kind, beside>(at, a, p, slice * TERMS, row, rank);
            if (has_b) copy_b<kind, beside>(at, b, p, slice * TERMS, column, rank);
        }
    }
}

/* Sets the lines of a slice after the expert's last term to zero. They contain rows of the next expert. */
static __device__ __forceinline__ void clear_lines(uint32_t slice, int terms) {
    enum { CHUNKS = STAGE_BYTES / CHUNK };
    const uint32_t zero[4] = {};
    const int units = (TERMS - terms) * (LINE_BYTES / 16);
    for (int i = threadIdx.x; i < CHUNKS * units; i += GROUPS * GROUP_THREADS)
        put_shared(slice + i / units * CHUNK + terms * LINE_BYTES + i % units * 16, zero);
    show_to_copies();
    threads_wait<GROUPS * GROUP_THREADS>(1);
}

/* ---- multiplication ---- */

/* Multiplies the slices of a warpgroup's tile. Slices of a tile that is outside the result are only released. */
template <typename T, Kind kind, int N8>
static __device__ __forceinline__ void multiply(float (&sum)[N8][4], const Pair &p, Slices<kind> &at,
                                                int group, bool inside) {
    constexpr bool a_along = kind != WGRAD, b_along = kind == FORWARD;
    constexpr int STEP = 16 * LINE_BYTES, A_STEP = a_along ? 32 : STEP, B_STEP = b_along ? 32 : STEP;
    typedef Product<T, N8, a_along, b_along> Multiply;
    const int lane = threadIdx.x % 32;
    uint32_t before = 0; /* the barrier that frees the previous slice */
#pragma unroll 1
    for (int slice = 0; slice < p.slices; slice++, at.next()) {
        const uint32_t from = uniform(at.a());
        barrier_wait(at.full(), at.phase);
        if (kind == WGRAD && p.terms - slice * TERMS < TERMS) clear_lines(from, p.terms - slice * TERMS);
        if (inside) {
            const uint64_t a = tile_descriptor<a_along>(from + group * 64 * LINE_BYTES, CHUNK),
                           b = tile_descriptor<b_along>(from + A_BYTES, CHUNK);
            Multiply::fence(sum);
#pragma unroll
            for (int k = 0; k < TERMS / 16; k++) Multiply::run(sum, a + k * A_STEP / 16, b + k * B_STEP / 16);
            products_begun();
            Multiply::template wait<1>(sum);
        }
        if (before && lane < 2) barrier_arrive_in(before, lane);
        before = at.empty();
    }
    Multiply::template wait<0>(sum);
    if (before && lane < 2) barrier_arrive_in(before, lane);
}

template <typename T, typename Y, Kind kind, bool beside>
static __device__ __forceinline__ void multiply_tiles(const Grouped &g, Pairs pairs, Slices<kind> at,
                                                      int rank, const CUtensorMap *to, Y *y) {
    const int group = (int)uniform(threadIdx.x / GROUP_THREADS);
    const uint32_t sums_at = at.room + Room<kind>::SUMS_AT + group * Room<kind>::CHUNKS * CHUNK;
    Pair p;
#pragma unroll 1
    while (pairs.read(&p)) {
        const int column = p.column + (beside ? rank * COLUMNS : 0),
                  below = (beside ? 0 : rank * ROWS) + group * 64;
        const int64_t row = p.row + below, rows = p.rows - below;
        const bool inside = rows > 0 && column < g.n;
        float sum[COLUMNS / 8][4] = {};
        multiply<T, kind>(sum, p, at, group, inside);
        if (!inside || (g.add && (kind == WGRAD ? !p.terms : p.expert < 0))) continue;
        if (kind == FORWARD && g.bias.data && p.expert >= 0) add_bias(sum, g, p.expert, row, rows, column);
        /* Copies leave out what is outside the matrix, but not rows of y that belong to the next expert. They add
         * sums that are already rounded to Y, which dx does not allow. */
        if (kind == WGRAD || (!g.add && rows >= 64))
            copy_sums<Y, Room<kind>::CHUNKS>(sum, to, sums_at, group, column, kind == WGRAD ? p.expert : 0,
                                             (int)row, g.add);
        else if constexpr (kind != WGRAD)
            put_sums(sum, y + row * g.n, g.n, rows, column, g.add);
    }
    copies_end_out();
}

#endif

template <typename T, typename Y, Kind kind, bool beside>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply_grouped(const __grid_constant__ Grouped g, const __grid_constant__ CUtensorMap a,
                     const __grid_constant__ CUtensorMap b, const __grid_constant__ CUtensorMap to, Y *y) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    enum { STAGES = Room<kind>::STAGES };
    extern __shared__ char memory[];
    __shared__ uint64_t barriers[2 * STAGES];
    __shared__ Pairs::Room room_of_pairs;
    __shared__ int before[kind == WGRAD ? 1 : MOST_EXPERTS + 2];
    const Pairs pairs(&room_of_pairs);
    const Slices<kind> at = {{}, (shared_address(memory) + 1023) / 1024 * 1024, shared_address(barriers)};
    const int rank = blockIdx.x % 2, warp = (int)uniform(threadIdx.x / 32);
    if (threadIdx.x == GROUP_THREADS) {
        prefetch_map(&a), prefetch_map(&b), prefetch_map(&to);
        for (int i = 0; i < 2 * STAGES; i++)
            barrier_init(at.barriers + 8 * i, i < STAGES ? 1 : 2 * GROUPS * (GROUP_THREADS / 32));
        pairs.init();
        barriers_ready();
    }
    if (kind != WGRAD && threadIdx.x < 32) count_pairs<Extent<beside>::DOWN>(g, before);
    __syncthreads();
    cluster_wait();
    if (threadIdx.x < GROUPS * GROUP_THREADS)
        multiply_tiles<T, Y, kind, beside>(g, pairs, at, rank, &to, y);
    else if (is_elected()) {
        if (warp == GROUPS * GROUP_THREADS / 32)
            copy_slices<kind, beside>(g, &a, &b, pairs, at, rank);
        else
            find_pairs<kind, beside, TERMS>(g, before, pairs);
    }
    __syncwarp();
    cluster_wait(); /* the other block may still arrive at this block's barriers */
#endif
}

/* ---- launches ---- */

template <typename T, typename Y, Kind kind, bool beside> static void launch(const Call *c, Grouped g) {
    const Tensor *x = c->in[0], *w = c->in[1], *y = c->out[0];
    const int64_t wide = tensor_width(x), k = tensor_width(w), out = tensor_width(y);
    const int64_t plane = kind == WGRAD ? 0 : tensor_count(w) / g.experts;
    const CUtensorMap a = tile_map(c, x, g.rows, wide, wide, 1, wide, kind == WGRAD || beside ? 64 : ROWS),
                      b = kind == WGRAD ? tile_map(c, w, g.rows, k, k, 1, k, 64)
                                        : tile_map(c, w, plane / k, k, k, g.experts, plane,
                                                   kind == DGRAD ? 64
                                                   : beside      ? COLUMNS
                                                                 : COLUMNS / 2),
                      to = kind == WGRAD ? tile_map(c, y, g.m, out, out, g.experts, g.m * out, 64)
                                         : tile_map(c, y, g.rows, out, out, 1, out, 64);
    g.down = (int)ceil_div(g.m, 2 * ROWS), g.across = (int)ceil_div(g.n, beside ? 2 * COLUMNS : COLUMNS);
    launch_clusters(c, multiply_grouped<T, Y, kind, beside>, THREADS, Room<kind>::BYTES, g, a, b, to,
                    data_of<Y>(y));
}

static Grouped grouped_of(const Call *c) {
    const Tensor *offset = c->in[2];
    Grouped g = {ids_of(offset)};
    g.experts = (int)offset->dim[0] - 1;
    g.rows = c->in[0]->dim[0];
    g.n = (int)tensor_width(c->out[0]);
    g.add = accumulates(c->out[0]);
    return g;
}

template <typename T> static void launch_rows(const Call *c, const Grouped &g, bool along) {
    if (is_beside(g))
        along ? launch<T, T, FORWARD, true>(c, g) : launch<T, T, DGRAD, true>(c, g);
    else
        along ? launch<T, T, FORWARD, false>(c, g) : launch<T, T, DGRAD, false>(c, g);
}

bool grouped_tiles_can(const Call *c) {
    const int64_t most = INT32_MAX / 2, experts = c->in[2]->dim[0] - 1;
    return has_warpgroups(cuda_of(c->device)) && experts <= MOST_EXPERTS && c->in[0]->dim[0] <= most &&
           tensor_width(c->in[0]) <= most && tensor_width(c->out[0]) <= most && tensor_count(c->in[0]) > 0 &&
           tensor_count(c->in[1]) > 0;
}

void grouped_tiles_rows(const Call *c, bool along) {
    Grouped g = grouped_of(c);
    g.k = (int)tensor_width(c->in[0]);
    g.bias = cells(c->in[3]), g.scale = cells(c->in[4]);
    if (c->in[0]->dtype == BF16)
        launch_rows<bf16>(c, g, along);
    else
        launch_rows<fp16>(c, g, along);
}

void grouped_tiles_wgrad(const Call *c) {
    Grouped g = grouped_of(c);
    g.m = (int)tensor_width(c->in[0]);
    if (c->out[0]->dtype == F32)
        c->in[0]->dtype == BF16 ? launch<bf16, float, WGRAD, false>(c, g)
                                : launch<fp16, float, WGRAD, false>(c, g);
    else
        c->in[0]->dtype == BF16 ? launch<bf16, bf16, WGRAD, false>(c, g)
                                : launch<fp16, fp16, WGRAD, false>(c, g);
}
