/* Computes the ops of kernels/cpu/elementwise.c. */
#include "kernels/cuda/common.cuh"

/* Operands are processed row by row. If all operands are contiguous, 16-byte aligned and of the same type,
 * they are processed as a single row of vectors. */
enum { THREADS = 256 };

/* ---- copy ---- */

/* Writes a vector to *at, or adds the vector to *at. */
template <typename X, typename Y, int N>
__device__ __forceinline__ void put(const Vec<X, N> &from, Vec<Y, N> *at, bool add) {
    typedef Real<Y> R;
    Vec<Y, N> to;
    if (add) to = *at;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const R v = to_real<R>(from.v[k]);
        to.v[k] = from_real<Y>(add ? to_real<R>(to.v[k]) + v : v);
    }
    *at = to;
}

/* Copies n vectors of N elements. */
template <typename X, typename Y, int N> __global__ void copy_flat(const X *x, Y *y, int64_t n, bool add) {
    GRID_LOOP(i, n) put(((const Vec<X, N> *)x)[i], (Vec<Y, N> *)y + i, add);
}

/* A block copies a tile of TILE vectors of N adjacent elements. Computing where a row begins needs several
 * divisions, and thus many more instructions than copying a vector. A block therefore computes the start of
 * each row only once. */
enum { LOADS = 4, TILE = LOADS * THREADS };
struct Start {
    int64_t x, y;
};

template <typename X, typename Y, int N>
__global__ void __launch_bounds__(THREADS)
    copy_rows(const X *x, Y *y, Rows x_rows, Rows y_rows, int64_t n, bool add) {
    extern __shared__ Start start[]; /* vector i of the tile, if it is in row r, is at start[r] + i * N */
    const int64_t each = x_rows.width / N, begin = (int64_t)blockIdx.x * TILE, first = begin / each,
                  column = begin - first * each;
    const int count = (int)min((int64_t)TILE, n - begin);
    for (int64_t r = threadIdx.x; r * each < column + count; r += THREADS) {
        const int64_t skip = (column - r * each) * N;
        start[r] = {x_rows(first + r) + skip, y_rows(first + r) + skip};
    }
    __syncthreads();

    /* Vector i is in row (at + i) / width of the tile. The formula needs at most the last TILE vectors of a
     * row, so 32 bits are sufficient. */
    const uint32_t width = (uint32_t)min(each, (int64_t)TILE),
                   at = (uint32_t)max(column + width - each, (int64_t)0);
    Vec<X, N> from[LOADS];
    Vec<Y, N> *to[LOADS];
#pragma unroll
    for (int k = 0; k < LOADS; k++) { /* without branches, all loads are in flight simultaneously */
        const int i = min(k * THREADS + (int)threadIdx.x, count - 1);
        const Start p = start[(at + i) / width];
        from[k] = *(const Vec<X, N> *)(x + p.x + i * N);
        to[k] = (Vec<Y, N> *)(y + p.y + i * N);
    }
#pragma unroll
    for (int k = 0; k < LOADS; k++)
        if (k * THREADS + (int)threadIdx.x < count) put(from[k], to[k], add);
}

template <typename X, typename Y, int N> static void copy_vectors(const Call *c) {
    const X *x = data_of<X>(c->in[0]);
    Y *y = data_of<Y>(c->out[0]);
    const Rows from = rows_of(c->in[0]), to = rows_of(c->out[0]);
    const int64_t n = tensor_count(c->out[0]) / N;
    const bool add = accumulates(c->out[0]);
    if (from.dense && to.dense) {
        copy_flat<X, Y, N><<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(x, y, n, add);
    } else {
        const size_t room = (TILE / (from.width / N) + 2) * sizeof(Start); /* space for all rows in a tile */
        copy_rows<X, Y, N><<<ceil_div(n, TILE), THREADS, room, stream_of(c)>>>(x, y, from, to, n, add);
    }
    LAUNCHED();
}

template <typename X, typename Y> static void copy(const Call *c) {
    const Tensor *x = c->in[0], *y = c->out[0];
    constexpr int N = 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));
    const bool flat = tensor_is_contiguous(x) && tensor_is_contiguous(y);
    if (flat ? tensor_count(y) % N == 0 && aligned_16(x->data) && aligned_16(y->data)
             : rows_are_aligned(x) && rows_are_aligned(y))
        copy_vectors<X, Y, N>(c);
    else
        copy_vectors<X, Y, 1>(c);
}

extern "C" void cuda_copy(const Call *c) {
    const Tensor *x = c->in[0], *y = c->out[0];
    if (!tensor_count(y)) return;
    if (x->dtype == I64) {
        copy<int64_t, int64_t>(c);
        return;
    }
    CHECK(!accumulates(y) || (x->dtype == F64) == (y->dtype == F64),
          "a copy between %s and %s cannot accumulate", dtype_name((DType)x->dtype),
          dtype_name((DType)y->dtype));
    STORAGE_SWITCH(x->dtype, typedef T X; STORAGE_SWITCH(y->dtype, copy<X, T>(c)));
}

/* ---- add, scale, fill, snap ---- */

template <typename T, int N> __global__ void add_flat(const T *a, const T *b, T *y, int64_t n) {
    typedef Real<T> R;
    GRID_LOOP(i, n / N) {
        const Vec<T, N> p = ((const Vec<T, N> *)a)[i], q = ((const Vec<T, N> *)b)[i];
        Vec<T, N> sum;
#pragma unroll
        for (int k = 0; k < N; k++) sum.v[k] = from_real<T>(to_real<R>(p.v[k]) + to_real<R>(q.v[k]));
        ((Vec<T, N> *)y)[i] = sum;
    }
}

template <typename T>
__global__ void add_rows(const T *a, const T *b, T *y, Rows a_rows, Rows b_rows, Rows y_rows, int64_t n) {
    typedef Real<T> R;
    GRID_LOOP(i, n) {
        const int64_t row = i / y_rows.width, column = i % y_rows.width;
        y[y_rows(row) + column] =
            from_real<T>(to_real<R>(a[a_rows(row) + column]) + to_real<R>(b[b_rows(row) + column]));
    }
}

template <typename T> static void add(const Call *c) {
    const int64_t n = tensor_count(c->out[0]);
    const T *a = data_of<T>(c->in[0]), *b = data_of<T>(c->in[1]);
    T *y = data_of<T>(c->out[0]);
    const Rows ra = rows_of(c->in[0]), rb = rows_of(c->in[1]), ry = rows_of(c->out[0]);
    constexpr int N = VEC<T>;
    if (ra.dense && rb.dense && ry.dense && n % N == 0 && aligned_16(a) && aligned_16(b) && aligned_16(y))
        add_flat<T, N><<<grid_for(c, n / N, THREADS), THREADS, 0, stream_of(c)>>>(a, b, y, n);
    else
        add_rows<T><<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(a, b, y, ra, rb, ry, n);
    LAUNCHED();
}

extern "C" void cuda_add(const Call *c) {
    if (tensor_count(c->out[0])) STORAGE_SWITCH(c->in[0]->dtype, add<T>(c));
}

template <typename X, typename Y, int N>
__global__ void scale_flat(const X *x, Y *y, int64_t n, Real<X> factor, bool add) {
    typedef Real<X> R;
    GRID_LOOP(i, n / N) {
        const Vec<X, N> from = ((const Vec<X, N> *)x)[i];
        Vec<Y, N> to;
        if (add) to = ((const Vec<Y, N> *)y)[i];
#pragma unroll
        for (int k = 0; k < N; k++) {
            const R v = factor * to_real<R>(from.v[k]);
            to.v[k] = from_real<Y>(add ? to_real<R>(to.v[k]) + v : v);
        }
        ((Vec<Y, N> *)y)[i] = to;
    }
}

template <typename R>
__global__ void scale_rows(Cells x, Cells y, Rows x_rows, Rows y_rows, int64_t n, R factor, bool add) {
    GRID_LOOP(i, n) {
        const int64_t row = i / y_rows.width, column = i % y_rows.width;
        y.put_or_add(y_rows(row) + column, factor * x.get<R>(x_rows(row) + column), add);
    }
}

template <typename X, typename Y> static void scale(const Call *c) {
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t n = tensor_count(y);
    const Rows from = rows_of(x), to = rows_of(y);
    const Real<X> factor = (Real<X>)((const FactorAttr *)c->attr)->factor;
    constexpr int N = VEC<X> < VEC<Y> ? VEC<X> : VEC<Y>;
    if (from.dense && to.dense && n % N == 0 && aligned_16(x->data) && aligned_16(y->data))
        scale_flat<X, Y, N><<<grid_for(c, n / N, THREADS), THREADS, 0, stream_of(c)>>>(
            data_of<X>(x), data_of<Y>(y), n, factor, accumulates(y));
    else
        scale_rows<Real<X>><<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(
            cells(x), cells(y), from, to, n, factor, accumulates(y));
    LAUNCHED();
}

extern "C" void cuda_scale(const Call *c) {
    const int x = c->in[0]->dtype, y = c->out[0]->dtype;
    CHECK(x == y || (x == BF16 && y == F32) || (x == F32 && y == BF16), "scale: %s cannot be scaled to %s",
          dtype_name((DType)x), dtype_name((DType)y));
    if (!tensor_count(c->out[0])) return;
    if (x == y)
        STORAGE_SWITCH(x, scale<T, T>(c));
    else if (x == BF16)
        scale<bf16, float>(c);
    else
        scale<float, bf16>(c);
}

template <typename R> __global__ void fill(Cells y, Rows rows, int64_t n, R value) {
    GRID_LOOP(i, n) y.put(rows(i / rows.width) + i % rows.width, value);
}

extern "C" void cuda_fill(const Call *c) {
    const Tensor *y = c->out[0];
    const int64_t n = tensor_count(y);
    const double value = ((const FillAttr *)c->attr)->value;
    if (!n) return;
    if (value == 0 && tensor_is_contiguous(y)) {
        CUDA_CHECK(cudaMemsetAsync(y->data, 0, tensor_bytes(y), stream_of(c)));
        return;
    }
    REAL_SWITCH(y->dtype, fill<R>
                <<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(cells(y), rows_of(y), n, (R)value));
    LAUNCHED();
}

template <typename R> __global__ void snap(Cells y, Rows rows, int64_t n, R scale) {
    GRID_LOOP(i, n) {
        const int64_t at = rows(i / rows.width) + i % rows.width;
        y.put(at, floor(y.get<R>(at) * scale + (R)0.5) / scale);
    }
}

extern "C" void cuda_snap(const Call *c) {
    const Tensor *y = c->out[0];
    const int64_t n = tensor_count(y);
    const double scale = (double)((int64_t)1 << ((const SnapAttr *)c->attr)->bits);
    if (!n) return;
    REAL_SWITCH(y->dtype, snap<R>
                <<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(cells(y), rows_of(y), n, (R)scale));
    LAUNCHED();
}
