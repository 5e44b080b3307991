/* Computes the op norm_grad of kernels/cpu/norm.c, which contains the formulas.
 *
 * Rows that consist of 16-byte vectors are read from memory once. While a row is processed, the next rows are
 * copied to shared memory. A block sums dgain and dbias over its rows in registers. A second kernel, launched
 * with PDL, adds the blocks' sums in order. The number of blocks depends only on the sizes and the GPU. All
 * other rows (with odd widths, misaligned addresses, larger widths or mixed types) are processed element by
 * element.
 *
 * A multiprocessor needs about 40 KB of loads in flight to reach the full memory bandwidth. More loads only prolong
 * the end of the kernel, when the last rows are processed and memory is idle. Each thread therefore has few vectors,
 * and a block processes few rows at a time. */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/slots.cuh"

/* ---- by vectors ---- */

/* RESIDENT: maximum number of threads per block; there is one block per multiprocessor. MOST_STAGES: maximum
 * number of stages, including the stage of the current rows. STAGED: stages are added until their total size
 * reaches this number of bytes. */
enum { RESIDENT = 512, MOST_STAGES = 3, STAGED = 144 * 1024 };

template <typename T> struct GradVectors {
    const T *dy, *x, *gain;
    T *dx;
    const Real<T> *rstd, *mean;
    Real<T> *partial; /* [2, blocks, width]: sums for dgain, then for dbias; NULL if no sums are needed */
    Starts x_rows, dx_rows;
    bool add;   /* if true, adds to dx */
    int stages; /* 1 to MOST_STAGES */
};

/* The state of one thread: K vectors of each staged row, in shared memory, and the sums over the thread's
 * columns. If PLUS is true, 1 is added to the stored gains. */
template <typename T, int K, bool RMS, bool PLUS> struct GradThread {
    typedef Real<T> R;
    enum { N = VEC<T>, P = VEC<R>, PARTS = N / P }; /* the sums for a vector are PARTS vectors of P numbers */
    enum { KEEPS = K == 2 }; /* if true, a row's numbers stay in registers until dx is computed */
    enum Operand { DY, X, OLD, OPERANDS };
    typedef Run<T, N> V;
    /* The elements of one vector: dy, and x - mean. */
    struct Pair {
        R dy[N], x[N];
    };
    const Norm<R> &o;
    const GradVectors<T> &p;
    Team<R, true> team;
    int width, threads, thread; /* number of threads in the block, and index of this thread */
    BucketPool<V> slots;
    V gain[K];
    Pair kept[K];
    R gain_sum[K * N], bias_sum[K * N];

    __device__ __forceinline__ GradThread(const Norm<R> &o, const GradVectors<T> &p, R *room, V *shared)
        : o(o), p(p), team(room), width((int)o.width), threads((int)(blockDim.x * blockDim.y)),
          thread(team.index * team.size + team.lane), slots(shared) {
        slots.first += (uint32_t)sizeof(V) * (uint32_t)(thread / 32 * (OPERANDS * K * 32) + thread % 32);
#pragma unroll
        for (int k = 0; k < K; k++) {
            gain[k] = V();
            if (has(k)) gain[k] = constant_vector((const V *)(p.gain + column(k)));
        }
#pragma unroll
        for (int i = 0; i < K * N; i++) gain_sum[i] = bias_sum[i] = 0;
    }
    __device__ __forceinline__ int column(int k) const { return (team.lane + k * team.size) * N; }
    /* Returns true if the thread's k-th vector is inside the row. Vectors outside the row are treated as
     * 0. */
    __device__ __forceinline__ bool has(int k) const { return column(k) < width; }
    __device__ __forceinline__ R gain_of(int k, int e) const {
        return PLUS ? 1 + gain[k].get(e) : gain[k].get(e);
    }
    /* The slots of a warp are contiguous, so the distances between a thread's slots are constants. */
    __device__ __forceinline__ BucketPool<V> slots_of(int stage) const {
        BucketPool<V> own = slots;
        own.first += (uint32_t)sizeof(V) * (uint32_t)(stage * (OPERANDS * K) * threads);
        return own;
    }
    static __device__ __forceinline__ int slot(Operand what, int k) { return (what * K + k) * 32; }
    /* Clears the vectors past the end of the row. One call per stage is sufficient, because no copy writes the
     * cleared vectors. */
    __device__ __forceinline__ void clear(int stage) const {
        const BucketPool<V> own = slots_of(stage);
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (has(k)) continue;
            own.put(slot(DY, k), V());
            own.put(slot(X, k), V());
        }
    }
    __device__ __forceinline__ void fetch_one(const BucketPool<V> &own, Operand what, const T *row) const {
        row += column(0);
#pragma unroll
        for (int k = 0; k < K; k++)
            if (has(k)) own.fetch(slot(what, k), row + k * team.size * N);
    }
    __device__ __forceinline__ void fetch(int stage, uint32_t row) const {
        const BucketPool<V> own = slots_of(stage);
        if (row < o.rows) {
            fetch_one(own, DY, p.dy + (int64_t)row * width);
            fetch_one(own, X, p.x + p.x_rows(row));
            if (p.add) fetch_one(own, OLD, p.dx + p.dx_rows(row));
        }
        __pipeline_commit();
    }
    /* Waits until the oldest stage in flight has arrived. */
    __device__ __forceinline__ void wait() const {
        static_assert(MOST_STAGES == 3, "the wait is implemented only for this number of stages");
        if (p.stages == 3)
            __pipeline_wait_prior(2);
        else if (p.stages == 2)
            __pipeline_wait_prior(1);
        else
            __pipeline_wait_prior(0);
    }
    __device__ __forceinline__ Pair pair(const BucketPool<V> &own, int k, R mean) const {
        const V dy = own[slot(DY, k)], x = own[slot(X, k)];
        Pair v;
#pragma unroll
        for (int e = 0; e < N; e++) v.dy[e] = dy.get(e), v.x[e] = RMS ? x.get(e) : x.get(e) - mean;
        return v;
    }
    /* Adds the row to the column sums if `live` is true, and computes the row's mean(dy g) and rstd mean(dy g
     * xhat). */
    __device__ __forceinline__ void means(int stage, bool live, R mean, R rstd, R *sum, R *along) {
        const BucketPool<V> own = slots_of(stage);
        R s = 0, a = 0;
        if (live) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                const Pair v = pair(own, k, mean);
                if (KEEPS) kept[k] = v;
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const R g = gain_of(k, e), across = v.dy[e] * v.x[e];
                    a += g * across;
                    gain_sum[k * N + e] += across * rstd;
                    if (RMS) continue;
                    s += g * v.dy[e];
                    bias_sum[k * N + e] += v.dy[e];
                }
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
        const BucketPool<V> own = slots_of(stage);
        T *out = p.dx + p.dx_rows(row) + column(0);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const Pair v = KEEPS ? kept[k] : pair(own, k, mean);
            V old = V(), dx;
            R w[N];
            if (p.add) old = own[slot(OLD, k)];
#pragma unroll
            for (int e = 0; e < N; e++)
                w[e] = fma(rstd, v.dy[e] * gain_of(k, e) - sum - v.x[e] * along, old.get(e));
            dx.fill(w);
            if (has(k)) *(V *)(out + k * team.size * N) = dx;
        }
    }
    /* Writes the block's column sums to row blockIdx.x of `out`. Must be called after the last row has been
     * processed. */
    __device__ __forceinline__ void sum_block(const R *mine, V *shared, R *out) const {
        /* The slots have space for two operands in the storage type, and the sums must fit into this
         * space. */
        static_assert(N * sizeof(R) <= 2 * sizeof(V),
                      "the sums of a block's columns do not fit into its slots");
        typedef Vec<R, P> Sums;
        Sums *all = (Sums *)shared, *to = (Sums *)(out + (int64_t)blockIdx.x * width);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < K * PARTS; i++) {
            Sums own;
#pragma unroll
            for (int e = 0; e < P; e++) own.v[e] = mine[i * P + e];
            all[i * threads + thread] = own;
        }
        __syncthreads();
        for (int i = thread; i < width / P; i += threads) {
            const int vector = i / PARTS, k = vector / team.size,
                      first = (k * PARTS + i % PARTS) * threads + vector % team.size;
            Sums sum = all[first];
            for (int at = team.size; at < threads; at += team.size) {
                const Sums more = all[first + at];
#pragma unroll
                for (int e = 0; e < P; e++) sum.v[e] += more.v[e];
            }
            to[i] = sum;
        }
    }
};

template <typename T, int K, bool RMS, bool PLUS>
static __global__ void __launch_bounds__(RESIDENT) grad_vectors(Norm<Real<T>> o, GradVectors<T> p) {
    typedef Real<T> R;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ R room[Team<R, true>::ROOM];
    typedef GradThread<T, K, RMS, PLUS> Thread;
    typename Thread::V *slots = (typename Thread::V *)shared;
    wait_for_kernel_before();
    Thread t(o, p, room, slots);
    /* Starts supports row numbers of 31 bits. Row numbers after the last row need the 32nd bit. */
    const uint32_t step = gridDim.x * blockDim.y, rows = (uint32_t)o.rows;
    uint32_t first = blockIdx.x * blockDim.y, row = first + threadIdx.y;
    int stage = 0;
    for (int i = 0; i < p.stages; i++) {
        t.fetch(i, row + i * step);
        t.clear(i);
    }
    allow_next_kernel();
    R next_rstd = row < rows ? p.rstd[row] : (R)0, next_mean = row < rows && !RMS ? p.mean[row] : (R)0;
    for (; first < rows; first += step, row += step) {
        const R rstd = next_rstd, mean = next_mean;
        R sum = 0, along = 0;
        if (row + step < rows) {
            next_rstd = p.rstd[row + step];
            if (!RMS) next_mean = p.mean[row + step];
        }
        t.wait();
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

template <typename T> using GradKernel = void (*)(Norm<Real<T>>, GradVectors<T>);
template <typename T, int K> static GradKernel<T> grad_kernel(const Norm<Real<T>> &o) {
    if (o.rms) return o.plus != 0 ? grad_vectors<T, K, true, true> : grad_vectors<T, K, true, false>;
    return o.plus != 0 ? grad_vectors<T, K, false, true> : grad_vectors<T, K, false, false>;
}

/* Describes how norm_grad iterates over rows of vectors. The plan must not depend on the requested outputs, so that
 * calls for single outputs are bitwise equal to one call for all outputs. */
struct GradPlan {
    TeamShape shape;
    int held; /* vectors per thread, or 0 if rows do not fit into shared memory */
    int blocks, stages;
    int stage, most; /* stage: size of a stage in bytes; most: maximum total size of a block's stages */
};

/* Chooses the numbers of vectors per thread and of threads per row. As many of a block's threads as possible
 * should process a part of a row, because only these threads' slots hold bytes in flight. If several numbers
 * are equally good, rows of several warps use the fewest vectors per thread, to shorten the end of the kernel.
 * Smaller rows use the most vectors per thread, because a warp then adds more rows per pass. */
static void choose_team(int64_t vectors, GradPlan *p) {
    int64_t best = 0;
    for (int held = 4; held >= 2; held--) {
        const int64_t lanes = ceil_div(vectors, held);
        if (lanes > RESIDENT) continue;
        const TeamShape shape = team_for(lanes, RESIDENT, true);
        const int64_t busy = shape.count * vectors * 12 / held;
        if (busy < best || (busy == best && p->shape.size <= 32)) continue;
        best = busy, p->held = held, p->shape = shape;
    }
}

static GradPlan grad_plan(const Call *c) {
    /* Bytes of shared memory that a block needs in addition to its stages. */
    enum { OPERANDS = 3, BESIDE = 2048 };
    const Tensor *x = c->in[1];
    const Cuda *gpu = cuda_of(c->device);
    GradPlan p = {};
    choose_team(ceil_div(tensor_width(x) * (int64_t)dtype_size((DType)x->dtype), 16), &p);
    if (!p.held) return p;
    CUDA_CHECK(cudaDeviceGetAttribute(&p.most, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu->ordinal));
    p.stage = OPERANDS * p.held * 16 * team_threads(p.shape);
    p.most -= BESIDE;
    const int64_t wanted = ceil_div(STAGED, p.stage), fit = p.most / p.stage;
    p.stages = (int)least(least(wanted, fit), MOST_STAGES);
    if (!p.stages) p.held = 0;
    p.blocks = (int)least(ceil_div(tensor_rows(x), p.shape.count), gpu->multiprocessors);
    return p;
}

/* ---- by elements ---- */

/* The operands of the op. */
struct GradCells {
    Cells dy, x, gain, rstd, mean, dx;
    Rows x_rows, dx_rows;
    bool add;
};

template <typename R> static __global__ void dx_cells(Norm<R> o, GradCells p) {
    __shared__ R room[Team<R, false>::ROOM];
    Team<R, false> team(room);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    start_pdl();
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
        if (row >= o.rows) continue; /* teams can be without a row only in the last round */
        for (int64_t i = team.lane; i < o.width; i += team.size) {
            const R g = p.dy.get<R>(dy + i) * (o.plus + p.gain.get<R>(i));
            p.dx.put_or_add(dx + i, rstd * (g - sum - (p.x.get<R>(x + i) - mean) * rstd * along), p.add);
        }
    }
}

/* Writes partial[., y, column], the sums over rows y, y + chunks, y + 2 chunks, ... */
enum { CELLS_CHUNKS = 128 };
template <typename R> static __global__ void columns_cells(Norm<R> o, GradCells p, R *partial) {
    const int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, chunks = gridDim.y;
    start_pdl();
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

/* Adds the blocks' partial sums to dgain and dbias. */
template <typename R>
static void sum_partials(const Call *c, const R *partial, int64_t blocks, int64_t width) {
    sum_columns(c, partial, blocks, width, {c->out[1], 0, 1}, {c->out[2], blocks * width, 1});
}

/* ---- norm_grad ---- */

/* Returns the size of `partial` in bytes, or 0 if no sums are needed. The size does not depend on which
 * kernel runs. */
static size_t partial_bytes(const Call *c) {
    const Tensor *x = c->in[1];
    const int64_t rows = tensor_rows(x), chunks = cells_chunks(rows);
    if (!c->out[1] && !c->out[2]) return 0;
    const GradPlan p = grad_plan(c);
    return 2 * (size_t)(p.blocks > chunks ? p.blocks : chunks) * (size_t)tensor_width(x) * sizeof(double);
}

/* Returns false, without a launch, if the operands do not allow vector accesses. */
template <typename T> static bool grad_by_vectors(const Call *c, void *partial) {
    const Tensor *dy = c->in[0], *x = c->in[1], *gain = c->in[2], *rstd = c->in[3], *mean = c->in[4],
                 *dx = c->out[0];
    const GradPlan plan = grad_plan(c);
    GradVectors<T> p = {data_of<T>(dy),         data_of<T>(x),          data_of<T>(gain),  data_of<T>(dx),
                        data_of<Real<T>>(rstd), data_of<Real<T>>(mean), (Real<T> *)partial};
    const Norm<Real<T>> o = norm_of<Real<T>>(c, x);
    if (!plan.held || (o.rms && c->out[2]) || !rows_are_aligned(x) || !matches(dy, x) || !matches(gain, x) ||
        !is_type<Real<T>>(rstd) || !is_type<Real<T>>(mean) || !starts_of(x, &p.x_rows))
        return false;
    if (dx && (!rows_are_aligned(dx) || !matches(dx, x) || !starts_of(dx, &p.dx_rows))) return false;
    p.add = accumulates(dx);
    p.stages = plan.stages;
    const auto kernel = plan.held == 2   ? grad_kernel<T, 2>(o)
                        : plan.held == 3 ? grad_kernel<T, 3>(o)
                                         : grad_kernel<T, 4>(o);
    /* All threads of the process share a kernel's attributes, so every call must set them to the same
     * values. */
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.most));
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    launch_pdl(c, plan.blocks, team_block(plan.shape), plan.stages * plan.stage, kernel, o, p);
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
    if (dx) launch_pdl(c, team_grid(o.rows, shape), team_block(shape), 0, dx_cells<R>, o, p);
    if (partial) {
        const dim3 grid((unsigned)ceil_div(o.width, TEAM_BLOCK), (unsigned)chunks);
        launch_pdl(c, grid, TEAM_BLOCK, 0, columns_cells<R>, o, p, partial);
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
