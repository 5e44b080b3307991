/* Computes the ops of kernels/cpu/causal_conv.c, which contains the formulas.
 *
 * A thread computes adjacent channels of several positions, and each value is read from memory once. In the forward
 * pass, the warps of a block compute adjacent positions, so the inputs that they share are in the L1 cache. In the
 * backward pass, a thread computes many consecutive positions. It keeps the last inputs, the last gradients of `pre`, and
 * the sums of dw and dbias in registers. A block adds the sums of its warps, and a second kernel adds those of all
 * blocks.
 *
 * The number of instructions limits both kernels as much as the bandwidth does. Most positions use all inputs, so code
 * for these positions has no conditions. */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/logistic.cuh"
#include "kernels/cuda/mamba/mamba.cuh"
#include "kernels/cuda/vectors.cuh"

enum { LANES = 32, USUAL_TAPS = 4 };

template <typename T> struct Conv {
    const T *x;
    Cells w, bias; /* bias.data is NULL if there is no bias */
    const int64_t *start;
    int s, k;
    int64_t b, c, dense, along_s,
        along_b; /* dense: the distance of positions in y; the last two: strides of x */

    /* Returns how many earlier inputs position t uses, or a negative number after the last position. */
    __device__ __forceinline__ int reach(int t, int64_t sample) const {
        if (t >= s) return -1;
        return (int)least(start ? t - start[sample * s + t] : t, k - 1);
    }
    /* Returns true if positions t to t + N - 1 all use TAPS - 1 earlier inputs. */
    template <int TAPS, int N> __device__ __forceinline__ bool full(int t, int64_t sample) const {
        bool all = k == TAPS && t >= TAPS - 1 && t + N <= s;
        if (!start || !all) return all;
#pragma unroll
        for (int i = 0; i < N; i++) all &= reach(t + i, sample) == TAPS - 1;
        return all;
    }
};

template <typename T> static Conv<T> conv_of(Tensor *const *in) {
    const Tensor *x = in[0], *w = in[1];
    CHECK(w->dim[1] <= CONV_TAPS, "causal_conv: %lld taps, but at most %d are supported",
          (long long)w->dim[1], CONV_TAPS);
    CHECK(x->dim[0] < 1 << 30, "causal_conv: %lld positions are too many", (long long)x->dim[0]);
    return {data_of<T>(x), cells(w),  cells(in[2]),          ids_of(in[3]), (int)x->dim[0], (int)w->dim[1],
            x->dim[1],     x->dim[2], x->dim[1] * x->dim[2], x->stride[0],  x->stride[1]};
}

/* The adjacent channels of a thread, which begin at `first`. A block has LANES times as many channels of a sample. If
 * k < TAPS, the first TAPS - k weights are unused. */
template <typename T, int TAPS, bool WHOLE> struct Channels {
    /* With 16 bytes per thread, the values would not fit into registers. */
    enum { N = 8 / sizeof(T), TILE = LANES * N, ROOM = (TAPS + 1) * TILE };
    typedef Real<T> R;
    typedef Run<T, N> V;
    const Conv<T> &o;
    int part,
        count; /* the block's part of the positions; the number of channels, which can be < N, and < 0 */
    int64_t sample, first;
    R w[TAPS][N], bias[N];

    /* All threads of the block must call this function. `room` has ROOM elements. */
    __device__ __forceinline__ Channels(const Conv<T> &o, R *room) : o(o) {
        const unsigned tiles = (unsigned)tiles_of(o.c), samples = (unsigned)o.b,
                       column = threadIdx.x % LANES * N;
        const int64_t tile = (int64_t)(blockIdx.x % tiles) * TILE;
        sample = blockIdx.x / tiles % samples, part = (int)(blockIdx.x / tiles / samples);
        first = tile + column, count = (int)least(o.c - first, N);
        for (int i = threadIdx.x; i < ROOM; i += blockDim.x) {
            const int64_t j = tile + i % TILE;
            const int tap = i / TILE - (TAPS - o.k);
            room[i] = 0;
            if (j >= o.c || tap < 0) continue;
            if (tap < o.k)
                room[i] = o.w.template get<R>(j * o.k + tap);
            else if (o.bias.data)
                room[i] = o.bias.template get<R>(j);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TAPS; i++)
#pragma unroll
            for (int e = 0; e < N; e++) w[i][e] = room[i * TILE + column + e];
#pragma unroll
        for (int e = 0; e < N; e++) bias[e] = room[TAPS * TILE + column + e];
    }
    __host__ __device__ static __forceinline__ int64_t tiles_of(int64_t c) { return (c + TILE - 1) / TILE; }

    /* Returns the address of the thread's channels at position t. If WHOLE, threads without channels load the first
     * channels instead, so that loads have no condition. */
    template <typename P>
    __device__ __forceinline__ P *at(P *rows, int64_t along_s, int64_t along_b, int t) const {
        return rows + t * along_s + sample * along_b + (WHOLE && count <= 0 ? 0 : first);
    }
    __device__ __forceinline__ V load(const T *from) const {
        return load_or_clear<WHOLE, N>(from, 0, WHOLE ? N : count);
    }
    __device__ __forceinline__ void store(T *to, const R *v) const {
        V out;
        out.fill(v);
        store_or_skip<WHOLE>(to, 0, count, out);
    }
    /* Loads positions t to t + COUNT - 1. Unless INSIDE, other positions are loaded instead of those that do not
     * exist. `from` is the address of position t. */
    template <bool INSIDE, int COUNT>
    __device__ __forceinline__ void load_many(V *v, const T *from, int64_t along, int t) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++, from += INSIDE ? along : 0)
            v[i] = load(INSIDE ? from : from + (max(0, min(t + i, o.s - 1)) - t) * along);
    }
    /* Computes `pre`, given the inputs input(d, e) of d positions earlier. If FULL, all inputs are used. */
    template <bool FULL, typename F> __device__ __forceinline__ void pre(R *sum, int reach, F input) const {
#pragma unroll
        for (int e = 0; e < N; e++) sum[e] = bias[e];
#pragma unroll
        for (int d = TAPS - 1; d >= 0; d--) {
            if (!FULL && d > reach) continue;
#pragma unroll
            for (int e = 0; e < N; e++) sum[e] += w[TAPS - 1 - d][e] * input(d, e);
        }
    }
};

/* ---- forward ---- */

/* ROWS: positions that a thread computes together. */
enum { WARPS = THREADS / LANES, ROWS = 4 };

template <bool FULL, typename T, int TAPS, bool WHOLE>
__device__ __forceinline__ void convolve(const Channels<T, TAPS, WHOLE> &own, const T *x_at, T *y_at, int t) {
    typedef Channels<T, TAPS, WHOLE> Own;
    const Conv<T> &o = own.o;
    typename Own::V x[TAPS - 1 + ROWS];
    own.template load_many<FULL, TAPS - 1 + ROWS>(x, x_at, o.along_s, t - (TAPS - 1));
#pragma unroll
    for (int r = 0; r < ROWS; r++, y_at += o.dense) {
        Real<T> v[Own::N];
        if (!FULL && t + r >= o.s) return;
        own.template pre<FULL>(v, FULL ? TAPS - 1 : o.reach(t + r, own.sample),
                               [&](int d, int e) { return x[TAPS - 1 + r - d].get(e); });
#pragma unroll
        for (int e = 0; e < Own::N; e++) v[e] *= logistic<T>(v[e]);
        own.store(y_at, v);
    }
}

/* A block computes `positions` positions. */
template <typename T, int TAPS, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, TAPS == USUAL_TAPS ? 4 : 2)
    convolved(Conv<T> o, T *y, int positions) {
    typedef Channels<T, TAPS, WHOLE> Own;
    __shared__ __align__(16) Real<T> room[Own::ROOM];
    start_pdl();
    const Own own(o, room);
    const int end = (int)least((own.part + 1) * positions, o.s);
    int t = own.part * positions + threadIdx.x / LANES * ROWS;
    const T *x_at = own.at(o.x, o.along_s, o.along_b, t - (TAPS - 1));
    T *y_at = own.at(y, o.dense, o.c, t);
    for (; t < end; t += WARPS * ROWS, x_at += WARPS * ROWS * o.along_s, y_at += WARPS * ROWS * o.dense) {
        if (o.template full<TAPS, ROWS>(t, own.sample))
            convolve<true>(own, x_at, y_at, t);
        else
            convolve<false>(own, x_at, y_at, t);
    }
}

template <typename T> static void forward(const Call *c) {
    enum { ENOUGH = 2048 /* blocks */ };
    const Conv<T> o = conv_of<T>(c->in);
    const bool whole = rows_are_aligned(c->in[0]) && rows_are_aligned(c->out[0]);
    const int64_t tiles = Channels<T, USUAL_TAPS, true>::tiles_of(o.c) * o.b;
    const auto kernel = o.k > USUAL_TAPS ? convolved<T, CONV_TAPS, false>
                        : whole          ? convolved<T, USUAL_TAPS, true>
                                         : convolved<T, USUAL_TAPS, false>;
    int positions = 8 * WARPS * ROWS;
    while (positions > WARPS * ROWS && tiles * ceil_div(o.s, positions) < ENOUGH) positions /= 2;
    launch_pdl(c, (unsigned)(tiles * ceil_div(o.s, positions)), THREADS, 0, kernel, o, data_of<T>(c->out[0]),
               positions);
}

extern "C" void cuda_causal_conv(const Call *c) {
    same_type("causal_conv", c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

/* ---- backward ---- */

enum { GRAD_THREADS = 128, GRAD_WARPS = GRAD_THREADS / LANES };

template <typename T> struct Grads {
    const T *dy;
    T *dx;                    /* NULL if not needed */
    Real<T> *partial;         /* [parts,b,k+1,c]: the sums of dw and of dbias; NULL if not needed */
    int64_t along_s, along_b; /* strides of dx */
    int length;               /* positions per thread */
    bool add;                 /* if true, adds to dx */
};

/* The gradients of positions `begin` to end - 1. The values of position t are in slot (t - begin) % TAPS. */
template <typename T, int TAPS, bool WHOLE> struct Gradients {
    typedef Channels<T, TAPS, WHOLE> Own;
    typedef typename Own::V V;
    typedef Real<T> R;
    enum { N = Own::N };
    const Own &own;
    const Grads<T> &g;
    const int begin, end;
    const T *x_at, *dy_at;         /* the addresses of the positions that are loaded next */
    T *dx_at;                      /* the address of the position that is written next */
    V next_x[TAPS], next_dy[TAPS]; /* the operands of the next step */
    R x[TAPS][N], dpre[TAPS][N] = {}, sum[TAPS + 1][N] = {};

    __device__ __forceinline__ Gradients(const Own &own, const Grads<T> &g, int begin)
        : own(own), g(g), begin(begin), end((int)least(begin + g.length, own.o.s)),
          x_at(own.at(own.o.x, own.o.along_s, own.o.along_b, begin - TAPS)),
          dy_at(own.at(g.dy, own.o.dense, own.o.c, begin - TAPS)),
          dx_at(own.at(g.dx, g.along_s, g.along_b, begin)) {
        load(begin - TAPS);
#pragma unroll
        for (int i = 0; i < TAPS; i++)
#pragma unroll
            for (int e = 0; e < N; e++) x[i][e] = next_x[i].get(e);
        load(begin);
    }
    __device__ __forceinline__ void run() {
        bool full = false;
        for (int t = begin; t < end + TAPS - 1; t += TAPS) {
            const bool before = full;
            full = !g.add && t + TAPS <= end && own.o.template full<TAPS, TAPS>(t, own.sample);
            if (full && before)
                step<true>(t);
            else
                step<false>(t);
        }
    }

  private:
    __device__ __forceinline__ void load(int t) {
        const Conv<T> &o = own.o;
        if (t >= 0 && t + TAPS <= o.s) {
            own.template load_many<true, TAPS>(next_x, x_at, o.along_s, t);
            own.template load_many<true, TAPS>(next_dy, dy_at, o.dense, t);
        } else {
            own.template load_many<false, TAPS>(next_x, x_at, o.along_s, t);
            own.template load_many<false, TAPS>(next_dy, dy_at, o.dense, t);
        }
        x_at += TAPS * o.along_s, dy_at += TAPS * o.dense;
    }
    __device__ __forceinline__ int reach(int t) const { return own.o.reach(t, own.sample); }
    /* Computes dpre of positions t to t + TAPS - 1, and dx of those TAPS - 1 positions earlier. If FULL, the thread
     * writes dx of all of them, and each of these 2 TAPS - 1 positions uses TAPS - 1 earlier inputs. */
    template <bool FULL> __device__ __forceinline__ void step(int t) {
        V now_x[TAPS], now_dy[TAPS];
#pragma unroll
        for (int r = 0; r < TAPS; r++) now_x[r] = next_x[r], now_dy[r] = next_dy[r];
        load(t + TAPS);
#pragma unroll
        for (int r = 0; r < TAPS; r++) {
            const int done = t + r - (TAPS - 1), used = FULL ? TAPS - 1 : reach(t + r);
            R v[N];
#pragma unroll
            for (int e = 0; e < N; e++) x[r][e] = now_x[r].get(e);
            own.template pre<FULL>(v, used, [&](int d, int e) { return x[(r - d + TAPS) % TAPS][e]; });
#pragma unroll
            for (int e = 0; e < N; e++) {
                const R gate = logistic<T>(v[e]);
                dpre[r][e] = now_dy[r].get(e) * gate * (1 + v[e] * (1 - gate));
            }
            if (g.partial && (FULL || t + r < end)) add_sums<FULL>(r, used);
            if (g.dx && (FULL || (done >= begin && done < end))) write<FULL>(r, done);
        }
    }
    template <bool FULL> __device__ __forceinline__ void add_sums(int r, int used) {
#pragma unroll
        for (int d = 0; d < TAPS; d++) {
            if (!FULL && d > used) continue;
#pragma unroll
            for (int e = 0; e < N; e++) sum[TAPS - 1 - d][e] += dpre[r][e] * x[(r - d + TAPS) % TAPS][e];
        }
#pragma unroll
        for (int e = 0; e < N; e++) sum[TAPS][e] += dpre[r][e];
    }
    template <bool FULL> __device__ __forceinline__ void write(int r, int t) {
        const V old = !FULL && g.add ? own.load(dx_at) : V();
        R v[N];
#pragma unroll
        for (int e = 0; e < N; e++) v[e] = old.get(e);
#pragma unroll
        for (int d = 0; d < TAPS; d++) {
            if (!FULL && d > reach(t + d)) continue;
#pragma unroll
            for (int e = 0; e < N; e++) v[e] += own.w[TAPS - 1 - d][e] * dpre[(r + 1 + d) % TAPS][e];
        }
        own.store(dx_at, v);
        dx_at += g.along_s;
    }
};

template <typename T, int TAPS, bool WHOLE>
static __global__ void __launch_bounds__(GRAD_THREADS, TAPS == USUAL_TAPS ? 4 : 2)
    gradients(Conv<T> o, Grads<T> g) {
    typedef Channels<T, TAPS, WHOLE> Own;
    typedef Real<T> R;
    constexpr int N = Own::N;
    __shared__ __align__(16) R room[GRAD_WARPS * Own::ROOM];
    start_pdl();
    const Own own(o, room);
    const int warp = threadIdx.x / LANES;
    Gradients<T, TAPS, WHOLE> all(own, g, (own.part * GRAD_WARPS + warp) * g.length);
    all.run();
    if (!g.partial) return;
    const int lane = threadIdx.x % LANES * N, missing = TAPS - o.k;
    __syncthreads();
#pragma unroll
    for (int i = 0; i <= TAPS; i++)
#pragma unroll
        for (int e = 0; e < N; e++) room[warp * Own::ROOM + i * Own::TILE + lane + e] = all.sum[i][e];
    __syncthreads();
    for (int i = missing + warp; i <= TAPS; i += GRAD_WARPS) {
        Run<R, N> out;
        R v[N] = {};
        for (int w = 0; w < GRAD_WARPS; w++)
#pragma unroll
            for (int e = 0; e < N; e++) v[e] += room[w * Own::ROOM + i * Own::TILE + lane + e];
        out.fill(v);
        store_or_skip<WHOLE>(g.partial + ((own.part * o.b + own.sample) * (o.k + 1) + i - missing) * o.c,
                             own.first, o.c, out);
    }
}

/* How the positions of x are distributed. Must not depend on the requested outputs, so that calls for single outputs are
 * bitwise equal to one call for all outputs. */
struct Plan {
    int length;           /* positions per thread */
    int64_t rows, blocks; /* rows: the number of rows of `partial` */
};

template <typename T> static Plan plan_of(const Tensor *x) {
    enum { LONGEST = 128, SHORTEST = 16, ENOUGH = 512 /* blocks */ };
    const int64_t s = x->dim[0], b = x->dim[1], tiles = Channels<T, USUAL_TAPS, true>::tiles_of(x->dim[2]);
    Plan p = {LONGEST};
    while (p.length > SHORTEST && ceil_div(s, p.length * GRAD_WARPS) * b * tiles < ENOUGH) p.length /= 2;
    p.rows = ceil_div(s, p.length * GRAD_WARPS) * b;
    p.blocks = p.rows * tiles;
    return p;
}

template <typename T> static size_t partial_bytes(const Call *c) {
    const Tensor *x = c->in[1], *w = c->in[2];
    if (!c->out[1] && !c->out[2]) return 0;
    return (size_t)(plan_of<T>(x).rows * (w->dim[1] + 1) * x->dim[2]) * sizeof(Real<T>);
}

extern "C" size_t cuda_plans_causal_conv_grad(const Call *c) {
    size_t bytes = 0;
    STORAGE_SWITCH(c->in[1]->dtype, bytes = partial_bytes<T>(c));
    return bytes;
}

template <typename T> static void backward(const Call *c) {
    const Conv<T> o = conv_of<T>(c->in + 1);
    const Tensor *dy = c->in[0], *x = c->in[1], *dx = c->out[0];
    const Plan plan = plan_of<T>(x);
    const size_t bytes = partial_bytes<T>(c);
    const Grads<T> g = {data_of<T>(dy),
                        data_of<T>(dx),
                        bytes ? (Real<T> *)cuda_scratch(c->device, bytes) : NULL,
                        dx ? dx->stride[0] : 0,
                        dx ? dx->stride[1] : 0,
                        plan.length,
                        accumulates(dx)};
    const bool whole = rows_are_aligned(dy) && rows_are_aligned(x) && (!dx || rows_are_aligned(dx));
    const auto kernel = o.k > USUAL_TAPS ? gradients<T, CONV_TAPS, false>
                        : whole          ? gradients<T, USUAL_TAPS, true>
                                         : gradients<T, USUAL_TAPS, false>;
    if (plan.blocks) launch_pdl(c, (unsigned)plan.blocks, GRAD_THREADS, 0, kernel, o, g);
    sum_columns(c, g.partial, plan.rows, (o.k + 1) * o.c, {c->out[1], 0, o.k}, {c->out[2], o.k * o.c, 1});
}

extern "C" void cuda_causal_conv_grad(const Call *c) {
    same_type("causal_conv_grad", c->in[1], c->in[0]);
    same_type("causal_conv_grad", c->in[1], c->out[0]);
    STORAGE_SWITCH(c->in[1]->dtype, backward<T>(c));
}
