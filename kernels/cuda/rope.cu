/* The op of kernels/cpu/rope.c. Written or added to: y.
 * A thread takes a run of pairs of a token's heads, whose cosines and sines it loads once; what is not
 * rotated are more runs. A block is [tokens][heads][runs]. */
#include "kernels/cuda/vectors.cuh"

/* HEADS: of a thread, if there are that many. MOST_DEEP: CUDA's limit of a block's third dimension. */
enum { THREADS = 256, HEADS = 4, MOST_DEEP = 64 };

/* Pairs are two halves of a run or neighbours in it. */
template <typename T> struct Rope {
    static constexpr int N = VEC<T>;
    const T *x;
    T *y;
    const Real<T> *cos, *sin;
    const int64_t *position;
    int64_t tokens, length, samples, table; /* table: its positions */
    int64_t x_stride[4], y_stride[4];       /* of positions, samples, groups, heads */
    int64_t heads, per_group;               /* of a token */
    int64_t half, rest;                     /* of a head: pairs, elements behind them */
    int64_t pair_runs, rest_runs;
    Real<T> sign;
    bool interleaved, add, aligned;
};

template <typename T> struct Turned { Run<T, VEC<T>> low, high; };

/* Of a head's run of pairs: their first elements and their second, or the first N of 2N elements and the
 * others. */
template <typename T>
__device__ __forceinline__ Turned<T> load_pairs(const Rope<T> &o, const T *head, int64_t run) {
    constexpr int N = Rope<T>::N;
    const int64_t first = run * N;
    Turned<T> p;
    if (o.interleaved) {
        p.low = load_run<T, N>(head, 2 * first, 2 * o.half, o.aligned);
        p.high = load_run<T, N>(head, 2 * first + N, 2 * o.half, o.aligned);
    } else {
        p.low = load_run<T, N>(head, first, o.half, o.aligned);
        p.high = load_run<T, N>(head + o.half, first, o.half, o.aligned);
    }
    return p;
}

template <typename T>
__device__ __forceinline__ void store_pairs(const Rope<T> &o, T *head, int64_t run, const Turned<T> &p) {
    constexpr int N = Rope<T>::N;
    const int64_t first = run * N;
    if (o.interleaved) {
        store_run<T, N>(head, 2 * first, 2 * o.half, o.aligned, p.low);
        store_run<T, N>(head, 2 * first + N, 2 * o.half, o.aligned, p.high);
    } else {
        store_run<T, N>(head, first, o.half, o.aligned, p.low);
        store_run<T, N>(head + o.half, first, o.half, o.aligned, p.high);
    }
}

/* fma: whichever way the compiler would contract, all runs are rounded alike. */
template <typename T>
__device__ __forceinline__ void turn(Run<T, VEC<T>> *a_run, int a_at, Run<T, VEC<T>> *b_run, int b_at,
                                     Real<T> cos, Real<T> sin, const Run<T, VEC<T>> &a_old,
                                     const Run<T, VEC<T>> &b_old, bool add) {
    const Real<T> a = a_run->get(a_at), b = b_run->get(b_at);
    const Real<T> ya = fma(a, cos, -(b * sin)), yb = fma(b, cos, a * sin);
    a_run->put(a_at, add ? a_old.get(a_at) + ya : ya);
    b_run->put(b_at, add ? b_old.get(b_at) + yb : yb);
}

template <typename T>
__device__ __forceinline__ void turn_all(const Rope<T> &o, Turned<T> *p, const Turned<T> &old,
                                         const Run<Real<T>, VEC<T>> &cos, const Run<Real<T>, VEC<T>> &sin) {
    constexpr int N = Rope<T>::N;
    if (o.interleaved) {
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            turn<T>(&p->low, 2 * k, &p->low, 2 * k + 1, cos.get(k), o.sign * sin.get(k), old.low, old.low,
                    o.add);
            turn<T>(&p->high, 2 * k, &p->high, 2 * k + 1, cos.get(k + N / 2), o.sign * sin.get(k + N / 2),
                    old.high, old.high, o.add);
        }
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            turn<T>(&p->low, k, &p->high, k, cos.get(k), o.sign * sin.get(k), old.low, old.high, o.add);
    }
}

__device__ __forceinline__ int64_t head_offset(const int64_t *stride, int64_t head, int64_t per_group) {
    return (int64_t)((uint32_t)head / (uint32_t)per_group) * stride[2] +
           (int64_t)((uint32_t)head % (uint32_t)per_group) * stride[3];
}

template <typename T>
__device__ __forceinline__ void rotate_heads(const Rope<T> &o, const T *x, T *y, int64_t position,
                                             int64_t run) {
    constexpr int N = Rope<T>::N;
    const Run<Real<T>, N> cos = load_run<Real<T>, N>(o.cos + position * o.half, run * N, o.half, o.aligned),
                          sin = load_run<Real<T>, N>(o.sin + position * o.half, run * N, o.half, o.aligned);
    for (int64_t head = threadIdx.y; head < o.heads; head += blockDim.y) {
        T *to = y + head_offset(o.y_stride, head, o.per_group);
        Turned<T> p = load_pairs(o, x + head_offset(o.x_stride, head, o.per_group), run), old;
        if (o.add) old = load_pairs<T>(o, to, run);
        turn_all(o, &p, old, cos, sin);
        store_pairs(o, to, run, p);
    }
}

template <typename T>
__device__ __forceinline__ void copy_heads(const Rope<T> &o, const T *x, T *y, int64_t run) {
    constexpr int N = Rope<T>::N;
    for (int64_t head = threadIdx.y; head < o.heads; head += blockDim.y) {
        const T *from = x + head_offset(o.x_stride, head, o.per_group) + 2 * o.half;
        T *to = y + head_offset(o.y_stride, head, o.per_group) + 2 * o.half;
        Run<T, N> v = load_run<T, N>(from, run * N, o.rest, o.aligned), old;
        if (o.add) {
            old = load_run<T, N>(to, run * N, o.rest, o.aligned);
#pragma unroll
            for (int k = 0; k < N; k++) v.put(k, old.get(k) + v.get(k));
        }
        store_run<T, N>(to, run * N, o.rest, o.aligned, v);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 3)
    rotate(const __grid_constant__ Rope<T> o, CudaComplaint *complaint, const char *sentence) {
    int64_t token = (int64_t)blockIdx.x * blockDim.z + threadIdx.z;
    for (; token < o.tokens; token += (int64_t)gridDim.x * blockDim.z) {
        const int64_t s = token / o.samples, b = token % o.samples;
        const int64_t position = o.position[b * o.length + s];
        if (position < 0 || position >= o.table) {
            complain(complaint, sentence, position, o.table);
            continue;
        }
        const T *x = o.x + s * o.x_stride[0] + b * o.x_stride[1];
        T *y = o.y + s * o.y_stride[0] + b * o.y_stride[1];
        for (int64_t run = threadIdx.x; run < o.pair_runs + o.rest_runs; run += blockDim.x) {
            if (run < o.pair_runs)
                rotate_heads(o, x, y, position, run);
            else
                copy_heads(o, x, y, run - o.pair_runs);
        }
    }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

template <typename T> static void rope(const Call *c) {
    const Tensor *x = c->in[0], *cos = c->in[1], *sin = c->in[2], *y = c->out[0];
    const RopeAttr *a = (const RopeAttr *)c->attr;
    const int64_t half = a->dim / 2;
    Rope<T> o = {};
    o.x = data_of<T>(x), o.y = data_of<T>(y), o.cos = data_of<Real<T>>(cos), o.sin = data_of<Real<T>>(sin);
    o.position = ids_of(c->in[3]);
    o.tokens = x->dim[0] * x->dim[1], o.length = x->dim[0], o.samples = x->dim[1], o.table = cos->dim[0];
    for (int i = 0; i < 4; i++) o.x_stride[i] = x->stride[i], o.y_stride[i] = y->stride[i];
    o.half = half, o.rest = x->dim[4] - 2 * half, o.heads = x->dim[2] * x->dim[3], o.per_group = x->dim[3];
    o.pair_runs = ceil_div(half, VEC<T>), o.rest_runs = ceil_div(o.rest, VEC<T>);
    o.sign = a->inverse ? -1 : 1, o.interleaved = a->interleaved, o.add = accumulates(y);
    o.aligned = rows_are_aligned(x) && rows_are_aligned(y) && half % VEC<T> == 0 && aligned_16(o.cos) &&
                aligned_16(o.sin);
    const unsigned width = (unsigned)least(o.pair_runs + o.rest_runs, THREADS);
    const unsigned height = (unsigned)least(ceil_div(o.heads, HEADS), THREADS / width);
    const unsigned depth = (unsigned)least(THREADS / (width * height), MOST_DEEP);
    rotate<T><<<grid_for(c, o.tokens, depth), dim3(width, height, depth), 0, stream_of(c)>>>(
        o, c->device->cuda->complaint, "rope: position %lld, the table has %lld");
    LAUNCHED();
}

extern "C" void cuda_rope(const Call *c) {
    const Tensor *x = c->in[0], *cos = c->in[1], *sin = c->in[2], *y = c->out[0];
    const DType table = x->dtype == F64 ? F64 : F32;
    CHECK(x->dtype == y->dtype && cos->dtype == table && sin->dtype == table,
          "rope: %s to %s with tables of %s and %s", dtype_name((DType)x->dtype), dtype_name((DType)y->dtype),
          dtype_name((DType)cos->dtype), dtype_name((DType)sin->dtype));
    if (tensor_count(x)) STORAGE_SWITCH(x->dtype, rope<T>(c));
}
