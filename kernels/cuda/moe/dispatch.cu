/* Computes the ops of kernels/cpu/dispatch.c. The plan is a counting sort of the copies by expert. Each warp
 * counts the copies for each expert in its chunks, and prefix sums over chunks and experts determine where a
 * chunk's copies for an expert begin. The warps then write the copies in order. row, copy, offset, expert and
 * the y of scale_rows are written; all other outputs are written or accumulated. */
#include "kernels/cuda/moe/router.cuh"
#include "kernels/cuda/vector_store.cuh"

enum { THREADS = 256 };

/* ---- plan ---- */

enum { AHEAD = 8, MOST_CHUNKS = 1024 };

typedef struct Plan {
    DispatchAttr attr;
    const int64_t *expert;
    int64_t copies, rows;
    int64_t *row, *copy, *offset;
    int experts, chunks, each; /* each: number of copies per chunk, a multiple of 32 * AHEAD */
    bool ranked;               /* if true, an expert over capacity drops its least probable copies */
    int64_t *total, *first;    /* [experts]: number of copies, and position in `list` of the first copy */
    /* [experts, chunks]: number of copies: initially those in the chunk, later those in all earlier chunks */
    int *start;
    int *list; /* [copies], only if ranked: all copies by expert, in order */
} Plan;

static Plan plan_of(const Call *c) {
    const DispatchAttr *a = (const DispatchAttr *)c->attr;
    const int64_t copies = tensor_count(c->in[1]), experts = c->out[2]->dim[0] - 1;
    const int64_t step = 32 * AHEAD, each = ceil_div(ceil_div(copies, MOST_CHUNKS), step) * step;
    CHECK(copies < INT32_MAX, "dispatch: there are %lld copies, but at most 2^31 - 2 can be sorted",
          (long long)copies);
    Plan p = {*a, ids_of(c->in[1]), copies, c->out[1]->dim[0]};
    p.row = data_of<int64_t>(c->out[0]), p.copy = data_of<int64_t>(c->out[1]),
    p.offset = data_of<int64_t>(c->out[2]);
    p.experts = (int)experts, p.each = (int)(each ? each : step);
    p.chunks = (int)(copies ? ceil_div(copies, p.each) : 1);
    p.ranked = a->capacity > 0 && !a->by_position && c->in[0];
    return p;
}

extern "C" size_t cuda_plans_dispatch(const Call *c) {
    const Plan p = plan_of(c);
    const size_t n = (size_t)p.experts;
    return 2 * n * sizeof(int64_t) + (n * (size_t)p.chunks + (p.ranked ? (size_t)p.copies : 0)) * sizeof(int);
}

static void take_scratch(const Call *c, Plan *p) {
    p->total = (int64_t *)cuda_scratch(c->device, cuda_plans_dispatch(c));
    p->first = p->total + p->experts;
    p->start = (int *)(p->first + p->experts);
    p->list = p->start + (int64_t)p->experts * p->chunks;
}

/* Loads the experts of AHEAD copies per lane, beginning at copy `at`. Experts that are not among this call's
 * experts become -1. */
__device__ __forceinline__ void load_places(const Plan &p, int64_t at, int64_t end, int *place) {
    int64_t expert[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        const int64_t i = at + 32 * u + threadIdx.x % 32;
        expert[u] = i < end ? p.expert[i] : -1;
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        const int64_t e = expert[u] - p.attr.first;
        place[u] = expert[u] < 0 || e < 0 || e >= p.experts ? -1 : (int)e;
    }
}

__device__ __forceinline__ void check_places(const Plan &p, int64_t at, int64_t end, const int *place,
                                             DeviceAssert *failure, const char *message) {
    for (int u = 0; u < AHEAD; u++) {
        const int64_t i = at + 32 * u + threadIdx.x % 32;
        if (i < end && place[u] < 0 && p.expert[i] >= 0) raise_assert(failure, message, i, p.expert[i]);
    }
}

static __global__ void count_copies(Plan p, DeviceAssert *failure, const char *message) {
    extern __shared__ int counts[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunk = blockIdx.x * (blockDim.x / 32) + warp;
    int *mine = counts + warp * p.experts;
    GRID_LOOP(i, p.rows) p.copy[i] = -1;
    if (chunk >= p.chunks) return;
    for (int e = lane; e < p.experts; e += 32) mine[e] = 0;
    __syncwarp();
    const int64_t begin = (int64_t)chunk * p.each,
                  end = begin + p.each < p.copies ? begin + p.each : p.copies;
    for (int64_t at = begin; at < end; at += 32 * AHEAD) {
        int place[AHEAD];
        load_places(p, at, end, place);
        if (!p.attr.local) check_places(p, at, end, place, failure, message);
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (place[u] >= 0) atomicAdd(mine + place[u], 1);
    }
    __syncwarp();
    for (int e = lane; e < p.experts; e += 32) p.start[(int64_t)e * p.chunks + chunk] = mine[e];
}

/* Returns the sum of x over all preceding threads of the block. *all becomes the sum over all threads. `room`
 * has 32 elements. */
__device__ __forceinline__ int64_t block_prefix(int64_t x, int64_t *room, int64_t *all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t sum = x;
    for (int k = 1; k < 32; k *= 2) {
        const int64_t before = __shfl_up_sync(0xffffffffu, sum, k);
        if (lane >= k) sum += before;
    }
    __syncthreads();
    if (lane == 31) room[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) {
        if (w == warp) sum += *all;
        *all += room[w];
    }
    return sum - x;
}

/* Each block processes one expert. */
static __global__ void scan_chunks(Plan p) {
    __shared__ int64_t room[32];
    int *start = p.start + (int64_t)blockIdx.x * p.chunks;
    int64_t before = 0;
    for (int k = 0; k < p.chunks; k += blockDim.x) {
        const int i = k + threadIdx.x;
        int64_t all;
        const int64_t sum = block_prefix(i < p.chunks ? start[i] : 0, room, &all);
        if (i < p.chunks) start[i] = (int)(before + sum);
        before += all;
    }
    if (threadIdx.x == 0) p.total[blockIdx.x] = before;
}

__device__ __forceinline__ int64_t kept_of(const Plan &p, int64_t n) {
    return p.attr.capacity > 0 && n > p.attr.capacity ? p.attr.capacity : n;
}

/* A single block runs this kernel. */
static __global__ void scan_experts(Plan p, DeviceAssert *failure, const char *message) {
    __shared__ int64_t room[32];
    int64_t end = 0, listed = 0;
    for (int k = 0; k < p.experts; k += blockDim.x) {
        const int e = k + threadIdx.x;
        const int64_t n = e < p.experts ? p.total[e] : 0;
        int64_t all, copies;
        const int64_t takes = e >= p.experts ? 0 : p.attr.pad ? p.attr.capacity : kept_of(p, n);
        const int64_t offset = end + block_prefix(takes, room, &all),
                      first = listed + block_prefix(n, room, &copies);
        if (e < p.experts) p.offset[e] = offset, p.first[e] = first;
        end += all, listed += copies;
    }
    if (threadIdx.x) return;
    p.offset[p.experts] = end;
    if (end > p.rows) raise_assert(failure, message, end, p.rows);
}

__device__ __forceinline__ void put_copy(const Plan &p, int64_t copy, int64_t row) {
    p.row[copy] = row;
    if (row < p.rows) p.copy[row] = copy; /* otherwise, scan_experts has raised an error */
}

static __global__ void place_copies(Plan p) {
    extern __shared__ int cursors[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunk = blockIdx.x * (blockDim.x / 32) + warp;
    int *next = cursors + warp * p.experts;
    if (chunk >= p.chunks) return;
    for (int e = lane; e < p.experts; e += 32) next[e] = p.start[(int64_t)e * p.chunks + chunk];
    __syncwarp();
    const int64_t begin = (int64_t)chunk * p.each,
                  end = begin + p.each < p.copies ? begin + p.each : p.copies;
    for (int64_t at = begin; at < end; at += 32 * AHEAD) {
        int place[AHEAD];
        load_places(p, at, end, place);
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int e = place[u];
            const int64_t i = at + 32 * u + lane;
            const unsigned same = __match_any_sync(0xffffffffu, e), before = same & ((1u << lane) - 1);
            const int rank = e < 0 ? 0 : next[e] + __popc(before);
            __syncwarp();
            if (e >= 0 && !before) next[e] += __popc(same);
            __syncwarp();
            if (e >= 0 && p.ranked)
                p.list[p.first[e] + rank] = (int)i;
            else if (e >= 0 && rank < kept_of(p, p.total[e]))
                put_copy(p, i, p.offset[e] + rank);
            else if (i < end)
                p.row[i] = -1;
        }
    }
}

/* ---- drop by probability ---- */

template <typename R> struct OrderOf {
    typedef uint32_t Bits;
    __device__ static __forceinline__ Bits bits(float x) { return __float_as_uint(x); }
};
template <> struct OrderOf<double> {
    typedef uint64_t Bits;
    __device__ static __forceinline__ Bits bits(double x) { return (Bits)__double_as_longlong(x); }
};
/* Maps numbers to integers without changing their order. */
template <typename R> __device__ __forceinline__ typename OrderOf<R>::Bits order_of(R x) {
    typedef typename OrderOf<R>::Bits Bits;
    /* -0 is treated as 0 */
    const Bits top = (Bits)1 << (8 * sizeof(Bits) - 1), bits = OrderOf<R>::bits(x == 0 ? 0 : x);
    return bits & top ? ~bits : bits | top;
}

/* Finds, digit by digit, order_of(probability) of the worst copy among the best `*keep` of n copies. *keep
 * becomes the number of kept copies with that probability. At least 256 threads must call this function, and
 * all threads receive both results. */
template <typename R>
__device__ typename OrderOf<R>::Bits last_kept(const Cells &prob, const int *list, int n, int *keep) {
    typedef typename OrderOf<R>::Bits Bits;
    __shared__ int bins[256], rest;
    __shared__ Bits digits;
    Bits found = 0;
    for (int shift = 8 * sizeof(Bits) - 8; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) bins[threadIdx.x] = 0;
        __syncthreads();
        for (int j = threadIdx.x; j < n; j += blockDim.x) {
            const Bits x = order_of(prob.get<R>(list[j])) ^ found;
            if (shift + 8 == 8 * sizeof(Bits) || x >> (shift + 8) == 0)
                atomicAdd(bins + (x >> shift & 255), 1);
        }
        __syncthreads();
        int above = 0;
        for (int b = threadIdx.x + 1; b < 256; b++) above += bins[b];
        if (threadIdx.x < 256 && above < *keep && *keep <= above + bins[threadIdx.x]) {
            digits = found | (Bits)threadIdx.x << shift;
            rest = *keep - above;
        }
        __syncthreads();
        found = digits, *keep = rest;
    }
    return found;
}

/* Each block selects the most probable copies in one expert's list, and keeps their order. Among equally
 * probable copies, earlier copies are preferred. */
template <typename R> static __global__ void keep_best(Plan p, Cells prob) {
    __shared__ int more[32], equal[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int n = (int)p.total[blockIdx.x];
    const int *list = p.list + p.first[blockIdx.x];
    const int64_t at = p.offset[blockIdx.x];
    int ties = n, more_before = 0, equal_before = 0;
    typename OrderOf<R>::Bits last = 0; /* lower than any number, so that all copies are kept */
    if (n > p.attr.capacity) {
        ties = (int)p.attr.capacity;
        last = last_kept<R>(prob, list, n, &ties);
    }
    for (int k = 0; k < n; k += blockDim.x) {
        const int j = k + threadIdx.x;
        const typename OrderOf<R>::Bits order = j < n ? order_of(prob.get<R>(list[j])) : 0;
        const unsigned m = __ballot_sync(0xffffffffu, j < n && order > last),
                       q = __ballot_sync(0xffffffffu, j < n && order == last), below = (1u << lane) - 1;
        __syncthreads();
        if (lane == 0) more[warp] = __popc(m), equal[warp] = __popc(q);
        __syncthreads();
        int own_more = more_before + __popc(m & below), own_equal = equal_before + __popc(q & below);
        for (int w = 0; w < warps; w++) {
            if (w < warp) own_more += more[w], own_equal += equal[w];
            more_before += more[w], equal_before += equal[w];
        }
        const bool kept = m >> lane & 1 || (q >> lane & 1 && own_equal < ties);
        if (kept)
            put_copy(p, list[j], at + own_more + (own_equal < ties ? own_equal : ties));
        else if (j < n)
            p.row[list[j]] = -1;
    }
}

extern "C" void cuda_dispatch(const Call *c) {
    Plan p = plan_of(c);
    DeviceAssert *failure = cuda_of(c->device)->failure;
    const size_t each = (size_t)p.experts * sizeof(int);
    const int warps = warps_that_fit(p.experts, 0, each);
    const unsigned blocks = (unsigned)ceil_div(p.chunks, warps), threads = 32 * warps;
    take_scratch(c, &p);
    count_copies<<<blocks, threads, warps * each, stream_of(c)>>>(
        p, failure, "dispatch: copy %lld is for expert %lld, which does not exist");
    LAUNCHED();
    scan_chunks<<<(unsigned)p.experts, THREADS, 0, stream_of(c)>>>(p);
    LAUNCHED();
    scan_experts<<<1, 1024, 0, stream_of(c)>>>(p, failure,
                                               "the experts need %lld rows, but there is room for only %lld");
    LAUNCHED();
    place_copies<<<blocks, threads, warps * each, stream_of(c)>>>(p);
    LAUNCHED();
    if (!p.ranked) return;
    REAL_SWITCH(c->in[0]->dtype,
                keep_best<R><<<(unsigned)p.experts, 512, 0, stream_of(c)>>>(p, cells(c->in[0])));
    LAUNCHED();
}

/* ---- drop, arrival ---- */

static __global__ void drop(const int64_t *expert, const int64_t *row, int64_t *out, int64_t n) {
    GRID_LOOP(i, n) out[i] = row[i] < 0 ? -1 : expert[i];
}

extern "C" void cuda_drop(const Call *c) {
    const int64_t n = tensor_count(c->in[0]);
    if (!n) return;
    drop<<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(ids_of(c->in[0]), ids_of(c->in[1]),
                                                                data_of<int64_t>(c->out[0]), n);
    LAUNCHED();
}

typedef struct Arriving {
    ArrivalAttr attr;
    const int64_t *offset;      /* [ranks, width] */
    int64_t ranks, width, rows; /* rows: number of rows in a part */
    int64_t *expert;
} Arriving;

/* Returns the expert of row i, counted among the rows that one rank sends to experts from a.first on. */
__device__ __forceinline__ int64_t expert_of(const ArrivalAttr &a, const int64_t *own, int64_t i) {
    /* the rows of expert `low` begin at or before row i, and the rows of expert `high` begin after it */
    int64_t low = 0, high = a.experts;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (own[middle] - own[0] <= i)
            low = middle;
        else
            high = middle;
    }
    return a.first + low;
}

/* All blocks with the same blockIdx.x process the rows from one rank. In a part, the rows from a rank follow
 * the preceding ranks' rows. The blocks of a part's last rank also add the padding. */
static __global__ void arrival(Arriving r, DeviceAssert *failure, const char *message) {
    __shared__ int64_t room[32];
    const int64_t rank = blockIdx.x, part = rank % r.attr.etp, thread = blockIdx.y * blockDim.x + threadIdx.x,
                  threads = gridDim.y * blockDim.x;
    int64_t before = 0;
    for (int64_t k = part + r.attr.etp * threadIdx.x; k < rank; k += r.attr.etp * blockDim.x) {
        const int64_t *other = r.offset + k * r.width + r.attr.first;
        before += other[r.attr.experts] - other[0];
    }
    before = block_sum(before, room);
    const int64_t *own = r.offset + rank * r.width + r.attr.first;
    const int64_t end = before + own[r.attr.experts] - own[0];
    int64_t *expert = r.expert + part * r.rows;
    for (int64_t i = before + thread; i < end && i < r.rows; i += threads)
        expert[i] = expert_of(r.attr, own, i - before);
    if (rank + r.attr.etp < r.ranks) return;
    if (end > r.rows && thread == 0) raise_assert(failure, message, end, r.rows);
    for (int64_t i = end + thread; i < r.rows; i += threads) expert[i] = -1;
}

extern "C" void cuda_arrival(const Call *c) {
    const ArrivalAttr *a = (const ArrivalAttr *)c->attr;
    const Tensor *offset = c->in[0];
    const Arriving r = {*a,
                        ids_of(offset),
                        offset->dim[0],
                        offset->dim[1],
                        c->out[0]->dim[0] / a->etp,
                        data_of<int64_t>(c->out[0])};
    const int64_t slices = ceil_div(r.rows, 8 * THREADS);
    const dim3 grid((unsigned)r.ranks, (unsigned)(slices < 1 ? 1 : slices < 16 ? slices : 16));
    arrival<<<grid, THREADS, 0, stream_of(c)>>>(r, cuda_of(c->device)->failure,
                                                "%lld rows arrive, but there is room for only %lld");
    LAUNCHED();
}

/* ---- rows ---- */

/* If all rows consist of aligned 16-byte vectors, a warp processes a part of a row, with DEPTH vectors per
 * lane. Other rows are processed element by element. The results of both methods are bitwise equal. */

static bool whole_vectors(const Tensor *a, const Tensor *b) {
    return rows_are_aligned(a) && rows_are_aligned(b);
}
static void same_type(const Tensor *a, const Tensor *b) {
    CHECK(a->dtype == b->dtype, "rows of type %s cannot be copied to rows of type %s",
          dtype_name((DType)a->dtype), dtype_name((DType)b->dtype));
}

template <typename T, int N> __device__ __forceinline__ Vec<T, N> zeros(void) {
    Vec<T, N> v;
#pragma unroll
    for (int k = 0; k < N; k++) v.v[k] = from_real<T>((Real<T>)0);
    return v;
}
template <typename T> __device__ __forceinline__ T sum_of(T a, T b) {
    return from_real<T>(to_real<Real<T>>(a) + to_real<Real<T>>(b));
}

template <typename T, int DEPTH>
static __global__ void permute_vectors(const Vec<T, VEC<T>> *x, Vec<T, VEC<T>> *y, const int64_t *copy,
                                       int64_t rows, int64_t width, int64_t copies, bool add) {
    typedef Vec<T, VEC<T>> V;
    const int64_t parts = (width + 32 * DEPTH - 1) / (32 * DEPTH);
    WARP_LOOP(item, rows * parts) {
        const int64_t row = item / parts, first = item % parts * (32 * DEPTH) + threadIdx.x % 32,
                      from = copy[row];
        if (from < 0 && add) continue;
        const V *source = x + from / copies * width;
        V v[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            v[d] = from >= 0 && first + 32 * d < width ? source[first + 32 * d] : zeros<T, VEC<T>>();
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int64_t at = row * width + first + 32 * d;
            if (first + 32 * d >= width) continue;
            if (add) {
                const V old = y[at];
#pragma unroll
                for (int k = 0; k < VEC<T>; k++) v[d].v[k] = sum_of(old.v[k], v[d].v[k]);
            }
            store_whole(y + at, v[d]);
        }
    }
}

template <typename T>
static __global__ void permute_elements(const T *x, T *y, const int64_t *copy, int64_t n, int64_t width,
                                        int64_t copies, bool add) {
    GRID_LOOP(i, n) {
        const int64_t from = copy[i / width];
        const T v = from < 0 ? from_real<T>((Real<T>)0) : x[from / copies * width + i % width];
        if (from >= 0 || !add) y[i] = add ? sum_of(y[i], v) : v;
    }
}

/* A kernel of permute or unpermute: reads the rows of in[0] that in[1] selects, and writes the rows of
 * out[0]. */
template <typename T>
using RowMover = void (*)(const T *from, T *to, const int64_t *index, int64_t n, int64_t width,
                          int64_t copies, bool add);
template <typename T>
static void move_rows(const Call *c, int depth, RowMover<Vec<T, VEC<T>>> by_vectors,
                      RowMover<T> by_elements) {
    typedef Vec<T, VEC<T>> V;
    const Tensor *from = c->in[0], *to = c->out[0];
    const int64_t rows = tensor_rows(to), width = tensor_width(to), vectors = width / VEC<T>,
                  copies = ((const PermuteAttr *)c->attr)->copies, *index = ids_of(c->in[1]);
    if (whole_vectors(from, to))
        by_vectors<<<grid_for(c, rows * ceil_div(vectors, 32 * depth), WARPS), 32 * WARPS, 0, stream_of(c)>>>(
            data_of<V>(from), data_of<V>(to), index, rows, vectors, copies, accumulates(to));
    else
        by_elements<<<grid_for(c, rows * width, THREADS), THREADS, 0, stream_of(c)>>>(
            data_of<T>(from), data_of<T>(to), index, rows * width, width, copies, accumulates(to));
    LAUNCHED();
}

extern "C" void cuda_permute(const Call *c) {
    enum { DEPTH = 4 };
    same_type(c->in[0], c->out[0]);
    if (tensor_count(c->out[0]))
        STORAGE_SWITCH(c->out[0]->dtype,
                       move_rows<T>(c, DEPTH, permute_vectors<T, DEPTH>, permute_elements<T>));
}

/* The kernel loads the rows of four copies before it uses the first row. With three blocks per multiprocessor,
 * there are enough registers for these loads. */
template <typename T, int DEPTH>
static __global__ void __launch_bounds__(32 * WARPS, 3)
    unpermute_vectors(const Vec<T, VEC<T>> *y, Vec<T, VEC<T>> *x, const int64_t *row, int64_t tokens,
                      int64_t width, int64_t copies, bool add) {
    typedef Vec<T, VEC<T>> V;
    typedef Real<T> R;
    enum { N = VEC<T>, AT_ONCE = 4 };
    const int64_t parts = (width + 32 * DEPTH - 1) / (32 * DEPTH);
    WARP_LOOP(item, tokens * parts) {
        const int64_t token = item / parts, first = item % parts * (32 * DEPTH) + threadIdx.x % 32;
        R sum[DEPTH][N] = {};
        for (int64_t j = 0; j < copies; j += AT_ONCE) {
            int64_t from[AT_ONCE];
            V v[AT_ONCE][DEPTH];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) from[u] = j + u < copies ? row[token * copies + j + u] : -1;
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
                for (int d = 0; d < DEPTH; d++)
                    v[u][d] = from[u] >= 0 && first + 32 * d < width ? y[from[u] * width + first + 32 * d]
                                                                     : zeros<T, N>();
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
                for (int d = 0; d < DEPTH; d++)
#pragma unroll
                    for (int k = 0; k < N; k++) sum[d][k] += to_real<R>(v[u][d].v[k]);
        }
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int64_t at = token * width + first + 32 * d;
            if (first + 32 * d >= width) continue;
            V to;
            if (add) to = x[at];
#pragma unroll
            for (int k = 0; k < N; k++)
                to.v[k] = from_real<T>(add ? to_real<R>(to.v[k]) + sum[d][k] : sum[d][k]);
            store_whole(x + at, to);
        }
    }
}

template <typename T>
static __global__ void unpermute_elements(const T *y, T *x, const int64_t *row, int64_t n, int64_t width,
                                          int64_t copies, bool add) {
    typedef Real<T> R;
    GRID_LOOP(i, n) {
        const int64_t *from = row + i / width * copies;
        R sum = 0;
        for (int64_t j = 0; j < copies; j++)
            if (from[j] >= 0) sum += to_real<R>(y[from[j] * width + i % width]);
        x[i] = from_real<T>(add ? to_real<R>(x[i]) + sum : sum);
    }
}

extern "C" void cuda_unpermute(const Call *c) {
    enum { DEPTH = 2 };
    same_type(c->in[0], c->out[0]);
    if (tensor_count(c->out[0]))
        STORAGE_SWITCH(c->out[0]->dtype,
                       move_rows<T>(c, DEPTH, unpermute_vectors<T, DEPTH>, unpermute_elements<T>));
}

/* ---- scale ---- */

/* Loads one vector of a row in which `left` elements remain. `whole` is true if all vectors of the tensor are
 * complete and 16-byte aligned. `whole` is constant within a launch, so that there is no branch between the
 * loads of a thread. */
template <typename T>
__device__ __forceinline__ Vec<T, VEC<T>> load_part(const T *p, int64_t left, bool whole) {
    if (whole) return *(const Vec<T, VEC<T>> *)p;
    Vec<T, VEC<T>> v = zeros<T, VEC<T>>();
#pragma unroll
    for (int k = 0; k < VEC<T>; k++)
        if (k < left) v.v[k] = p[k];
    return v;
}
template <typename T>
__device__ __forceinline__ void store_part(T *p, const Vec<T, VEC<T>> &v, int64_t left, bool whole) {
    if (whole) {
        store_whole((Vec<T, VEC<T>> *)p, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < VEC<T>; k++)
        if (k < left) p[k] = v.v[k];
}

template <typename R> __device__ __forceinline__ R factor_of(const Cells &p, int64_t row, bool sigmoid) {
    const R x = p.get<R>(row);
    return sigmoid ? vector_sigmoid(x) : x;
}

template <typename T>
static __global__ void scale_rows(const T *x, Cells p, T *y, int64_t rows, int64_t width, bool sigmoid,
                                  bool whole) {
    typedef Real<T> R;
    enum { N = VEC<T>, DEPTH = 4, PART = 32 * DEPTH * N };
    const int64_t parts = (width + PART - 1) / PART;
    WARP_LOOP(item, rows * parts) {
        const int64_t row = item / parts, first = item % parts * PART + threadIdx.x % 32 * N;
        const R by = factor_of<R>(p, row, sigmoid);
        Vec<T, N> v[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int64_t at = first + 32 * N * d;
            if (at < width) v[d] = load_part(x + row * width + at, width - at, whole);
        }
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int64_t at = first + 32 * N * d;
            if (at >= width) continue;
#pragma unroll
            for (int k = 0; k < N; k++) v[d].v[k] = from_real<T>(to_real<R>(v[d].v[k]) * by);
            store_part(y + row * width + at, v[d], width - at, whole);
        }
    }
}

template <typename T> static void scale(const Call *c) {
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t rows = tensor_rows(x), width = tensor_width(x), parts = ceil_div(width, 128 * VEC<T>);
    scale_rows<T><<<grid_for(c, rows * parts, WARPS), 32 * WARPS, 0, stream_of(c)>>>(
        data_of<T>(x), cells(c->in[1]), data_of<T>(y), rows, width, ((const ScaleAttr *)c->attr)->sigmoid,
        whole_vectors(x, y));
    LAUNCHED();
}

extern "C" void cuda_scale_rows(const Call *c) {
    same_type(c->in[0], c->out[0]);
    if (tensor_count(c->out[0])) STORAGE_SWITCH(c->out[0]->dtype, scale<T>(c));
}

/* Each warp processes one row at a time. dp is a sum over the row, in an order that does not depend on the
 * position of the row. */
template <typename T>
static __global__ void scale_rows_grad(const T *dy, const T *x, Cells p, T *dx, Cells dp, int64_t rows,
                                       int64_t width, bool sigmoid, bool add, bool add_dp, bool whole) {
    typedef Real<T> R;
    enum { N = VEC<T>, DEPTH = 2 };
    WARP_LOOP(row, rows) {
        const R by = factor_of<R>(p, row, sigmoid);
        R dot = 0;
        for (int64_t first = threadIdx.x % 32 * N; first < width; first += 32 * N * DEPTH) {
            Vec<T, N> a[DEPTH], b[DEPTH], to[DEPTH];
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const int64_t at = first + 32 * N * d, where = row * width + at;
                a[d] = at < width ? load_part(dy + where, width - at, whole) : zeros<T, N>();
                b[d] = at < width && dp.data ? load_part(x + where, width - at, whole) : zeros<T, N>();
                if (at < width && dx && add) to[d] = load_part(dx + where, width - at, whole);
            }
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const int64_t at = first + 32 * N * d;
#pragma unroll
                for (int k = 0; k < N; k++) {
                    const R g = to_real<R>(a[d].v[k]);
                    dot += g * to_real<R>(b[d].v[k]);
                    to[d].v[k] = from_real<T>(add ? to_real<R>(to[d].v[k]) + g * by : g * by);
                }
                if (dx && at < width) store_part(dx + row * width + at, to[d], width - at, whole);
            }
        }
        if (!dp.data) continue;
        dot = warp_sum(dot);
        if (sigmoid) dot *= by * (1 - by);
        if (threadIdx.x % 32 == 0) dp.put_or_add(row, dot, add_dp);
    }
}

template <typename T> static void scale_grad(const Call *c) {
    const Tensor *dy = c->in[0], *x = c->in[1], *dx = c->out[0], *dp = c->out[1];
    const int64_t rows = tensor_rows(dy), width = tensor_width(dy);
    const bool whole = whole_vectors(dy, x) && (!dx || rows_are_aligned(dx));
    scale_rows_grad<T><<<grid_for(c, rows, WARPS), 32 * WARPS, 0, stream_of(c)>>>(
        data_of<T>(dy), data_of<T>(x), cells(c->in[2]), data_of<T>(dx), cells(dp), rows, width,
        ((const ScaleAttr *)c->attr)->sigmoid, accumulates(dx), accumulates(dp), whole);
    LAUNCHED();
}

extern "C" void cuda_scale_rows_grad(const Call *c) {
    same_type(c->in[0], c->in[1]);
    if (c->out[0]) same_type(c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, scale_grad<T>(c));
}
