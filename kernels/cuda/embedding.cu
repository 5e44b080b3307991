/* Computes the ops of kernels/cpu/embedding.c. The gradient of a table row is the sum over the tokens that select the
 * row, in the order [b,s]. Tokens are sorted by row, and the sorted list is divided into chunks of equal length. A run
 * is a sequence of tokens with equal rows, and a block sums the runs that end in its chunk. If a run continues in the
 * next chunk, its partial sum is written to scratch memory for the block where the run ends. The work is therefore
 * proportional to the number of tokens, and many blocks share the work on a row that most tokens use. */
#include <cub/device/device_merge_sort.cuh>

#include "kernels/cuda/pdl.cuh"

/* The ids of a call, and the range of ids in this rank's table. */
struct Ids {
    const int64_t *id; /* [b,s] */
    int64_t b, s;
    int64_t first, rows, total;
    DeviceAssert *failure;
    const char *message;

    /* Returns a token's row in this rank's table, or -1 if the row is on another rank. */
    __device__ __forceinline__ int64_t row(int64_t token) const {
        const int64_t at = id[token] - first;
        return at >= 0 && at < rows ? at : -1;
    }
    __device__ __forceinline__ void check(int64_t token) const {
        if (id[token] < 0 || id[token] >= total) raise_assert(failure, message, id[token], token);
    }
    /* Returns the row of a token in [s,b,h]. */
    __device__ __forceinline__ int64_t place(int64_t token) const { return token % s * b + token / s; }
};

static Ids ids_in(const Call *c, const Tensor *id, const Tensor *table) {
    const EmbeddingAttr *a = (const EmbeddingAttr *)c->attr;
    const Ids o = {ids_of(id),
                   id->dim[0],
                   id->dim[1],
                   a->first,
                   table->dim[0],
                   a->total,
                   cuda_of(c->device)->failure,
                   "embedding: id %lld of token %lld is outside the table"};
    return o;
}

/* ---- forward: rows are copied in units of `U` ---- */

enum { THREADS = 256 };

template <typename U>
static __global__ void __launch_bounds__(THREADS) gather(Ids o, const U *w, U *y, int64_t units) {
    start_pdl();
    for (int64_t r = blockIdx.x; r < o.b * o.s; r += gridDim.x) {
        const int64_t token = r % o.b * o.s + r / o.b, row = o.row(token);
        const U *from = w + row * units;
        U *to = y + r * units;
        if (threadIdx.x == 0) o.check(token);
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < units; i += blockDim.x) {
            U x = {};
            if (row >= 0) x = from[i];
            to[i] = x;
        }
    }
}

template <typename U> static void run_gather(const Call *c, size_t row_bytes) {
    const Tensor *w = c->in[1], *y = c->out[0];
    const int64_t units = (int64_t)(row_bytes / sizeof(U)), tokens = tensor_count(c->in[0]);
    const int threads = units < THREADS ? (int)ceil_div(units, 32) * 32 : THREADS;
    launch_pdl(c, grid_for(c, tokens, 1), threads, 0, gather<U>, ids_in(c, c->in[0], w), data_of<U>(w),
               data_of<U>(y), units);
}

extern "C" void cuda_embedding(const Call *c) {
    const Tensor *w = c->in[1], *y = c->out[0];
    const size_t bytes = (size_t)w->dim[1] * dtype_size((DType)w->dtype);
    CHECK(w->dtype == y->dtype, "embedding: the table is %s, but y is %s", dtype_name((DType)w->dtype),
          dtype_name((DType)y->dtype));
    if (!tensor_count(y)) return;
    if (bytes % 16 == 0 && aligned_16(w->data) && aligned_16(y->data))
        run_gather<uint4>(c, bytes);
    else if (dtype_size((DType)w->dtype) == 2)
        run_gather<uint16_t>(c, bytes);
    else
        run_gather<uint32_t>(c, bytes);
}

/* ---- backward ---- */

/* A token's key is row << 32 | token. Keys are unique, so every sorting algorithm produces the same order.
 * Tokens whose rows are on other ranks come last. */
enum : int64_t { NO_ROW = UINT32_MAX };

static __global__ void write_keys(Ids o, uint64_t *key, int64_t tokens) {
    start_pdl();
    GRID_LOOP(i, tokens) {
        const int64_t row = o.row(i);
        o.check(i);
        key[i] = (uint64_t)(row < 0 ? (int64_t)NO_ROW : row) << 32 | (uint64_t)i;
    }
}

struct Before {
    __device__ __forceinline__ bool operator()(uint64_t a, uint64_t b) const { return a < b; }
};

struct Scatter {
    Ids ids;
    const uint64_t *key;
    int tokens, chunk;
    int64_t width;
    Cells dw;
    bool add, wide; /* wide: dw has the arithmetic type and allows vector accesses */

    __device__ __forceinline__ int64_t row(int i) const { return (int64_t)(key[i] >> 32); }
    __device__ __forceinline__ bool goes_on(int end) const {
        return end < tokens && row(end) == row(end - 1);
    }
    /* Returns the end of the run that contains token `begin` of the sorted list, but at most `end`. */
    __device__ __forceinline__ int run_end(int begin, int end) const {
        const int64_t r = row(begin);
        int i = begin + 1;
        while (i < end && row(i) == r) i++;
        return i;
    }
};

/* The sum of one run in a thread's columns [column, column + N). */
template <typename T, int N> struct RunSum {
    typedef Real<T> R;
    Vec<R, N> sum, old;

    /* The constructor loads the elements to which the sum will be added, so that the load overlaps with the
     * summation. */
    __device__ __forceinline__ RunSum(const Scatter &o, int64_t row, int64_t column, bool to_dw) {
#pragma unroll
        for (int e = 0; e < N; e++) sum.v[e] = old.v[e] = 0;
        if (to_dw && o.wide && o.add)
            old = *(const Vec<R, N> *)((const R *)o.dw.data + row * o.width + column);
    }
    __device__ __forceinline__ void add(const Scatter &o, const T *dy, int64_t column, int begin, int end) {
        enum { UNROLL = 4 };
        for (int i = begin; i < end; i += UNROLL) {
            Vec<T, N> v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u < end)
                    v[u] = *(const Vec<T, N> *)(dy + o.ids.place((uint32_t)o.key[i + u]) * o.width + column);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u < end)
#pragma unroll
                    for (int e = 0; e < N; e++) sum.v[e] += to_real<R>(v[u].v[e]);
        }
    }
    __device__ __forceinline__ void write(const Scatter &o, int64_t row, int64_t column) {
        const int64_t at = row * o.width + column;
        if (o.wide) {
#pragma unroll
            for (int e = 0; e < N; e++) sum.v[e] = o.add ? old.v[e] + sum.v[e] : sum.v[e];
            *(Vec<R, N> *)((R *)o.dw.data + at) = sum;
        } else {
            for (int e = 0; e < N; e++) o.dw.put_or_add(at + e, sum.v[e], o.add);
        }
    }
};

/* Block (x, y) processes the tokens of chunk x and the columns of tile y. A block sums all runs in its chunk,
 * except a run that began in an earlier chunk and ends in this chunk. */
enum { COLUMN_THREADS = 128 };
template <typename T, int N>
static __global__ void __launch_bounds__(COLUMN_THREADS) sum_runs(Scatter o, const T *dy, Real<T> *rest) {
    const int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    int i = (int)blockIdx.x * o.chunk;
    const int end = o.tokens - i < o.chunk ? o.tokens : i + o.chunk;
    start_pdl();
    if (column >= o.width) return;
    if (i && o.goes_on(i)) {
        const int run = o.run_end(i, end);
        if (run < end || !o.goes_on(end)) i = run;
    }
    while (i < end && o.row(i) != NO_ROW) {
        const int run = o.run_end(i, end);
        const bool ends = run < end || !o.goes_on(end);
        const int64_t row = o.row(i);
        RunSum<T, N> sum(o, row, column, ends);
        sum.add(o, dy, column, i, run);
        if (ends)
            sum.write(o, row, column);
        else
            *(Vec<Real<T>, N> *)(rest + blockIdx.x * o.width + column) = sum.sum;
        i = run;
    }
}

/* Sums the runs that begin in one chunk and end in another. */
template <typename T, int N>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    sum_chunks(Scatter o, const T *dy, const Real<T> *rest) {
    const int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    const int begin = (int)blockIdx.x * o.chunk,
              end = o.tokens - begin < o.chunk ? o.tokens : begin + o.chunk;
    start_pdl();
    if (column >= o.width || begin == 0 || !o.goes_on(begin)) return;
    const int64_t row = o.row(begin);
    const int run = o.run_end(begin, end);
    if (row == NO_ROW || (run == end && o.goes_on(end))) return;
    int from = 0; /* becomes the start of the run that contains `begin` */
    for (int to = begin; from < to;) {
        const int middle = from + (to - from) / 2;
        if (o.row(middle) < row)
            from = middle + 1;
        else
            to = middle;
    }
    RunSum<T, N> sum(o, row, column, true);
#pragma unroll 8
    for (int k = from / o.chunk; k < (int)blockIdx.x; k++) {
        const Vec<Real<T>, N> part = *(const Vec<Real<T>, N> *)(rest + k * o.width + column);
        for (int e = 0; e < N; e++) sum.sum.v[e] += part.v[e];
    }
    sum.add(o, dy, column, begin, run);
    sum.write(o, row, column);
}

/* The layout of the scratch memory. Chunks are short, so that many blocks share the work, but there are at
 * most MOST_CHUNKS chunks. */
struct ScatterPlan {
    int tokens, chunk, chunks;
    size_t keys, sort, rest; /* sizes in bytes */
};

static ScatterPlan scatter_plan(const Call *c) {
    enum { SHORTEST = 16, MOST_CHUNKS = 1024 };
    const int64_t n = tensor_count(c->in[1]), chunk = ceil_div(n, MOST_CHUNKS);
    ScatterPlan p = {};
    CHECK(n <= INT32_MAX && c->out[0]->dim[0] < NO_ROW,
          "embedding_grad: there are %lld tokens and %lld rows, but the GPU's kernel supports at most 2^31 - "
          "1 and 2^32 - 2",
          (long long)n, (long long)c->out[0]->dim[0]);
    p.tokens = (int)n;
    p.chunk = (int)(chunk < SHORTEST ? SHORTEST : chunk);
    p.chunks = (int)ceil_div(n, p.chunk);
    CUDA_CHECK(cub::DeviceMergeSort::SortKeys(NULL, p.sort, (uint64_t *)NULL, p.tokens, Before()));
    p.keys = (size_t)n * sizeof(uint64_t);
    p.rest =
        (size_t)(p.chunks * c->out[0]->dim[1]) * (c->in[0]->dtype == F64 ? sizeof(double) : sizeof(float));
    p.keys = (p.keys + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    p.sort = (p.sort + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    return p;
}

template <typename T, int N> static void scatter(const Call *c, const ScatterPlan &p, Scatter o, void *rest) {
    const int64_t vectors = o.width / N;
    const int threads = vectors < COLUMN_THREADS ? (int)ceil_div(vectors, 32) * 32 : COLUMN_THREADS;
    const dim3 grid((unsigned)p.chunks, (unsigned)ceil_div(vectors, threads));
    o.wide = sizeof(Real<T>) == dtype_size((DType)o.dw.dtype) &&
             (uintptr_t)o.dw.data % sizeof(Vec<Real<T>, N>) == 0;
    launch_pdl(c, grid, threads, 0, sum_runs<T, N>, o, data_of<T>(c->in[0]), (Real<T> *)rest);
    launch_pdl(c, grid, threads, 0, sum_chunks<T, N>, o, data_of<T>(c->in[0]), (const Real<T> *)rest);
}

extern "C" size_t cuda_plans_embedding_grad(const Call *c) {
    if (!tensor_count(c->in[0])) return 0;
    const ScatterPlan p = scatter_plan(c);
    return p.keys + p.sort + p.rest;
}

extern "C" void cuda_embedding_grad(const Call *c) {
    const Tensor *dy = c->in[0], *dw = c->out[0];
    const bool add = accumulates(dw);
    if (!add) CUDA_CHECK(cudaMemsetAsync(dw->data, 0, tensor_bytes(dw), stream_of(c)));
    if (!tensor_count(dy)) return;
    ScatterPlan p = scatter_plan(c);
    char *keys = (char *)cuda_scratch(c->device, p.keys + p.sort + p.rest), *sort = keys + p.keys,
         *rest = sort + p.sort;
    const Scatter o = {
        ids_in(c, c->in[1], dw), (const uint64_t *)keys, p.tokens, p.chunk, dw->dim[1], cells(dw), add};
    launch_pdl(c, grid_for(c, p.tokens, THREADS), THREADS, 0, write_keys, o.ids, (uint64_t *)keys, p.tokens);
    CUDA_CHECK(
        cub::DeviceMergeSort::SortKeys(sort, p.sort, (uint64_t *)keys, p.tokens, Before(), stream_of(c)));
    STORAGE_SWITCH(dy->dtype, if (rows_are_aligned(dy)) scatter<T, VEC<T>>(c, p, o, rest);
                   else scatter<T, 1>(c, p, o, rest));
}
