/* Computes the ops of kernels/cpu/loss.c, which contains the formulas. cross_entropy reads each row of logits
 * once. Every thread keeps the largest logit so far and the sum of exp(logit - largest), and rescales the sum
 * when a larger logit appears. The threads' sums are merged in a fixed order. cross_entropy_grad reads each
 * logit and writes each gradient once, in place if logits and dlogits are one tensor. cross_entropy_with_grad
 * also reads logits from memory only once, because rows stay in shared memory between the loss and the
 * gradient.
 *
 * For 16-bit storage, exp is computed with the hardware's instruction for 2^x (0 for subnormal results),
 * because expf would take longer than the memory accesses. One multiply-add computes the exponent, including
 * log |dloss|, from a logit. If m is the largest of |logit|, |lse| and |log |dloss||, the relative error is
 * at most (2 + 4 m) 2^-23. Rounding a logit of size m and a gradient to 16 bits causes a much larger
 * error. */
#include <cuda_pipeline.h>
#include <float.h>

#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/slots.cuh"

enum { UNROLL = 4 /* number of loads in flight per thread */ };

constexpr float LOG2_E = 1.44269504f;

/* Two ways to compute exp(x - by) are power(x, shift(by)) and growth(shift(x) - shift(by)). If the two
 * shifts are equal, growth returns exactly 1. */
template <typename T> __device__ __forceinline__ Real<T> shift(Real<T> by) {
    return sizeof(T) > 2 ? by : by * (Real<T>)LOG2_E;
}
template <typename T> __device__ __forceinline__ Real<T> growth(Real<T> difference) {
    if constexpr (sizeof(T) > 2) {
        return exp(difference);
    } else {
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(difference));
        return y;
    }
}
template <typename T> __device__ __forceinline__ Real<T> power(Real<T> x, Real<T> shift) {
    return growth<T>(sizeof(T) > 2 ? x - shift : fma(x, (Real<T>)LOG2_E, -shift));
}
/* A part of a row: one element, or a Run of several elements. */
template <typename T> struct Single {
    T x;
    __device__ __forceinline__ Real<T> get(int) const { return to_real<Real<T>>(x); }
    __device__ __forceinline__ Real<T> largest() const { return to_real<Real<T>>(x); }
    __device__ __forceinline__ void fill(const Real<T> *all) { x = from_real<T>(*all); }
};
template <typename T, int N> using Piece = typename std::conditional<N == 1, Single<T>, Run<T, N>>::type;

/* Half of the lowest finite number, so that shift(LOWEST) is also finite. */
template <typename R> constexpr R LOWEST = sizeof(R) == 8 ? (R)(-DBL_MAX / 2) : (R)(-FLT_MAX / 2);

/* The logits [s,b,v] of a call, and the labels of the rows. */
struct Losses {
    int64_t rows, width, s, b;
    int64_t columns; /* number of columns that are not padding */
    /* first: index of the tensor's column 0 in the full vocabulary; vocab: size of the full vocabulary */
    int64_t first, vocab;
    const int64_t *label;
    DeviceAssert *failure;
    const char *message;

    /* Returns the index in [b,s] of the token in row r of [s,b,v]. */
    __device__ __forceinline__ int64_t token(int64_t r) const { return r % b * s + r / b; }
    /* Returns the label's column in this tensor, or -1 if the column is not in the tensor. */
    __device__ __forceinline__ int64_t target(int64_t token) const {
        const int64_t at = label[token] - first;
        return at >= 0 && at < columns ? at : -1;
    }
    __device__ __forceinline__ void check(int64_t token) const {
        if (label[token] < 0 || label[token] >= vocab) raise_assert(failure, message, label[token], token);
    }
};

static Losses losses_of(const Call *c, const Tensor *logits, const Tensor *label) {
    const LossAttr *a = (const LossAttr *)c->attr;
    const int64_t width = tensor_width(logits), n = a->vocab - a->first;
    CHECK(width <= 1 << 30,
          "cross_entropy: there are %lld columns, but the GPU's kernel supports at most 2^30",
          (long long)width);
    const Losses o = {tensor_rows(logits),
                      width,
                      logits->dim[0],
                      logits->dim[1],
                      n < 0       ? 0
                      : n < width ? n
                                  : width,
                      a->first,
                      a->vocab,
                      ids_of(label),
                      cuda_of(c->device)->failure,
                      "cross_entropy: label %lld of token %lld is outside the vocabulary"};
    return o;
}

/* ---- forward ---- */

/* The sum of exp(x - top) over the added elements x, where top is the largest of them. A NaN propagates to
 * the sum, but not to top. */
template <typename T> struct LogSum {
    typedef Real<T> R;
    R top, sum;

    __device__ __forceinline__ LogSum() : top(LOWEST<R>), sum(0) {}
    /* Adds at most UNROLL vectors, with the numbers i, i + step, ... */
    template <int N, typename Row>
    __device__ __forceinline__ void add(const Row &x, int i, int step, int vectors) {
        Piece<T, N> v[UNROLL];
        R high = top;
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * step < vectors) v[u] = x[i + u * step];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * step < vectors) high = fmax(high, v[u].largest());
        const R by = shift<T>(high);
        sum *= growth<T>(shift<T>(top) - by);
        top = high;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (i + u * step >= vectors) break;
            R part = 0;
#pragma unroll
            for (int e = 0; e < N; e++) part += power<T>(v[u].get(e), by);
            sum += part;
        }
    }
    /* Adds the remaining vectors of a row, beginning at vector `first`. */
    template <int N> __device__ __forceinline__ void rest(const T *x, int first, int64_t columns) {
        const int vectors = (int)(columns / N), threads = (int)blockDim.x;
        for (int64_t i = first + threadIdx.x; i < vectors; i += UNROLL * threads)
            add<N>((const Piece<T, N> *)x, (int)i, threads, vectors);
        if constexpr (N > 1)
            if (threadIdx.x < columns % N)
                add<1>((const Piece<T, 1> *)x, vectors * N + (int)threadIdx.x, threads, (int)columns);
    }
    /* Merges the sums of all threads of the block; all threads receive the result. `room` is shared memory
     * for 64 elements; no thread may have read `room` since the last barrier. */
    __device__ __forceinline__ void join(R *room) {
        const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        const R high = warp_max(top), part = warp_sum(sum * growth<T>(shift<T>(top) - shift<T>(high)));
        if (lane == 0) room[warp] = high, room[32 + warp] = part;
        __syncthreads();
        const bool is_warp = lane < (int)blockDim.x / 32;
        const R warp_top = is_warp ? room[lane] : LOWEST<R>;
        top = warp_max(warp_top);
        sum = warp_sum(is_warp ? room[32 + lane] * growth<T>(shift<T>(warp_top) - shift<T>(top)) : (R)0);
        if (!(sum > 0)) sum = NAN; /* all logits are -inf, or one is NaN */
    }
};

/* Maximum numbers of threads per row. BOTH_THREADS applies to the kernel that computes both loss and
 * gradient. */
enum { ROW_THREADS = 512, BOTH_THREADS = 1024 };

/* Each block processes one row, and writes either loss and lse [b,s], or shard [2,b,s]. */
template <typename T, int N>
static __global__ void __launch_bounds__(ROW_THREADS, 2)
    log_sums(Losses o, const T *logits, Cells loss, Cells lse, Cells shard) {
    typedef Real<T> R;
    __shared__ R room[64];
    start_pdl();
    const int64_t token = o.token(blockIdx.x), target = o.target(token);
    const T *x = logits + blockIdx.x * o.width;
    const R at = target < 0 ? (R)0 : to_real<R>(x[target]);
    LogSum<T> all;
    all.template rest<N>(x, 0, o.columns);
    all.join(room);
    if (threadIdx.x) return;
    const R log_sum = log(all.sum);
    o.check(token);
    if (shard.data) {
        shard.put(token, o.columns ? all.top + log_sum : (R)-INFINITY);
        shard.put(o.rows + token, at);
    } else {
        loss.put(token, log_sum - (at - all.top));
        lse.put(token, all.top + log_sum);
    }
}

/* Returns the number of threads per row if vectors have n elements. */
static int row_threads(const Losses &o, int n, int most) {
    const int64_t threads = ceil_div(ceil_div(o.columns, n * UNROLL), 32) * 32;
    return threads < 32 ? 32 : threads < most ? (int)threads : most;
}

template <typename T, int N>
static void run_log_sums(const Call *c, const Losses &o, const Tensor *loss, const Tensor *lse,
                         const Tensor *shard) {
    launch_pdl(c, (unsigned)o.rows, row_threads(o, N, ROW_THREADS), 0, log_sums<T, N>, o,
               data_of<T>(c->in[0]), cells(loss), cells(lse), cells(shard));
}

static void forward(const Call *c, const Tensor *loss, const Tensor *lse, const Tensor *shard) {
    const Tensor *logits = c->in[0];
    const Losses o = losses_of(c, logits, c->in[1]);
    if (!o.rows) return;
    STORAGE_SWITCH(logits->dtype,
                   if (rows_are_aligned(logits)) run_log_sums<T, VEC<T>>(c, o, loss, lse, shard);
                   else run_log_sums<T, 1>(c, o, loss, lse, shard));
}

extern "C" void cuda_cross_entropy(const Call *c) { forward(c, c->out[0], c->out[1], NULL); }
extern "C" void cuda_cross_entropy_shard(const Call *c) { forward(c, NULL, NULL, c->out[0]); }

/* ---- backward ---- */

/* Computes a row's gradient, (exp(x - lse) - [column is the label]) * by. For 16-bit storage, the exponent
 * includes log |by|. */
template <typename T, int N> struct RowGrad {
    typedef Real<T> R;
    typedef Piece<T, N> V;
    R by, past; /* past: the shift for lse - log |by| */
    int target, columns;

    __device__ __forceinline__ RowGrad(R by, R lse, int64_t target, int64_t columns)
        : by(by), past(shift<T>(lse) - (sizeof(T) > 2 ? (R)0 : log2(fabs(by)))), target((int)target),
          columns((int)columns) {}
    /* Replaces *v, which is vector i of the row, with its gradient. */
    __device__ __forceinline__ void apply(V *v, int i) const {
        R p[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            p[e] = sizeof(T) > 2 ? power<T>(v->get(e), past) * by : power<T>(v->get(e), past);
        if (sizeof(T) == 2 && by < 0)
#pragma unroll
            for (int e = 0; e < N; e++) p[e] = -p[e];
        if (i == target / N || i >= columns / N) { /* the vector may contain the label or padding */
#pragma unroll
            for (int e = 0; e < N; e++) {
                const int column = i * N + e;
                p[e] = column >= columns ? (R)0 : column == target ? p[e] - by : p[e];
            }
        }
        v->fill(p);
    }
    /* Processes at most UNROLL vectors, with the numbers begin, begin + step, ... */
    template <typename Row>
    __device__ __forceinline__ void stretch(const Row &x, V *dx, int begin, int step, int vectors) const {
        V v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (begin + u * step < vectors) v[u] = x[begin + u * step];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (begin + u * step >= vectors) continue;
            apply(&v[u], begin + u * step);
            dx[begin + u * step] = v[u];
        }
    }
};

/* A row is processed by `tiles` blocks, with UNROLL vectors per thread. */
enum { GRAD_THREADS = 256 };
template <typename T, int N>
static __global__ void __launch_bounds__(GRAD_THREADS)
    softmax_grad(Losses o, unsigned tiles, const T *logits, T *dlogits, Cells dloss, Cells lse) {
    typedef Real<T> R;
    typedef Piece<T, N> V;
    start_pdl();
    const int64_t row = blockIdx.x / tiles, token = o.token(row);
    const int begin = (int)(blockIdx.x % tiles * (GRAD_THREADS * UNROLL) + threadIdx.x);
    const RowGrad<T, N> grad(dloss.get<R>(token), lse.get<R>(token), o.target(token), o.columns);
    if (begin == 0) o.check(token);
    grad.stretch((const V *)(logits + row * o.width), (V *)(dlogits + row * o.width), begin, GRAD_THREADS,
                 (int)(o.width / N));
}

template <typename T, int N> static void run_grad(const Call *c, const Losses &o) {
    const int64_t tiles = ceil_div(o.width / N, GRAD_THREADS * UNROLL);
    CHECK(
        tiles * o.rows <= INT32_MAX,
        "cross_entropy_grad: there are %lld rows of %lld logits, but the GPU's kernel supports at most %lld",
        (long long)o.rows, (long long)o.width, (long long)(INT32_MAX / tiles));
    launch_pdl(c, (unsigned)(tiles * o.rows), GRAD_THREADS, 0, softmax_grad<T, N>, o, (unsigned)tiles,
               data_of<T>(c->in[1]), data_of<T>(c->out[0]), cells(c->in[0]), cells(c->in[3]));
}

static void check_types(const Tensor *logits, const Tensor *dlogits) {
    CHECK(dlogits->dtype == logits->dtype, "cross_entropy: the logits are %s, but their gradient is %s",
          dtype_name((DType)logits->dtype), dtype_name((DType)dlogits->dtype));
}

extern "C" void cuda_cross_entropy_grad(const Call *c) {
    const Tensor *logits = c->in[1], *dlogits = c->out[0];
    const Losses o = losses_of(c, logits, c->in[2]);
    check_types(logits, dlogits);
    if (!o.rows || !o.width) return;
    STORAGE_SWITCH(logits->dtype,
                   if (rows_are_aligned(logits) && rows_are_aligned(dlogits)) run_grad<T, VEC<T>>(c, o);
                   else run_grad<T, 1>(c, o));
}

/* ---- loss and gradient in one kernel ---- */

/* A block processes several rows sequentially. The first `held` vectors of a row are in shared memory, and each
 * vector is copied and read by a single thread. After a vector's gradient has been written, the corresponding
 * vector of the block's next row replaces the vector in shared memory. The remaining vectors of a row are read
 * twice, the second time from the cache. */
template <typename T, int N> struct RowHeld {
    typedef Piece<T, N> V;
    BucketPool<V> slots;
    int held, threads;

    __device__ __forceinline__ int stretch() const { return UNROLL * threads; }
    /* Starts to copy a stretch (UNROLL vectors per thread) of a row, as one asynchronous group. The group is
     * empty if x is NULL. */
    __device__ __forceinline__ void fetch(const T *x, int begin) const {
        if constexpr (N > 1) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const int i = begin + u * threads + (int)threadIdx.x;
                if (x && i < held) slots.fetch(i, (const V *)x + i);
            }
            __pipeline_commit();
        }
    }
    /* Adds a stretch to the sum. The copy of this stretch must be complete. The row has `vectors` vectors
     * without padding. */
    __device__ __forceinline__ void add(LogSum<T> *all, int begin, int vectors) const {
        if constexpr (N > 1) {
            const int known = vectors < held ? vectors : held;
            all->template add<N>(slots, begin + (int)threadIdx.x, threads, known);
        }
    }
    __device__ __forceinline__ int last_stretch() const {
        return held ? (held - 1) / stretch() * stretch() : 0;
    }
    /* Copies the block's first row to shared memory. Returns the row's partial sum, which excludes the last
     * stretch. */
    __device__ __forceinline__ LogSum<T> first_sum(const T *x, int vectors) const {
        LogSum<T> all;
        for (int begin = 0; begin < held; begin += stretch()) fetch(x, begin);
        __pipeline_wait_prior(0);
        for (int begin = 0; begin < last_stretch(); begin += stretch()) add(&all, begin, vectors);
        return all;
    }
    /* Completes a row's sum by adding the last stretch and the vectors that are not in shared memory. */
    __device__ __forceinline__ void complete(LogSum<T> *all, const T *x, int64_t columns,
                                             Real<T> *room) const {
        const int vectors = (int)(columns / N);
        all->template rest<N>(x, vectors < held ? vectors : held, columns);
        __pipeline_wait_prior(0);
        add(all, last_stretch(), vectors);
        all->join(room);
    }
    /* Computes the row's gradient. Meanwhile, the stretches of the next row replace this row's stretches,
     * unless `next` is NULL. Each stretch of the next row is added to that row's sum one stretch later, so that
     * copies overlap with the computation. Returns the next row's partial sum, which excludes the last
     * stretch. */
    __device__ __forceinline__ LogSum<T> gradient(const RowGrad<T, N> &grad, const T *x, T *dx, int64_t width,
                                                  const T *next) const {
        const int vectors = (int)(width / N), of_next = next ? grad.columns / N : 0;
        LogSum<T> ahead;
        for (int begin = 0; begin < held; begin += stretch()) {
            if constexpr (N > 1) grad.stretch(slots, (V *)dx, begin + (int)threadIdx.x, threads, held);
            fetch(next, begin);
            if (begin == 0) continue;
            __pipeline_wait_prior(1);
            add(&ahead, begin - stretch(), of_next);
        }
        for (int64_t i = held + threadIdx.x; i < vectors; i += stretch())
            grad.stretch((const V *)x, (V *)dx, (int)i, threads, vectors);
        return ahead;
    }
};

template <typename T, int N>
static __global__ void __launch_bounds__(BOTH_THREADS, 1)
    loss_and_grad(Losses o, const T *logits, T *dlogits, Cells dloss, Cells loss, Cells lse, int held) {
    typedef Real<T> R;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ R room[2][64];
    const RowHeld<T, N> rows = {BucketPool<Piece<T, N>>(shared), held, (int)blockDim.x};
    start_pdl();
    int64_t row = blockIdx.x;
    LogSum<T> all = rows.first_sum(logits + row * o.width, (int)(o.columns / N));
    int64_t token = o.token(row), target = o.target(token);
    R by = dloss.get<R>(token);
    for (int turn = 0; row < o.rows; turn ^= 1) {
        const T *x = logits + row * o.width;
        /* read before the gradient overwrites the logit */
        const R at = target < 0 ? (R)0 : to_real<R>(x[target]);
        rows.complete(&all, x, o.columns, room[turn]);
        const R log_sum = log(all.sum), row_lse = all.top + log_sum;
        const RowGrad<T, N> grad(by, row_lse, target, o.columns);
        if (threadIdx.x == 0) {
            o.check(token);
            loss.put(token, log_sum - (at - all.top));
            lse.put(token, row_lse);
        }
        T *dx = dlogits + row * o.width;
        row += gridDim.x;
        if (row < o.rows) { /* loads the next row's values early, to hide their latency */
            token = o.token(row);
            target = o.target(token);
            by = dloss.get<R>(token);
        }
        all = rows.gradient(grad, x, dx, o.width, row < o.rows ? logits + row * o.width : NULL);
    }
}

/* Launches two blocks of at most 512 threads per multiprocessor, so that one block computes while the other
 * waits. If two rows do not fit into a multiprocessor's shared memory, launches one block of at most 1024
 * threads. */
template <typename T, int N> static void run_both(const Call *c, const Losses &o) {
    enum { BESIDE = 2048 }; /* bytes of shared memory that a block needs in addition to its row */
    const Cuda *gpu = cuda_of(c->device);
    const int64_t vectors = o.width / N;
    int most, of_all;
    CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu->ordinal));
    CUDA_CHECK(cudaDeviceGetAttribute(&of_all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, gpu->ordinal));
    const bool two = vectors * 16 <= of_all / 2 - BESIDE;
    const int threads = row_threads(o, N, two ? BOTH_THREADS / 2 : BOTH_THREADS);
    const int64_t room = (most - BESIDE) / (16 * threads) * threads;
    const int held = N == 1 ? 0 : (int)(vectors < room ? vectors : room), bytes = 16 * held;
    const int64_t by_memory = of_all / (bytes + BESIDE), by_threads = BOTH_THREADS / threads;
    const int64_t resident = (by_memory < by_threads ? by_memory : by_threads) * gpu->multiprocessors;
    /* All threads of the process share a kernel's attributes, so every call must set them to the same
     * values. */
    CUDA_CHECK(cudaFuncSetAttribute(loss_and_grad<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    most - BESIDE));
    CUDA_CHECK(cudaFuncSetAttribute(loss_and_grad<T, N>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    launch_pdl(c, (unsigned)(o.rows < resident ? o.rows : resident), threads, bytes, loss_and_grad<T, N>, o,
               data_of<T>(c->in[0]), data_of<T>(c->out[2]), cells(c->in[2]), cells(c->out[0]),
               cells(c->out[1]), held);
}

extern "C" void cuda_cross_entropy_with_grad(const Call *c) {
    const Tensor *logits = c->in[0], *dlogits = c->out[2];
    const Losses o = losses_of(c, logits, c->in[1]);
    check_types(logits, dlogits);
    if (!o.rows) return;
    STORAGE_SWITCH(logits->dtype,
                   if (rows_are_aligned(logits) && rows_are_aligned(dlogits)) run_both<T, VEC<T>>(c, o);
                   else run_both<T, 1>(c, o));
}

/* ---- vocabularies that are sharded over ranks, and weighted sums ---- */

enum { THREADS = 256 };
template <typename R>
static __global__ void join_shards(Cells part, int64_t shards, int64_t tokens, Cells loss, Cells lse) {
    start_pdl();
    GRID_LOOP(t, tokens) {
        R top = part.get<R>(t), sum = 0, target = 0;
        for (int64_t i = 1; i < shards; i++) {
            const R x = part.get<R>(2 * i * tokens + t);
            top = x > top ? x : top;
        }
        for (int64_t i = 0; i < shards; i++) {
            sum += exp(part.get<R>(2 * i * tokens + t) - top);
            target += part.get<R>((2 * i + 1) * tokens + t);
        }
        lse.put(t, top + log(sum));
        loss.put(t, log(sum) - (target - top));
    }
}

extern "C" void cuda_cross_entropy_join(const Call *c) {
    const Tensor *shards = c->in[0], *loss = c->out[0];
    const int64_t tokens = tensor_count(loss);
    if (!tokens) return;
    REAL_SWITCH(lead_type(c),
                launch_pdl(c, grid_for(c, tokens, THREADS), THREADS, 0, join_shards<R>, cells(shards),
                           shards->dim[0], tokens, cells(loss), cells(c->out[1])));
}

/* Each block processes one row. */
template <typename T, int N>
static __global__ void __launch_bounds__(ROW_THREADS, 2)
    best_columns(Losses o, const T *logits, Cells shard) {
    typedef Real<T> R;
    __shared__ R room[32];
    start_pdl();
    const int64_t token = o.token(blockIdx.x), target = o.target(token);
    const T *x = logits + blockIdx.x * o.width;
    const R own = target < 0 ? (R)0 : to_real<R>(x[target]);
    R top = (R)-INFINITY;
    bool best = target >= 0;
    const auto see = [&](R other, int64_t column) {
        top = fmax(top, other);
        best &= column < target ? other < own : other <= own;
    };
    const int64_t vectors = o.columns / N;
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
        const Piece<T, N> v = ((const Piece<T, N> *)x)[i];
#pragma unroll
        for (int e = 0; e < N; e++) see(v.get(e), i * N + e);
    }
    for (int64_t i = vectors * N + threadIdx.x; i < o.columns; i += blockDim.x) see(to_real<R>(x[i]), i);
    best = __syncthreads_and(best);
    top = block_max(top, room);
    if (threadIdx.x) return;
    o.check(token);
    shard.put(token, top);
    shard.put(o.rows + token, (R)best);
}

template <typename T, int N> static void run_best_columns(const Call *c, const Losses &o) {
    launch_pdl(c, (unsigned)o.rows, row_threads(o, N, ROW_THREADS), 0, best_columns<T, N>, o,
               data_of<T>(c->in[0]), cells(c->out[0]));
}

extern "C" void cuda_correct_shard(const Call *c) {
    const Tensor *logits = c->in[0];
    const Losses o = losses_of(c, logits, c->in[1]);
    if (!o.rows) return;
    STORAGE_SWITCH(logits->dtype, if (rows_are_aligned(logits)) run_best_columns<T, VEC<T>>(c, o);
                   else run_best_columns<T, 1>(c, o));
}

template <typename R>
static __global__ void join_best(Cells part, int64_t shards, int64_t tokens, Cells out) {
    start_pdl();
    GRID_LOOP(t, tokens) {
        int64_t best = 0;
        for (int64_t i = 1; i < shards; i++)
            if (part.get<R>(2 * i * tokens + t) > part.get<R>(2 * best * tokens + t)) best = i;
        out.put(t, part.get<R>((2 * best + 1) * tokens + t));
    }
}

extern "C" void cuda_correct_join(const Call *c) {
    const Tensor *shards = c->in[0];
    const int64_t tokens = tensor_count(c->out[0]);
    if (!tokens) return;
    REAL_SWITCH(lead_type(c), launch_pdl(c, grid_for(c, tokens, THREADS), THREADS, 0, join_best<R>,
                                         cells(shards), shards->dim[0], tokens, cells(c->out[0])));
}

/* One block adds the samples' sums in order. The sum of a sample does not depend on other samples. */
enum { SUM_THREADS = 1024 };
static __global__ void __launch_bounds__(SUM_THREADS)
    weighted_sum(Cells x, Cells weight, int64_t samples, int64_t positions, double *total, bool add) {
    __shared__ double room[32];
    start_pdl();
    double all = add && threadIdx.x == 0 ? *total : 0;
    for (int64_t b = 0; b < samples; b++) {
        double sum = 0;
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < positions; i += SUM_THREADS)
            sum += x.get<double>(b * positions + i) * weight.get<double>(b * positions + i);
        all += block_sum(sum, room);
    }
    if (threadIdx.x == 0) *total = all;
}

extern "C" void cuda_weighted_sum(const Call *c) {
    const Tensor *x = c->in[0], *total = c->out[0];
    CHECK(total->dtype == F64, "weighted_sum: the sum is %s, not F64", dtype_name((DType)total->dtype));
    launch_pdl(c, 1, SUM_THREADS, 0, weighted_sum, cells(x), cells(c->in[1]), x->dim[0], x->dim[1],
               data_of<double>(total), accumulates(total));
}
