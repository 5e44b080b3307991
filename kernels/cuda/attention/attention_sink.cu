/* Computes the ops of kernels/cpu/attention_sink.c, which contains the formulas. attention_sink reads and
 * writes each element of y once, in place if input and output are the same tensor. attention_sink_grad reads
 * dy and y once. Each of n blocks sums the rows of some heads at every n-th position of a sample. The blocks'
 * sums are then added in order, sample by sample. y and lse are written; dsink is written or accumulated. */
#include "kernels/cuda/common.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    UNROLL = 4 /* number of rows that a thread loads concurrently */
};

/* The shape of y [s,b,g,r,width]. A row has `vectors` vectors of N elements, and is processed by 2^share
 * threads. */
struct Shape {
    unsigned lines, s, b, heads, r; /* lines: number of rows, s * b * heads */
    int vectors, share;
    int64_t first_local;
};

static Shape shape_of(const Call *c, const Tensor *y, int n) {
    const int64_t lines = tensor_rows(y), width = tensor_width(y);
    CHECK(lines <= INT32_MAX && width <= INT32_MAX,
          "attention sinks: y has %lld rows of %lld elements, which are too many", (long long)lines,
          (long long)width);
    Shape x = {(unsigned)lines,
               (unsigned)y->dim[0],
               (unsigned)y->dim[1],
               (unsigned)(y->dim[2] * y->dim[3]),
               (unsigned)y->dim[3],
               (int)(width / n),
               0,
               0};
    x.first_local = ((const AttentionAttr *)c->attr)->first_local;
    while (x.share < 5 && 1 << x.share < x.vectors) x.share++;
    return x;
}

/* The log-sum-exp of a row including the sink, and the factor by which the row of y is multiplied. */
template <typename R> struct Sunk {
    R lse, weight;

    __device__ __forceinline__ Sunk(R keys, R sink) {
        const R less = exp(-fabs(keys - sink));
        lse = (keys < sink ? sink : keys) + log1p(less);
        weight = (keys < sink ? less : (R)1) / (1 + less);
    }
};

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    add_sinks(Shape x, const T *y, const Real<T> *lse, Cells sink, T *y_out, Real<T> *lse_out) {
    typedef Real<T> R;
    const int size = 1 << x.share;
    const unsigned lane = threadIdx.x % 32, first = lane & ~(unsigned)(size - 1),
                   team = (size < 32 ? (1u << size) - 1 : ~0u) << first;
    GRID_LOOP(i, (int64_t)x.lines << x.share) {
        const unsigned line = (unsigned)(i >> x.share), token = line / x.heads, head = line % x.heads;
        const int64_t at = (int64_t)line * x.vectors;
        int v = (int)(lane - first);
        Vec<T, N> row = {};
        if (v < x.vectors) row = ((const Vec<T, N> *)y)[at + v];
        R weight = 0;
        if (lane == first) {
            const int64_t k = ((int64_t)(token % x.b) * x.heads + head) * x.s + token / x.b;
            const Sunk<R> sunk(lse[k], sink.get<R>(x.first_local + head));
            lse_out[k] = sunk.lse, weight = sunk.weight;
        }
        weight = __shfl_sync(team, weight, (int)first);
        while (v < x.vectors) {
#pragma unroll
            for (int k = 0; k < N; k++) row.v[k] = from_real<T>(weight * to_real<R>(row.v[k]));
            ((Vec<T, N> *)y_out)[at + v] = row;
            v += size;
            if (v < x.vectors) row = ((const Vec<T, N> *)y)[at + v];
        }
    }
}

/* Strides of the gradient's rows, in elements: between positions, between samples, between groups, and
 * between heads of a group. */
struct Strides {
    int64_t of[4];
};

/* Computes part[sample, blockIdx.x, head], the sum over this block's positions in the sample. Each team of
 * the block processes rows of one head. Consecutive teams process consecutive heads. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    sum_positions(Shape x, const T *dy, Strides strides, const T *y, const Real<T> *lse, Cells sink,
                  unsigned tile, Real<T> *part) {
    typedef Real<T> R;
    __shared__ R sums[THREADS];
    const unsigned size = 1u << x.share, team = threadIdx.x / size, lane = threadIdx.x % size,
                   turns = (THREADS >> x.share) / tile, head = blockIdx.y * tile + team % tile,
                   sample = blockIdx.z, step = gridDim.x * turns;
    R sum = 0;
    if (head < x.heads && team / tile < turns) {
        const R logit = sink.get<R>(x.first_local + head);
        const R *row_lse = lse + ((int64_t)sample * x.heads + head) * x.s;
        dy += sample * strides.of[1] + head / x.r * strides.of[2] + head % x.r * strides.of[3];
        y += ((int64_t)sample * x.heads + head) * x.vectors * N;
        const int64_t y_step = (int64_t)x.b * x.heads * x.vectors * N;
        for (int v = (int)lane; v < x.vectors; v += (int)size)
            for (unsigned i = blockIdx.x * turns + team / tile; i < x.s; i += UNROLL * step) {
                Vec<T, N> a[UNROLL] = {}, b[UNROLL] = {};
                R factor[UNROLL] = {};
#pragma unroll
                for (int k = 0; k < UNROLL; k++) {
                    const unsigned at = i + k * step;
                    if (at >= x.s) continue;
                    a[k] = ((const Vec<T, N> *)(dy + at * strides.of[0]))[v];
                    b[k] = ((const Vec<T, N> *)(y + at * y_step))[v];
                    factor[k] = exp(logit - row_lse[at]);
                }
#pragma unroll
                for (int k = 0; k < UNROLL; k++) {
                    R dot = 0;
#pragma unroll
                    for (int j = 0; j < N; j++) dot += to_real<R>(a[k].v[j]) * to_real<R>(b[k].v[j]);
                    sum -= factor[k] * dot;
                }
            }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    const unsigned mine = blockIdx.y * tile + threadIdx.x;
    if (threadIdx.x >= tile || mine >= x.heads) return;
    R all = 0;
    for (unsigned turn = 0; turn < turns; turn++)
        for (unsigned k = 0; k < size; k++) all += sums[(turn * tile + threadIdx.x) * size + k];
    part[((int64_t)sample * gridDim.x + blockIdx.x) * x.heads + mine] = all;
}

/* Each warp processes one sink. For sinks of other ranks' heads, the result is 0. */
template <typename R>
static __global__ void sum_parts(Shape x, const R *part, unsigned chunks, Cells dsink, int64_t n, bool add) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, head = i - x.first_local;
    if (i >= n) return;
    const bool mine = head >= 0 && head < x.heads;
    R all = add ? dsink.get<R>(i) : 0;
    for (unsigned sample = 0; mine && sample < x.b; sample++, part += (int64_t)chunks * x.heads) {
        R sum = 0;
        for (unsigned k = threadIdx.x % 32; k < chunks; k += 32) sum += part[(int64_t)k * x.heads + head];
        all += warp_sum(sum);
    }
    if (threadIdx.x % 32 == 0) dsink.put(i, all);
}

/* ---- the ops ---- */

static void check_operands(const Tensor *y, const Tensor *lse) {
    CHECK(tensor_is_contiguous(y) && tensor_is_contiguous(lse),
          "attention sinks: y and lse must be contiguous");
    CHECK(lse->dtype == (y->dtype == F64 ? F64 : F32), "attention sinks: y is %s, but lse is %s",
          dtype_name((DType)y->dtype), dtype_name((DType)lse->dtype));
}

template <typename T> static void add_to(const Call *c) {
    const Tensor *y = c->in[0], *lse = c->in[1], *y_out = c->out[0], *lse_out = c->out[1];
    const bool whole = rows_are_aligned(y) && rows_are_aligned(y_out);
    const Shape x = shape_of(c, y, whole ? VEC<T> : 1);
    const auto kernel = whole ? add_sinks<T, VEC<T>> : add_sinks<T, 1>;
    kernel<<<grid_for(c, (int64_t)x.lines << x.share, THREADS), THREADS, 0, stream_of(c)>>>(
        x, data_of<T>(y), data_of<Real<T>>(lse), cells(c->in[2]), data_of<T>(y_out),
        data_of<Real<T>>(lse_out));
    LAUNCHED();
}

extern "C" void cuda_attention_sink(const Call *c) {
    const Tensor *y = c->in[0];
    check_operands(y, c->in[1]);
    check_operands(c->out[0], c->out[1]);
    CHECK(y->dtype == c->out[0]->dtype, "attention sinks: y is %s, but the output is %s",
          dtype_name((DType)y->dtype), dtype_name((DType)c->out[0]->dtype));
    if (tensor_count(y)) STORAGE_SWITCH(y->dtype, add_to<T>(c));
}

/* Returns the number of blocks that share the positions of a sample. The blocks of one sample are enough to
 * keep the GPU busy, but not so many that a block has too little work. The number of blocks does not depend
 * on the number of samples, so the division of samples into microbatches does not affect results. */
static unsigned chunks_of(const Call *c, const Shape *x, unsigned tile) {
    const int64_t most = ceil_div((int64_t)cuda_of(c->device)->multiprocessors * 4, ceil_div(x->heads, tile)),
                  want = ceil_div(x->s, (int64_t)UNROLL * ((THREADS >> x->share) / tile));
    return (unsigned)(want < most ? want : most);
}

static unsigned tile_of(const Shape *x) {
    const unsigned teams = THREADS >> x->share;
    return x->heads < teams ? x->heads : teams;
}

/* Returns true if rows are read in vectors. */
static bool reads_vectors(const Call *c) { return rows_are_aligned(c->in[0]) && rows_are_aligned(c->in[1]); }

/* Returns the size of the blocks' sums in bytes. The size does not depend on whether rows are read in
 * vectors. */
extern "C" size_t cuda_plans_attention_sink_grad(const Call *c) {
    const Tensor *y = c->in[1];
    if (!tensor_count(y)) return 0;
    const int vector = 16 / (int)dtype_size((DType)y->dtype);
    unsigned chunks = 0;
    for (int n = 1; n <= vector; n += vector - 1) {
        const Shape x = shape_of(c, y, n);
        const unsigned of_n = chunks_of(c, &x, tile_of(&x));
        chunks = of_n > chunks ? of_n : chunks;
    }
    return (size_t)y->dim[1] * chunks * (size_t)(y->dim[2] * y->dim[3]) *
           (y->dtype == F64 ? sizeof(double) : sizeof(float));
}

template <typename T> static void gradient(const Call *c) {
    const Tensor *dy = c->in[0], *y = c->in[1], *lse = c->in[2], *dsink = c->out[0];
    const bool whole = reads_vectors(c);
    Shape x = shape_of(c, y, whole ? VEC<T> : 1);
    const unsigned tile = tile_of(&x);
    unsigned chunks = 0;
    Real<T> *part = NULL;
    if (x.lines) {
        chunks = chunks_of(c, &x, tile);
        part = (Real<T> *)cuda_scratch(c->device, cuda_plans_attention_sink_grad(c));
        const Strides strides = {{dy->stride[0], dy->stride[1], dy->stride[2], dy->stride[3]}};
        const auto kernel = whole ? sum_positions<T, VEC<T>> : sum_positions<T, 1>;
        kernel<<<dim3(chunks, (unsigned)ceil_div(x.heads, tile), x.b), THREADS, 0, stream_of(c)>>>(
            x, data_of<T>(dy), strides, data_of<T>(y), data_of<Real<T>>(lse), cells(c->in[3]), tile, part);
        LAUNCHED();
    }
    const int64_t n = tensor_count(dsink);
    sum_parts<Real<T>><<<(unsigned)ceil_div(n, WARPS), THREADS, 0, stream_of(c)>>>(
        x, part, chunks, cells(dsink), n, accumulates(dsink));
    LAUNCHED();
}

extern "C" void cuda_attention_sink_grad(const Call *c) {
    const Tensor *dy = c->in[0], *y = c->in[1];
    check_operands(y, c->in[2]);
    CHECK(dy->dtype == y->dtype && dy->stride[4] == 1,
          "attention sinks: dy is %s and y is %s, or the rows of dy are not contiguous",
          dtype_name((DType)dy->dtype), dtype_name((DType)y->dtype));
    STORAGE_SWITCH(y->dtype, gradient<T>(c));
}
