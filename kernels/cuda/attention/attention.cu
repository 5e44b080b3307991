/* Computes the ops of kernels/cpu/attention.c with the same formulas for calls that cuDNN does not support. The kernels
 * in this file handle F64 and F32 with multiply-adds; attention_mma.cu handles 16-bit storage.
 *
 * The backward pass never adds results of different thread blocks: one pass over tiles of query rows computes
 * dq, and one pass over tiles of keys computes dk and dv. Each pass recomputes the probabilities from lse. A
 * thread block of the second pass processes the rows of its group's heads in order. Before both passes,
 * sum(dy * y) and the range of keys that each row attends to are written to scratch memory. y and lse are
 * written; dq, dk, dv and dbias are written or accumulated. */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/flash.cuh"

/* A tile has SIDE * N rows and SIDE * N keys. Each of the SIDE x SIDE threads computes N x N scores. Shared
 * memory holds CHUNK columns of the operands for a GEMM that sums over columns, and COLUMNS columns for a
 * GEMM that sums over keys or rows. */
enum { SIDE = 16, THREADS = SIDE * SIDE, CHUNK = 32, COLUMNS = 64, BLOCKS = HEAD_MOST / COLUMNS };
template <typename R> constexpr int EACH = sizeof(R) == 4 ? 4 : 2;
template <typename R> constexpr int TILE = SIDE *EACH<R>;

template <typename R> struct Shared {
    union {
        struct {
            R a[TILE<R>][CHUNK + 1], b[TILE<R>][CHUNK + 1];
        } factors;
        R x[TILE<R>][COLUMNS];
    };
    R weight[TILE<R>][TILE<R> + 1]; /* [row, key] */
    Range range[TILE<R>];
    uint64_t line[TILE<R>];
    int bias[TILE<R>];
    Span span;
};

/* Thread (ty, tx) computes rows ty * N + i and keys tx + SIDE * j of a tile. In each block of COLUMNS columns
 * of a result, the thread computes columns tx + SIDE * c. */
struct Place {
    int ty, tx;
};
__device__ static inline Place place() {
    Place x = {(int)threadIdx.x / SIDE, (int)threadIdx.x % SIDE};
    return x;
}
/* Returns the sum of x over the threads that share a row. */
template <typename R> __device__ static inline R row_sum(R x) {
    for (int k = SIDE / 2; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}

template <typename R> struct Scores { R x[EACH<R>][EACH<R>]; };
template <typename R> struct Sums { R x[EACH<R>][BLOCKS][COLUMNS / SIDE]; };

/* Computes the dot products out[i,j] of row i of tile a and row j of tile b. */
template <typename R>
__device__ static void dot(Shared<R> &m, const Lines &a, const Lines &b, int width, Scores<R> &out) {
    constexpr int N = EACH<R>;
    const Place at = place();
    out = {};
    for (int c0 = 0; c0 < width; c0 += CHUNK) {
        __syncthreads();
        for (int i = threadIdx.x; i < TILE<R> * CHUNK; i += THREADS) {
            const int l = i / CHUNK, c = i % CHUNK;
            m.factors.a[l][c] =
                l < a.n && c0 + c < width ? ((const R *)a.cells.data)[a.offset(l) + c0 + c] : 0;
            m.factors.b[l][c] =
                l < b.n && c0 + c < width ? ((const R *)b.cells.data)[b.offset(l) + c0 + c] : 0;
        }
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < CHUNK; c++) {
            R x[N], y[N];
            for (int i = 0; i < N; i++) x[i] = m.factors.a[at.ty * N + i][c];
            for (int j = 0; j < N; j++) y[j] = m.factors.b[at.tx + SIDE * j][c];
            for (int i = 0; i < N; i++)
                for (int j = 0; j < N; j++) out.x[i][j] += x[i] * y[j];
        }
    }
}

/* Sets m.weight to x. All threads must have finished reading the previous contents of m.weight. */
template <typename R> __device__ static void put_weight(Shared<R> &m, const Scores<R> &x) {
    const Place at = place();
#pragma unroll
    for (int i = 0; i < EACH<R>; i++)
        for (int j = 0; j < EACH<R>; j++) m.weight[at.ty * EACH<R> + i][at.tx + SIDE * j] = x.x[i][j];
}

/* out[row] += sum over keys of weight[row,key] * (the key's vector in x). If BY_KEY, out[key] += sum over rows
 * of weight[row,key] * (the row's vector in x). */
template <bool BY_KEY, typename R>
__device__ static void add_lines(Shared<R> &m, const Lines &x, int width, Sums<R> &out) {
    constexpr int N = EACH<R>;
    const Place at = place();
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
        if (block * COLUMNS >= width) continue;
        __syncthreads();
        for (int i = threadIdx.x; i < TILE<R> * COLUMNS; i += THREADS) {
            const int l = i / COLUMNS, c = i % COLUMNS, column = block * COLUMNS + c;
            m.x[l][c] = l < x.n && column < width ? ((const R *)x.cells.data)[x.offset(l) + column] : 0;
        }
        __syncthreads();
#pragma unroll 4
        for (int l = 0; l < TILE<R>; l++) {
            R w[N], v[COLUMNS / SIDE];
            for (int i = 0; i < N; i++)
                w[i] = BY_KEY ? m.weight[l][at.ty * N + i] : m.weight[at.ty * N + i][l];
            for (int c = 0; c < COLUMNS / SIDE; c++) v[c] = m.x[l][at.tx + SIDE * c];
            for (int i = 0; i < N; i++)
                for (int c = 0; c < COLUMNS / SIDE; c++) out.x[i][block][c] += w[i] * v[c];
        }
    }
    __syncthreads();
}

/* Multiplies the sums of each row i of a tile by factor[i], and writes or adds the products to row i of
 * `to`. */
template <typename R>
__device__ static void store(const Lines &to, bool add, const Sums<R> &sums, int width,
                             const R (&factor)[EACH<R>]) {
    const Place at = place();
#pragma unroll
    for (int i = 0; i < EACH<R>; i++) {
        const int l = at.ty * EACH<R> + i;
        if (l >= to.n) continue;
        const int64_t row = to.offset(l);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
#pragma unroll
            for (int c = 0; c < COLUMNS / SIDE; c++) {
                const int column = block * COLUMNS + at.tx + SIDE * c;
                if (column < width) to.cells.put_or_add(row + column, factor[i] * sums.x[i][block][c], add);
            }
    }
}

/* ---- the rows and keys of a block ---- */

template <typename R> __device__ static bool sees(const Shared<R> &m, int row, int key) {
    return key >= m.range[row].lo && key < m.range[row].hi;
}
template <typename R>
__device__ static void find_lines(const Flash &p, int64_t sample, int64_t group, int row0, Shared<R> &m) {
    const int row = row0 + (int)threadIdx.x;
    if (p.drops && threadIdx.x < TILE<R>)
        m.line[threadIdx.x] = row < p.rows ? drop_line(p, sample, group, row) : 0;
    if (p.biased && threadIdx.x < TILE<R>) m.bias[threadIdx.x] = row < p.rows ? bias_line(p, group, row) : 0;
}

template <typename R> __device__ static R bias_of(const Flash &p, const Shared<R> &m, int row, int key) {
    return p.biased ? ((const R *)p.bias)[m.bias[row] + slice_position(&p.key, key)] : 0;
}

/* Adds a tile's score gradients (m.weight) to the sums for each row and bucket. Each thread processes one
 * row. */
template <typename R>
__device__ static void add_to_buckets(const Flash &p, const Shared<R> &m, int64_t pair, int row0, int key0) {
    const int i = threadIdx.x, n = p.t - key0 < TILE<R> ? p.t - key0 : TILE<R>;
    __syncthreads();
    if (i >= TILE<R> || row0 + i >= p.rows) return;
    R *to = (R *)p.bias_sums + (pair * p.rows + row0 + i) * p.buckets, sum = 0;
    int last = -1;
    for (int j = 0; j < n; j++) {
        const int bucket = p.bucket[m.bias[i] + slice_position(&p.key, key0 + j)];
        if (bucket != last) {
            if (last >= 0) to[last] += sum;
            last = bucket, sum = 0;
        }
        sum += m.weight[i][j];
    }
    if (last >= 0) to[last] += sum;
}

/* Sets m.weight to the tile's dropout factors. No barrier is needed afterwards, because each thread reads only
 * the factors that it computed. */
template <typename R> __device__ static void draw(const Flash &p, Shared<R> &m, int key0) {
    const Place at = place();
#pragma unroll 1
    for (int i = 0; i < EACH<R> * EACH<R>; i++) {
        const int row = at.ty * EACH<R> + i / EACH<R>, column = at.tx + i % EACH<R> * SIDE,
                  key = key0 + column;
        m.weight[row][column] = key < p.t && is_kept(p, m.line[row], key) ? (R)p.drop.scale : 0;
    }
}
template <typename R> __device__ static R drawn(const Flash &p, const Shared<R> &m, int i, int j) {
    const Place at = place();
    return p.drops ? m.weight[at.ty * EACH<R> + i][at.tx + SIDE * j] : 1;
}

template <typename R> __device__ static R capped(const Flash &p, R x) {
    return (R)p.cap * tanh((R)p.scale * x / (R)p.cap);
}

/* Replaces each score with exp(score - largest score of the row so far). The caller must then multiply sums
 * over previous tiles by `shrink`. */
template <typename R>
__device__ static void softmax(const Flash &p, const Shared<R> &m, int key0, Scores<R> &score,
                               R (&top)[EACH<R>], R (&sum)[EACH<R>], R (&shrink)[EACH<R>]) {
    constexpr int N = EACH<R>;
    const Place at = place();
#pragma unroll
    for (int i = 0; i < N; i++) {
        R most = top[i];
        for (int j = 0; j < N; j++) {
            R &x = score.x[i][j];
            const int row = at.ty * N + i, key = key0 + at.tx + SIDE * j;
            x = !sees(m, row, key) ? -(R)INFINITY
                : p.cap == 0       ? (R)p.scale * x + bias_of(p, m, row, key)
                                   : capped(p, x);
            most = x > most ? x : most;
        }
        for (int k = SIDE / 2; k > 0; k /= 2) {
            const R other = __shfl_xor_sync(0xffffffffu, most, k);
            most = other > most ? other : most;
        }
        const R base = most == -(R)INFINITY ? 0 : most;
        shrink[i] = exp(top[i] - base);
        sum[i] *= shrink[i], top[i] = most;
        for (int j = 0; j < N; j++) {
            const R e = exp(score.x[i][j] - base);
            score.x[i][j] = e * drawn(p, m, i, j), sum[i] += e;
        }
    }
}

/* ---- forward ---- */

template <typename R> static __global__ void __launch_bounds__(THREADS) forward(const Flash p, int tiles) {
    constexpr int N = EACH<R>;
    __shared__ Shared<R> m;
    const Place at = place();
    /* With a causal mask, a tile's work grows with its index, so the tiles with the most work start first. */
    const int pair = (int)blockIdx.x / tiles, row0 = (tiles - 1 - (int)blockIdx.x % tiles) * TILE<R>;
    const int64_t sample = pair / p.g, group = pair % p.g;
    find_lines(p, sample, group, row0, m);
    find_ranges(p, sample, row0, TILE<R>, m.range, &m.span);
    const Lines q = query_lines(p, p.q, sample, group, row0, TILE<R>);
    Sums<R> y = {};
    R top[N], sum[N] = {}, shrink[N];
    for (int i = 0; i < N; i++) top[i] = -(R)INFINITY;
    for (int key0 = m.span.begin / TILE<R> * TILE<R>; key0 < m.span.end; key0 += TILE<R>) {
        Scores<R> score;
        dot(m, q, key_lines(p, p.k, sample, group, key0, TILE<R>), p.d, score);
        if (p.drops) draw(p, m, key0);
        softmax(p, m, key0, score, top, sum, shrink);
#pragma unroll
        for (int i = 0; i < N; i++)
            for (int block = 0; block < BLOCKS; block++)
                for (int c = 0; c < COLUMNS / SIDE; c++) y.x[i][block][c] *= shrink[i];
        put_weight(m, score);
        add_lines<false>(m, key_lines(p, p.v, sample, group, key0, TILE<R>), p.e, y);
    }
    R factor[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const R all = row_sum(sum[i]);
        const int row = row0 + at.ty * N + i;
        factor[i] = all == 0 ? 0 : 1 / all;
        if (at.tx == 0 && row < p.rows)
            p.lse.put((int64_t)pair * p.rows + row, all == 0 ? -(R)INFINITY : top[i] + log(all));
    }
    store(query_lines(p, p.y, sample, group, row0, TILE<R>), p.y.add, y, p.e, factor);
}

/* ---- backward ---- */

/* Each thread block processes one tile of rows of a sample. */
static __global__ void range_of_rows(const Flash p) {
    __shared__ Range range[64];
    __shared__ Span span;
    const int64_t sample = blockIdx.x / p.tiles;
    const int tile = (int)blockDim.x, row0 = (int)(blockIdx.x % p.tiles) * tile,
              row = row0 + (int)threadIdx.x;
    find_ranges(p, sample, row0, tile, range, &span);
    if (row < p.rows) p.range[sample * p.rows + row] = range[threadIdx.x];
    if (threadIdx.x == 0) p.span[blockIdx.x] = span;
}

/* Each warp computes RowSums of one row. `unit` converts natural logarithms to the kernel's logarithms. */
template <typename R> static __global__ void sums_of_rows(const Flash p, int64_t n, R unit) {
    const int lane = threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * (blockDim.x / 32);
    for (int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < n; i += warps) {
        const int64_t pair = i / p.rows, sample = pair / p.g, group = pair % p.g;
        const int row = (int)(i % p.rows);
        const int64_t y = query_lines(p, p.y, sample, group, row, 1).offset(0),
                      dy = query_lines(p, p.dy, sample, group, row, 1).offset(0);
        R sum = 0;
        for (int c = lane; c < p.e; c += 32) sum += p.dy.cells.get<R>(dy + c) * p.y.cells.get<R>(y + c);
        sum = warp_sum(sum);
        const R lse = p.lse.get<R>(i);
        const RowSums<R> x = {lse == -(R)INFINITY ? 0 : lse * unit, sum};
        if (lane == 0) ((RowSums<R> *)p.sums)[i] = x;
    }
}

/* Replaces each score in `prob` with its probability, and each dy . v in `ds` with the gradient of the score
 * without the factor `scale`. With dropout, prob becomes the factor by which dy is multiplied in the sum for
 * dv. */
template <typename R>
__device__ static void gradient_of_scores(const Flash &p, const Shared<R> &m, const RowSums<R> *sums,
                                          int rows, int key0, Scores<R> &prob, Scores<R> &ds) {
    constexpr int N = EACH<R>;
    const Place at = place();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int row = at.ty * N + i;
        const RowSums<R> of = row < rows ? sums[row] : RowSums<R>{0, 0};
        for (int j = 0; j < N; j++) {
            const int key = key0 + at.tx + SIDE * j;
            R e = 0, slope = 1;
            if (sees(m, row, key) && p.cap == 0)
                e = exp((R)p.scale * prob.x[i][j] + bias_of(p, m, row, key) - of.base);
            if (sees(m, row, key) && p.cap != 0) {
                const R x = capped(p, prob.x[i][j]), t = x / (R)p.cap;
                e = exp(x - of.base), slope = 1 - t * t;
            }
            const R factor = drawn(p, m, i, j);
            ds.x[i][j] = e * (factor * ds.x[i][j] - of.delta);
            if (p.cap != 0) ds.x[i][j] *= slope;
            prob.x[i][j] = e * factor;
        }
    }
}

template <typename R> static __global__ void __launch_bounds__(THREADS) backward_rows(const Flash p) {
    constexpr int N = EACH<R>;
    __shared__ Shared<R> m;
    const int pair = (int)blockIdx.x / p.tiles, row0 = (p.tiles - 1 - (int)blockIdx.x % p.tiles) * TILE<R>;
    const int64_t sample = pair / p.g, group = pair % p.g;
    find_lines(p, sample, group, row0, m);
    find_ranges(p, sample, row0, TILE<R>, m.range, &m.span);
    const Lines q = query_lines(p, p.q, sample, group, row0, TILE<R>),
                dy = query_lines(p, p.dy, sample, group, row0, TILE<R>);
    const RowSums<R> *sums = (const RowSums<R> *)p.sums + (int64_t)pair * p.rows + row0;
    Sums<R> dq = {};
    for (int key0 = m.span.begin / TILE<R> * TILE<R>; key0 < m.span.end; key0 += TILE<R>) {
        Scores<R> prob, ds;
        const Lines k = key_lines(p, p.k, sample, group, key0, TILE<R>);
        dot(m, q, k, p.d, prob);
        dot(m, dy, key_lines(p, p.v, sample, group, key0, TILE<R>), p.e, ds);
        if (p.drops) draw(p, m, key0);
        gradient_of_scores(p, m, sums, q.n, key0, prob, ds);
        put_weight(m, ds);
        if (p.bias_sums) add_to_buckets(p, m, pair, row0, key0);
        if (p.dq.cells.data) add_lines<false>(m, k, p.d, dq);
    }
    if (!p.dq.cells.data) return;
    R factor[N];
    for (int i = 0; i < N; i++) factor[i] = (R)p.scale;
    store(query_lines(p, p.dq, sample, group, row0, TILE<R>), p.dq.add, dq, p.d, factor);
}

template <typename R>
static __global__ void __launch_bounds__(THREADS) backward_keys(const Flash p, int tiles) {
    constexpr int N = EACH<R>;
    __shared__ Shared<R> m;
    const int pair = (int)blockIdx.x / tiles, key0 = (int)blockIdx.x % tiles * TILE<R>;
    const int64_t sample = pair / p.g, group = pair % p.g;
    const Lines k = key_lines(p, p.k, sample, group, key0, TILE<R>),
                v = key_lines(p, p.v, sample, group, key0, TILE<R>);
    Sums<R> dk = {}, dv = {};
    for (int tile = 0; tile < p.tiles; tile++) {
        const Span span = p.span[sample * p.tiles + tile];
        const int row0 = tile * TILE<R>, row = row0 + (int)threadIdx.x;
        if (span.begin >= key0 + TILE<R> || span.end <= key0) continue;
        find_lines(p, sample, group, row0, m);
        if (threadIdx.x < TILE<R>)
            m.range[threadIdx.x] = row < p.rows ? p.range[sample * p.rows + row] : Range{0, 0};
        Scores<R> prob, ds;
        const Lines q = query_lines(p, p.q, sample, group, row0, TILE<R>),
                    dy = query_lines(p, p.dy, sample, group, row0, TILE<R>);
        dot(m, q, k, p.d, prob);
        dot(m, dy, v, p.e, ds);
        if (p.drops) draw(p, m, key0);
        gradient_of_scores(p, m, (const RowSums<R> *)p.sums + (int64_t)pair * p.rows + row0, q.n, key0, prob,
                           ds);
        put_weight(m, prob);
        add_lines<true>(m, dy, p.e, dv);
        put_weight(m, ds);
        add_lines<true>(m, q, p.d, dk);
    }
    R one[N], scale[N];
    for (int i = 0; i < N; i++) one[i] = 1, scale[i] = (R)p.scale;
    if (p.dk.cells.data) store(key_lines(p, p.dk, sample, group, key0, TILE<R>), p.dk.add, dk, p.d, scale);
    if (p.dv.cells.data) store(key_lines(p, p.dv, sample, group, key0, TILE<R>), p.dv.add, dv, p.e, one);
}

/* ---- the ops ---- */

static Flash forward_of(const Call *c) {
    return flash_of(c, c->in[0], c->in[1], c->in[2], c->in[3], c->in[4], c->in[5]);
}

size_t attention_scratch(const Call *c) {
    Flash p = forward_of(c);
    return place_bias(&p, (DType)c->in[0]->dtype, false, NULL);
}

extern "C" void cuda_attention(const Call *c) {
    if (attention_cudnn(c)) return;
    const Tensor *q = c->in[0];
    Flash p = forward_of(c);
    if (!tensor_count(c->out[1])) return;
    if (p.biased) {
        place_bias(&p, (DType)q->dtype, false, (char *)cuda_scratch(c->device, attention_scratch(c)));
        tabulate_bias(c, &p, c->in[5]);
    }
    p.y = heads_of(c->out[0]), p.lse = cells(c->out[1]);
    if (dtype_is_16bit((DType)q->dtype)) {
        attention_mma(c, &p);
        return;
    }
    REAL_SWITCH(q->dtype, const int64_t tiles = ceil_div(p.rows, TILE<R>);
                forward<R><<<blocks_of(p, tiles), THREADS, 0, stream_of(c)>>>(p, (int)tiles));
    LAUNCHED();
}

/* Sets the pointers to the parts of the scratch memory, and returns the size of this memory in bytes.
 * `gradient` is true if the gradient of a bias is needed. */
static size_t place_scratch(Flash *p, DType dtype, bool gradient, char *memory) {
    const size_t rows = (size_t)p->rows, real = dtype == F64 ? sizeof(double) : sizeof(float);
    const size_t sizes[] = {(size_t)p->b * p->g * rows * 2 * real, (size_t)p->b * rows * sizeof(Range),
                            (size_t)p->b * p->tiles * sizeof(Span)};
    size_t at[4] = {0};
    for (int i = 0; i < 3; i++) at[i + 1] = at[i] + (sizes[i] + 255) / 256 * 256;
    p->sums = memory, p->range = (Range *)(memory + at[1]), p->span = (Span *)(memory + at[2]);
    return at[3] + place_bias(p, dtype, gradient, memory + at[3]);
}

static Flash gradient_of(const Call *c) {
    const Tensor *q = c->in[1], *dy = c->in[0];
    Flash p = flash_of(c, q, c->in[2], c->in[3], c->in[6], c->in[7], c->in[8]);
    CHECK(dy->dtype == q->dtype, "attention_grad: dy is %s, but q is %s", dtype_name((DType)dy->dtype),
          dtype_name((DType)q->dtype));
    p.dy = heads_of(dy), p.y = heads_of(c->in[4]), p.lse = cells(c->in[5]);
    p.dq = heads_of(c->out[0]), p.dk = heads_of(c->out[1]), p.dv = heads_of(c->out[2]);
    p.tiles = (int)ceil_div(p.rows, gradient_tile((DType)q->dtype));
    return p;
}

size_t attention_grad_scratch(const Call *c) {
    Flash p = gradient_of(c);
    return place_scratch(&p, (DType)c->in[1]->dtype, c->out[3], NULL);
}

template <typename R> static void gradient(const Call *c, const Flash &p) {
    const unsigned tiles = (unsigned)ceil_div(p.t, TILE<R>);
    if (p.bias_sums)
        CUDA_CHECK(cudaMemsetAsync(p.bias_sums, 0, (size_t)p.b * p.g * p.rows * p.buckets * sizeof(R),
                                   stream_of(c)));
    if ((p.dq.cells.data || p.bias_sums) && p.rows)
        backward_rows<R><<<blocks_of(p, p.tiles), THREADS, 0, stream_of(c)>>>(p);
    LAUNCHED();
    if ((p.dk.cells.data || p.dv.cells.data) && tiles)
        backward_keys<R><<<blocks_of(p, tiles), THREADS, 0, stream_of(c)>>>(p, (int)tiles);
    LAUNCHED();
}

extern "C" void cuda_attention_grad(const Call *c) {
    if (attention_grad_cudnn(c)) return;
    const DType dtype = (DType)c->in[1]->dtype;
    Flash p = gradient_of(c);
    const int64_t n = (int64_t)p.b * p.g * p.rows;
    place_scratch(&p, dtype, c->out[3], (char *)cuda_scratch(c->device, attention_grad_scratch(c)));
    tabulate_bias(c, &p, c->in[8]);
    if (n) {
        CHECK((int64_t)p.b * p.tiles <= INT32_MAX, "attention_grad: %d samples of %d rows are too many", p.b,
              p.rows);
        range_of_rows<<<(unsigned)(p.b * p.tiles), gradient_tile(dtype), 0, stream_of(c)>>>(p);
        LAUNCHED();
        const double unit = dtype_is_16bit(dtype) ? LOG2_E : 1;
        REAL_SWITCH(dtype, sums_of_rows<R><<<grid_for(c, n, 8), 256, 0, stream_of(c)>>>(p, n, (R)unit));
        LAUNCHED();
    }
    if (p.b && p.g) {
        if (dtype_is_16bit(dtype))
            attention_grad_mma(c, &p);
        else
            REAL_SWITCH(dtype, gradient<R>(c, p));
    }
    sum_bias_gradients(c, &p, c->out[3]);
}
