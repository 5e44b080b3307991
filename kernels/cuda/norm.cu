/* The ops of kernels/cpu/norm.c; formulas there.
 *
 * Rows of whole vectors of 16 bytes are read from memory once: norm keeps them in registers (add_norm the
 * sum, rounded, so that it gives the bits of add and norm: one kernel computes both); norm_grad has the next
 * row on its way into shared memory while it computes this one, and sums dgain and dbias over its rows in
 * registers. Those sums of blocks are added in the order of the blocks, whose number depends on sizes and the
 * GPU alone. All other rows (of odd widths, at odd places, wider, of mixed types) go element by element.
 *
 * Instructions are as scarce as bytes: a row of 2048 elements of 16 bits may take a multiprocessor of an H200
 * about 2000 of a warp's if it is to take no longer than its memory. So few threads have many vectors each,
 * and what a row needs once is kept short. */
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/slots.cuh"

/* What all kernels here need to know. */
template <typename R> struct Norm {
    int64_t rows, width;
    bool rms;
    R plus, eps, per_width; /* 1 / width */
};

template <typename R> static Norm<R> norm_of(const Call *c, const Tensor *x) {
    const NormAttr *a = (const NormAttr *)c->attr;
    const int64_t width = tensor_width(x);
    const Norm<R> o = {tensor_rows(x), width, a->rms, (R)(a->one_plus ? 1 : 0), (R)a->eps, 1 / (R)width};
    return o;
}

template <typename T> static bool is_type(const Tensor *t) {
    const DType want = sizeof(T) == 8 ? F64 : sizeof(T) == 4 ? F32 : t && t->dtype == F16 ? F16 : BF16;
    return !t || t->dtype == want;
}
/* Whether t is NULL or of x's type and can be read as vectors beside it. */
static bool matches(const Tensor *t, const Tensor *x) {
    return !t || (t->dtype == x->dtype && aligned_16(t->data));
}

/* Blocks of teams, a row to each. */
static unsigned team_grid(int64_t rows, TeamShape shape) {
    const int64_t blocks = ceil_div(rows, shape.count);
    return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}
/* Threads of a row that goes element by element. */
static TeamShape cells_team(int64_t width) {
    return team_for(width < 1024 ? 32 : TEAM_BLOCK, TEAM_BLOCK, false);
}

/* ---- norm, add_norm ---- */

/* x, or x + branch, which is contiguous as the sum is; both NULL: x. */
struct NormOperands {
    const Tensor *x, *branch, *gain, *bias, *sum, *y, *rstd, *mean;
};

template <typename T> struct NormVectors {
    const T *x, *branch, *gain, *bias;
    T *sum, *y;
    Real<T> *rstd, *mean;
    Starts x_rows;
};

/* K vectors of a row in a thread's registers: those at lane, lane + size, ... */
template <typename T, int K> struct Held {
    typedef Real<T> R;
    enum { N = VEC<T> };
    typedef Run<T, N> V;
    V x[K];

    /* What a row has no vectors for is 0. */
    __device__ __forceinline__ void load(const T *row, const Team<R, false> &team, int vectors) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int i = team.lane + k * team.size;
            x[k] = V();
            if (i < vectors) x[k] = ((const V *)row)[i];
        }
    }
    /* Each sum rounded, as an op of its own would have stored it. */
    __device__ __forceinline__ void add(const Held &other) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            R both[N];
#pragma unroll
            for (int e = 0; e < N; e++) both[e] = x[k].get(e) + other.x[k].get(e);
            x[k].fill(both);
        }
    }
    __device__ __forceinline__ void store(T *row, const Team<R, false> &team, int vectors) const {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int i = team.lane + k * team.size;
            if (i < vectors) ((V *)row)[i] = x[k];
        }
    }
};

/* Their numbers; 0 for what a row does not have. */
template <typename T, int K> struct Numbers {
    typedef Real<T> R;
    enum { N = VEC<T> };
    typedef Run<T, N> V;
    R v[K * N];

    __device__ __forceinline__ explicit Numbers(const Held<T, K> &held) {
#pragma unroll
        for (int i = 0; i < K * N; i++) v[i] = held.x[i / N].get(i % N);
    }
    __device__ __forceinline__ R sum() const {
        R sum = 0;
#pragma unroll
        for (int i = 0; i < K * N; i++) sum += v[i];
        return sum;
    }
    __device__ __forceinline__ R squares() const {
        R sum = 0;
#pragma unroll
        for (int i = 0; i < K * N; i++) sum += v[i] * v[i];
        return sum;
    }
    __device__ __forceinline__ void subtract(R mean, const Team<R, false> &team, int vectors) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const R less = team.lane + k * team.size < vectors ? mean : (R)0;
#pragma unroll
            for (int e = 0; e < N; e++) v[k * N + e] -= less;
        }
    }
    /* The normalised row, of numbers less their mean. */
    template <bool PLUS>
    __device__ __forceinline__ void write(const NormVectors<T> &p, R rstd, T *y, const Team<R, false> &team,
                                          int vectors) const {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int i = team.lane + k * team.size;
            if (i >= vectors) break;
            const V gain = constant_vector((const V *)p.gain + i);
            V bias = V(), out;
            R w[N];
            if (p.bias) bias = constant_vector((const V *)p.bias + i);
#pragma unroll
            for (int e = 0; e < N; e++) {
                const R g = PLUS ? 1 + gain.get(e) : gain.get(e);
                w[e] = fma(v[k * N + e] * rstd, g, bias.get(e));
            }
            out.fill(w);
            ((V *)y)[i] = out;
        }
    }
};

/* Vectors of a thread: all of them, and those of a branch, are on their way from memory at once, and fit into
 * 64 registers. */
enum { ROW_HELD = 4 };

template <typename T, bool ADDS, bool PLUS>
static __global__ void __launch_bounds__(TEAM_LARGEST, 1) norm_vectors(Norm<Real<T>> o, NormVectors<T> p) {
    typedef Real<T> R;
    __shared__ R room[Team<R, false>::ROOM];
    Team<R, false> team(room);
    const int vectors = (int)o.width / VEC<T>;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t first = (int64_t)blockIdx.x * blockDim.y; first < o.rows; first += step) {
        const int64_t row = first + team.index;
        const bool live = row < o.rows; /* the last teams have no row, but go along */
        Held<T, ROW_HELD> held;
        held.load(p.x + p.x_rows(live ? row : 0), team, vectors);
        if (ADDS) {
            Held<T, ROW_HELD> branch;
            branch.load(p.branch + (live ? row : 0) * o.width, team, vectors);
            held.add(branch);
            if (live) held.store(p.sum + row * o.width, team, vectors);
        }
        Numbers<T, ROW_HELD> x(held);
        R mean = 0;
        if (!o.rms) {
            mean = team.sum(x.sum()) * o.per_width;
            x.subtract(mean, team, vectors);
        }
        const R rstd = 1 / sqrt(team.sum(x.squares()) * o.per_width + o.eps);
        if (!live) continue; /* in the last round only */
        x.template write<PLUS>(p, rstd, p.y + row * o.width, team, vectors);
        if (team.lane == 0) {
            p.rstd[row] = rstd;
            if (p.mean) p.mean[row] = mean;
        }
    }
}

/* The operands as Cells. */
struct NormCells {
    Cells x, branch, gain, bias, sum, y, rstd, mean;
};

template <typename R> static __global__ void norm_cells(Norm<R> o, NormCells p, Rows x_rows) {
    __shared__ R room[Team<R, false>::ROOM];
    Team<R, false> team(room);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    const bool adds = p.branch.data;
    const Cells x = adds ? p.sum : p.x;
    for (int64_t first = (int64_t)blockIdx.x * blockDim.y; first < o.rows; first += step) {
        const int64_t row = first + team.index;
        const bool live = row < o.rows;
        const int64_t given = x_rows(live ? row : 0), dense = (live ? row : 0) * o.width,
                      from = adds ? dense : given;
        R sum = 0, squares = 0;
        /* A thread reads no sums but its own. */
        for (int64_t i = team.lane; live && adds && i < o.width; i += team.size)
            p.sum.put(dense + i, p.x.get<R>(given + i) + p.branch.get<R>(dense + i));
        if (!o.rms)
            for (int64_t i = team.lane; i < o.width; i += team.size) sum += x.get<R>(from + i);
        const R mean = o.rms ? (R)0 : team.sum(sum) * o.per_width;
        for (int64_t i = team.lane; i < o.width; i += team.size) {
            const R d = x.get<R>(from + i) - mean;
            squares += d * d;
        }
        const R rstd = 1 / sqrt(team.sum(squares) * o.per_width + o.eps);
        if (!live) continue; /* in the last round only */
        for (int64_t i = team.lane; i < o.width; i += team.size) {
            const R v = (x.get<R>(from + i) - mean) * rstd * (o.plus + p.gain.get<R>(i));
            p.y.put(dense + i, p.bias.data ? v + p.bias.get<R>(i) : v);
        }
        if (team.lane == 0) {
            p.rstd.put(row, rstd);
            if (p.mean.data) p.mean.put(row, mean);
        }
    }
}

/* Whether it took the call. */
template <typename T> static bool norm_by_vectors(const Call *c, const NormOperands &n) {
    const Tensor *x = n.x;
    NormVectors<T> p = {
        data_of<T>(x),     data_of<T>(n.branch), data_of<T>(n.gain),       data_of<T>(n.bias),
        data_of<T>(n.sum), data_of<T>(n.y),      data_of<Real<T>>(n.rstd), data_of<Real<T>>(n.mean)};
    const int64_t vectors = tensor_width(x) / VEC<T>;
    if (!rows_are_aligned(x) || !matches(n.branch, x) || !matches(n.gain, x) || !matches(n.bias, x) ||
        !matches(n.sum, x) || !matches(n.y, x) || !is_type<Real<T>>(n.rstd) || !is_type<Real<T>>(n.mean) ||
        vectors > ROW_HELD * TEAM_LARGEST || !starts_of(x, &p.x_rows))
        return false;
    const Norm<Real<T>> o = norm_of<Real<T>>(c, x);
    const TeamShape shape = team_for(ceil_div(vectors, vectors <= 64 ? 2 : ROW_HELD), TEAM_BLOCK, false);
    const auto kernel = o.plus != 0 ? n.branch ? norm_vectors<T, true, true> : norm_vectors<T, false, true>
                        : n.branch ? norm_vectors<T, true, false>
                                    : norm_vectors<T, false, false>;
    kernel<<<team_grid(o.rows, shape), team_block(shape), 0, stream_of(c)>>>(o, p);
    LAUNCHED();
    return true;
}

template <typename R> static void norm_by_cells(const Call *c, const NormOperands &n) {
    const Norm<R> o = norm_of<R>(c, n.x);
    const TeamShape shape = cells_team(o.width);
    const NormCells p = {cells(n.x),   cells(n.branch), cells(n.gain), cells(n.bias),
                         cells(n.sum), cells(n.y),      cells(n.rstd), cells(n.mean)};
    norm_cells<R><<<team_grid(o.rows, shape), team_block(shape), 0, stream_of(c)>>>(o, p, rows_of(n.x));
    LAUNCHED();
}

static void run_norm(const Call *c, const NormOperands &n) {
    bool done = false;
    if (!tensor_count(n.x)) return;
    STORAGE_SWITCH(n.x->dtype, done = norm_by_vectors<T>(c, n));
    if (!done) REAL_SWITCH(lead_type(c), norm_by_cells<R>(c, n));
}

extern "C" void cuda_norm(const Call *c) {
    const NormOperands n = {c->in[0], NULL, c->in[1], c->in[2], NULL, c->out[0], c->out[1], c->out[2]};
    run_norm(c, n);
}

extern "C" void cuda_add_norm(const Call *c) {
    const NormOperands n = {c->in[0],  c->in[1],  c->in[2],  c->in[3],
                            c->out[0], c->out[1], c->out[2], c->out[3]};
    CHECK(tensor_is_contiguous(n.x) && tensor_is_contiguous(n.branch), "add_norm: a and b are contiguous");
    run_norm(c, n);
}

/* ---- norm_grad by vectors ---- */

/* Vectors of a row that a thread has: the more, the fewer instructions a row takes beside those of its
 * elements; the sums of their columns take half of the registers of LayerNorm. A block is all that a
 * multiprocessor has. */
enum { HELD = 4, RESIDENT = 512 };

template <typename T> struct GradVectors {
    const T *dy, *x, *gain;
    T *dx;
    const Real<T> *rstd, *mean;
    Real<T> *partial; /* [2, blocks, width]: of dgain, of dbias; NULL: neither is wanted */
    Starts x_rows, dx_rows;
    bool add;   /* to dx */
    int stages; /* rows that are on their way or in work: 1 or 2 */
};

/* One thread's share: its vectors of the rows in work, in shared memory, and the sums of its columns. PLUS:
 * gains count from 1. */
template <typename T, bool RMS, bool PLUS> struct GradThread {
    typedef Real<T> R;
    enum { N = VEC<T>, K = HELD };
    typedef Run<T, N> V;
    enum Operand { DY, X, OLD, OPERANDS };
    const Norm<R> &o;
    const GradVectors<T> &p;
    Team<R, true> team;
    int width, threads, thread; /* of the block, and which one this is */
    Slots<V> slots;
    V gain[K];
    alignas(16) R gain_sum[K * N], bias_sum[K * N];

    __device__ __forceinline__ GradThread(const Norm<R> &o, const GradVectors<T> &p, R *room, V *shared)
        : o(o), p(p), team(room), width((int)o.width), threads((int)(blockDim.x * blockDim.y)),
          thread(team.index * team.size + team.lane), slots(shared) {
        slots.first += (uint32_t)sizeof(V) * (uint32_t)(thread / 32 * (OPERANDS * K * 32) + thread % 32);
#pragma unroll
        for (int k = 0; k < K; k++)
            if (column(k) < width) gain[k] = constant_vector((const V *)(p.gain + column(k)));
#pragma unroll
        for (int i = 0; i < K * N; i++) gain_sum[i] = bias_sum[i] = 0;
    }
    __device__ __forceinline__ int column(int k) const { return (team.lane + k * team.size) * N; }
    __device__ __forceinline__ R gain_of(int k, int e) const {
        return PLUS ? 1 + gain[k].get(e) : gain[k].get(e);
    }
    /* A warp's slots lie together, so that a thread's own are at constant distances. */
    __device__ __forceinline__ Slots<V> slots_of(int stage) const {
        Slots<V> own = slots;
        own.first += (uint32_t)sizeof(V) * (uint32_t)(stage * (OPERANDS * K) * threads);
        return own;
    }
    static __device__ __forceinline__ int slot(Operand what, int k) { return (what * K + k) * 32; }
    __device__ __forceinline__ void fetch_one(const Slots<V> &own, Operand what, const T *row) const {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (column(k) < width) own.fetch(slot(what, k), row + column(k));
    }
    __device__ __forceinline__ void fetch(int stage, uint32_t row) const {
        const Slots<V> own = slots_of(stage);
        if (row < o.rows) {
            fetch_one(own, DY, p.dy + (int64_t)row * width);
            fetch_one(own, X, p.x + p.x_rows(row));
            if (p.add) fetch_one(own, OLD, p.dx + p.dx_rows(row));
        }
        __pipeline_commit();
    }
    /* Adds this row to the sums of columns, and finds mean(dy g) and rstd mean(dy g xhat). */
    __device__ __forceinline__ void means(int stage, bool live, R mean, R rstd, R *sum, R *along) {
        const Slots<V> own = slots_of(stage);
        R s = 0, a = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (!live || column(k) >= width) continue;
            const V dy = own[slot(DY, k)], x = own[slot(X, k)];
#pragma unroll
            for (int e = 0; e < N; e++) {
                const R d = dy.get(e), g = gain_of(k, e);
                const R across = d * (RMS ? x.get(e) : x.get(e) - mean);
                a += g * across;
                gain_sum[k * N + e] += across * rstd;
                if (RMS) continue;
                s += g * d;
                bias_sum[k * N + e] += d;
            }
        }
        if (!p.dx) return;
        if (RMS)
            a = team.sum(a);
        else
            team.sums(s, a);
        *sum = RMS ? (R)0 : s * o.per_width;
        *along = a * rstd * o.per_width * rstd;
    }
    __device__ __forceinline__ void write(int stage, uint32_t row, R mean, R rstd, R sum, R along) const {
        const Slots<V> own = slots_of(stage);
        T *out = p.dx + p.dx_rows(row);
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (column(k) >= width) continue;
            const V dy = own[slot(DY, k)], x = own[slot(X, k)];
            V old = V(), dx;
            R v[N];
            if (p.add) old = own[slot(OLD, k)];
#pragma unroll
            for (int e = 0; e < N; e++) {
                const R g = dy.get(e) * gain_of(k, e);
                v[e] = fma(rstd, g - sum - (x.get(e) - mean) * along, old.get(e));
            }
            dx.fill(v);
            *(V *)(out + column(k)) = dx;
        }
    }
    /* The block's sums of columns, all rows done, to row `block` of `out`. */
    __device__ __forceinline__ void sum_block(const R *mine, V *shared, R *out) const {
        out += (int64_t)blockIdx.x * width;
        if (threads == team.size) {
            constexpr int P = VEC<R>; /* sums of one store */
#pragma unroll
            for (int i = 0; i < K * N; i += P)
                if (column(i / N) < width)
                    *(Vec<R, P> *)(out + column(i / N) + i % N) = *(const Vec<R, P> *)(mine + i);
            return;
        }
        /* The slots hold two operands of storage; this is no more. */
        static_assert(N * sizeof(R) <= 2 * sizeof(V),
                      "the sums of a block's columns do not fit into its slots");
        R *all = (R *)shared;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < K * N; i++) all[i * threads + thread] = mine[i];
        __syncthreads();
        for (int c = thread; c < width; c += threads) {
            const int vector = c / N, i = vector / team.size * N + c % N;
            R sum = 0;
            for (int at = vector % team.size; at < threads; at += team.size) sum += all[i * threads + at];
            out[c] = sum;
        }
    }
};

template <typename T, bool RMS, bool PLUS>
static __global__ void __launch_bounds__(RESIDENT) grad_vectors(Norm<Real<T>> o, GradVectors<T> p) {
    typedef Real<T> R;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ R room[Team<R, true>::ROOM];
    typedef GradThread<T, RMS, PLUS> Thread;
    typename Thread::V *slots = (typename Thread::V *)shared;
    Thread t(o, p, room, slots);
    /* Of a tensor with Starts: 31 bits, and one more for the row after next. */
    const uint32_t step = gridDim.x * blockDim.y, rows = (uint32_t)o.rows;
    uint32_t first = blockIdx.x * blockDim.y, row = first + threadIdx.y;
    int stage = 0;
    for (int i = 0; i < p.stages; i++) t.fetch(i, row + i * step);
    R next_rstd = row < rows ? p.rstd[row] : (R)0, next_mean = row < rows && !RMS ? p.mean[row] : (R)0;
    for (; first < rows; first += step, row += step) {
        const R rstd = next_rstd, mean = next_mean;
        R sum = 0, along = 0;
        if (row + step < rows) {
            next_rstd = p.rstd[row + step];
            if (!RMS) next_mean = p.mean[row + step];
        }
        if (p.stages > 1)
            __pipeline_wait_prior(1);
        else
            __pipeline_wait_prior(0);
        t.means(stage, row < rows, mean, rstd, &sum, &along);
        if (p.dx && row < rows) t.write(stage, row, mean, rstd, sum, along);
        t.fetch(stage, row + p.stages * step);
        stage = stage + 1 < p.stages ? stage + 1 : 0;
    }
    __pipeline_wait_prior(0);
    if (!p.partial) return;
    t.sum_block(t.gain_sum, slots, p.partial);
    if (!RMS) t.sum_block(t.bias_sum, slots, p.partial + gridDim.x * o.width);
}

/* How norm_grad goes over rows of vectors; the same whichever outputs are wanted, so that two calls for some
 * of them each give what one call for all does. */
struct GradPlan {
    TeamShape shape;
    int blocks, stages; /* 0 blocks: it cannot */
    int stage, most;    /* bytes that a block has of a stage, and that it may have in all */
};

static GradPlan grad_plan(const Call *c) {
    enum { OPERANDS = 3, BESIDE = 2048 }; /* bytes of a block beside its stages: sums, CUDA's own */
    const Tensor *x = c->in[1];
    const Cuda *gpu = c->device->cuda;
    const int64_t lanes = ceil_div(tensor_width(x), HELD * 16 / (int64_t)dtype_size((DType)x->dtype));
    GradPlan p = {{1, 1}, 0, 0, 0, 0};
    if (lanes > RESIDENT) return p;
    CUDA_CHECK(cudaDeviceGetAttribute(&p.most, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu->ordinal));
    p.shape = team_for(lanes, RESIDENT, true);
    p.stage = OPERANDS * HELD * 16 * team_threads(p.shape);
    p.most -= BESIDE;
    if (p.stage > p.most) return p;
    p.stages = 2 * p.stage <= p.most ? 2 : 1;
    const int64_t blocks = ceil_div(tensor_rows(x), p.shape.count);
    p.blocks = (int)(blocks < gpu->multiprocessors ? blocks : gpu->multiprocessors);
    return p;
}

/* ---- norm_grad by elements ---- */

/* Operands as in the op. */
struct GradCells {
    Cells dy, x, gain, rstd, mean, dx;
    Rows x_rows, dx_rows;
    bool add;
};

template <typename R> static __global__ void dx_cells(Norm<R> o, GradCells p) {
    __shared__ R room[Team<R, false>::ROOM];
    Team<R, false> team(room);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t first = (int64_t)blockIdx.x * blockDim.y; first < o.rows; first += step) {
        const int64_t row = first + team.index, r = row < o.rows ? row : 0;
        const int64_t dy = r * o.width, x = p.x_rows(r), dx = p.dx_rows(r);
        const R rstd = p.rstd.get<R>(r), mean = o.rms ? (R)0 : p.mean.get<R>(r);
        R sum = 0, along = 0;
        for (int64_t i = team.lane; i < o.width; i += team.size) {
            const R g = p.dy.get<R>(dy + i) * (o.plus + p.gain.get<R>(i));
            sum += g;
            along += g * ((p.x.get<R>(x + i) - mean) * rstd);
        }
        team.sums(sum, along);
        sum = o.rms ? (R)0 : sum * o.per_width;
        along *= o.per_width;
        if (row >= o.rows) continue; /* in the last round only */
        for (int64_t i = team.lane; i < o.width; i += team.size) {
            const R g = p.dy.get<R>(dy + i) * (o.plus + p.gain.get<R>(i));
            p.dx.put_or_add(dx + i, rstd * (g - sum - (p.x.get<R>(x + i) - mean) * rstd * along), p.add);
        }
    }
}

/* partial[., y, column]: sums over every `chunks`-th row. */
enum { CELLS_CHUNKS = 128 };
template <typename R> static __global__ void columns_cells(Norm<R> o, GradCells p, R *partial) {
    const int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, chunks = gridDim.y;
    if (column >= o.width) return;
    R gain_sum = 0, bias_sum = 0;
    for (int64_t r = blockIdx.y; r < o.rows; r += chunks) {
        const R dy = p.dy.get<R>(r * o.width + column), mean = o.rms ? (R)0 : p.mean.get<R>(r);
        gain_sum += dy * ((p.x.get<R>(p.x_rows(r) + column) - mean) * p.rstd.get<R>(r));
        bias_sum += dy;
    }
    partial[blockIdx.y * o.width + column] = gain_sum;
    partial[(chunks + blockIdx.y) * o.width + column] = bias_sum;
}

static int64_t cells_chunks(int64_t rows) { return rows < CELLS_CHUNKS ? rows : CELLS_CHUNKS; }

/* ---- norm_grad ---- */

/* Adds up the blocks' sums of columns: dgain for y = 0, dbias for 1. */
enum { SUM_COLUMNS = 32, SUM_PARTS = 16 };
template <typename R>
static __global__ void sum_columns(const R *partial, int64_t blocks, int64_t width, Cells dgain, Cells dbias,
                                   bool add_gain, bool add_bias) {
    __shared__ R part[SUM_PARTS][SUM_COLUMNS];
    const Cells out = blockIdx.y ? dbias : dgain;
    if (!out.data) return;
    const int64_t column = (int64_t)blockIdx.x * SUM_COLUMNS + threadIdx.x;
    partial += (int64_t)blockIdx.y * blocks * width;
    R sum = 0;
    if (column < width) {
#pragma unroll 8
        for (int64_t b = threadIdx.y; b < blocks; b += SUM_PARTS) sum += partial[b * width + column];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || column >= width) return;
    for (int i = 1; i < SUM_PARTS; i++) sum += part[i][threadIdx.x];
    out.put_or_add(column, sum, blockIdx.y ? add_bias : add_gain);
}

template <typename R>
static void sum_partials(const Call *c, const R *partial, int64_t blocks, int64_t width) {
    const Tensor *dgain = c->out[1], *dbias = c->out[2];
    const dim3 grid((unsigned)ceil_div(width, SUM_COLUMNS), dbias ? 2 : 1), block(SUM_COLUMNS, SUM_PARTS);
    sum_columns<R><<<grid, block, 0, stream_of(c)>>>(partial, blocks, width, cells(dgain), cells(dbias),
                                                     accumulates(dgain), accumulates(dbias));
    LAUNCHED();
}

/* Bytes for the sums of columns, whichever way the rows go; 0 if they are not wanted. */
static size_t partial_bytes(const Call *c) {
    const Tensor *x = c->in[1];
    const int64_t rows = tensor_rows(x), chunks = cells_chunks(rows);
    if (!c->out[1] && !c->out[2]) return 0;
    const GradPlan p = grad_plan(c);
    return 2 * (size_t)(p.blocks > chunks ? p.blocks : chunks) * (size_t)tensor_width(x) * sizeof(double);
}

/* Whether it took the call. */
template <typename T> static bool grad_by_vectors(const Call *c, void *partial) {
    const Tensor *dy = c->in[0], *x = c->in[1], *gain = c->in[2], *rstd = c->in[3], *mean = c->in[4],
                 *dx = c->out[0];
    const GradPlan plan = grad_plan(c);
    GradVectors<T> p = {data_of<T>(dy),         data_of<T>(x),          data_of<T>(gain),  data_of<T>(dx),
                        data_of<Real<T>>(rstd), data_of<Real<T>>(mean), (Real<T> *)partial};
    const Norm<Real<T>> o = norm_of<Real<T>>(c, x);
    if (!plan.blocks || (o.rms && c->out[2]) || !rows_are_aligned(x) || !matches(dy, x) ||
        !matches(gain, x) || !is_type<Real<T>>(rstd) || !is_type<Real<T>>(mean) || !starts_of(x, &p.x_rows))
        return false;
    if (dx && (!rows_are_aligned(dx) || !matches(dx, x) || !starts_of(dx, &p.dx_rows))) return false;
    p.add = accumulates(dx);
    p.stages = plan.stages;
    const auto kernel = o.rms ? o.plus != 0 ? grad_vectors<T, true, true> : grad_vectors<T, true, false>
                        : o.plus != 0 ? grad_vectors<T, false, true>
                                      : grad_vectors<T, false, false>;
    /* A kernel's settings belong to all threads of the process: they are the same for every call. */
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.most));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    kernel<<<plan.blocks, team_block(plan.shape), plan.stages * plan.stage, stream_of(c)>>>(o, p);
    LAUNCHED();
    if (partial) sum_partials(c, p.partial, plan.blocks, o.width);
    return true;
}

template <typename R> static void grad_by_cells(const Call *c, R *partial) {
    const Tensor *x = c->in[1], *dx = c->out[0];
    const Norm<R> o = norm_of<R>(c, x);
    const GradCells p = {cells(c->in[0]), cells(x),   cells(c->in[2]),      cells(c->in[3]), cells(c->in[4]),
                         cells(dx),       rows_of(x), rows_of(dx ? dx : x), accumulates(dx)};
    const int64_t chunks = cells_chunks(o.rows);
    const TeamShape shape = cells_team(o.width);
    if (dx) {
        dx_cells<R><<<team_grid(o.rows, shape), team_block(shape), 0, stream_of(c)>>>(o, p);
        LAUNCHED();
    }
    if (partial) {
        const dim3 grid((unsigned)ceil_div(o.width, TEAM_BLOCK), (unsigned)chunks);
        columns_cells<<<grid, TEAM_BLOCK, 0, stream_of(c)>>>(o, p, partial);
        LAUNCHED();
        sum_partials(c, partial, chunks, o.width);
    }
}

extern "C" size_t cuda_plans_norm_grad(const Call *c) {
    return tensor_count(c->in[1]) ? partial_bytes(c) : 0;
}

extern "C" void cuda_norm_grad(const Call *c) {
    const Tensor *x = c->in[1];
    bool done = false;
    if (!tensor_count(x)) {
        for (int i = 1; i < 3; i++)
            if (c->out[i] && !accumulates(c->out[i]))
                CUDA_CHECK(cudaMemsetAsync(c->out[i]->data, 0, tensor_bytes(c->out[i]), stream_of(c)));
        return;
    }
    const size_t bytes = partial_bytes(c);
    void *partial = bytes ? cuda_scratch(c->device, bytes) : NULL;
    STORAGE_SWITCH(x->dtype, done = grad_by_vectors<T>(c, partial));
    if (!done) REAL_SWITCH(lead_type(c), grad_by_cells<R>(c, (R *)partial));
}
