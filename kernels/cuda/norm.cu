/* Computes the ops norm and add_norm of kernels/cpu/norm.c, which contains the formulas.
 *
 * Rows that consist of 16-byte vectors are read from memory once and kept in registers. add_norm keeps the
 * rounded sum, so that its results are bitwise equal to those of the ops add and norm. All other rows (with
 * odd widths, misaligned addresses, larger widths or mixed types) are processed element by element.
 *
 * The number of instructions limits the kernel as much as the bandwidth does. While a multiprocessor of an H200
 * reads and writes a row of 2048 16-bit elements, it can issue about 2000 warp instructions. A row is therefore
 * processed by few threads with many vectors each. */
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/vectors.cuh"

/* Normalizes x or, for add_norm, x + branch. `branch` and `sum` are contiguous; both are NULL for norm. */
struct NormOperands {
    const Tensor *x, *branch, *gain, *bias, *sum, *y, *rstd, *mean;
};

template <typename T> struct NormVectors {
    const T *x, *branch, *gain, *bias;
    T *sum, *y;
    Real<T> *rstd, *mean;
    Starts x_rows;
};

/* The K vectors of a row that a thread keeps in registers: vectors lane, lane + size, ... */
template <typename T, int K> struct Held {
    typedef Real<T> R;
    enum { N = VEC<T> };
    typedef Run<T, N> V;
    V x[K];

    /* Loads the thread's vectors; vectors past the end of the row become 0. If CONSTANT is true, the kernel
     * must not write the row. */
    template <bool CONSTANT = false>
    __device__ __forceinline__ void load(const T *row, const Team<R, false> &team, int vectors) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int i = team.lane + k * team.size;
            x[k] = V();
            if (i < vectors) x[k] = CONSTANT ? constant_vector((const V *)row + i) : ((const V *)row)[i];
        }
    }
    /* Adds `other`, and rounds each sum to the storage type, as the op add does. */
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

/* The elements of a thread, converted to the arithmetic type; elements past the end of the row are 0. */
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
    /* Writes the normalized row. The caller must already have subtracted the mean. */
    template <bool PLUS>
    __device__ __forceinline__ void write(const NormVectors<T> &p, const Held<T, K> &gain, R rstd, T *y,
                                          const Team<R, false> &team, int vectors) const {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int i = team.lane + k * team.size;
            if (i >= vectors) break;
            V bias = V(), out;
            R w[N];
            if (p.bias) bias = constant_vector((const V *)p.bias + i);
#pragma unroll
            for (int e = 0; e < N; e++) {
                const R g = PLUS ? 1 + gain.x[k].get(e) : gain.x[k].get(e);
                w[e] = fma(v[k * N + e] * rstd, g, bias.get(e));
            }
            out.fill(w);
            ((V *)y)[i] = out;
        }
    }
};

/* Maximum number of vectors per thread. The loads of all vectors of x and of `branch` are in flight
 * simultaneously, and the vectors fit into 64 registers. */
enum { ROW_HELD = 4 };

template <typename T, bool ADDS, bool PLUS>
static __global__ void __launch_bounds__(TEAM_LARGEST, 1) norm_vectors(Norm<Real<T>> o, NormVectors<T> p) {
    typedef Real<T> R;
    __shared__ R room[Team<R, false>::ROOM];
    Team<R, false> team(room);
    const int vectors = (int)o.width / VEC<T>;
    /* Each team processes one row. The maximum grid size is sufficient for every tensor that Starts can
     * describe. */
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + team.index;
    const bool live = row < o.rows; /* the last teams may have no row, but must still take part in barriers */
    constexpr int LINE = 8;         /* vectors */
    allow_next_kernel();
    /* Many prefetches of a line would take longer than the kernel. */
    for (int i = (int)threadIdx.x * LINE; row == 0 && i < vectors; i += (int)blockDim.x * LINE)
        prefetch_line(p.gain + i * VEC<T>);
    wait_for_kernel_before();
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
    if (!live) return;
    /* All gains are loaded before the first gain is used. Otherwise, the kernel would end with a separate
     * memory access for each gain. */
    Held<T, ROW_HELD> gain;
    gain.template load<true>(p.gain, team, vectors);
    x.template write<PLUS>(p, gain, rstd, p.y + row * o.width, team, vectors);
    if (team.lane == 0) {
        p.rstd[row] = rstd;
        if (p.mean) p.mean[row] = mean;
    }
}

/* The same operands, accessed through Cells. */
struct NormCells {
    Cells x, branch, gain, bias, sum, y, rstd, mean;
};

template <typename R> static __global__ void norm_cells(Norm<R> o, NormCells p, Rows x_rows) {
    __shared__ R room[Team<R, false>::ROOM];
    Team<R, false> team(room);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    const bool adds = p.branch.data;
    const Cells x = adds ? p.sum : p.x;
    start_pdl();
    for (int64_t first = (int64_t)blockIdx.x * blockDim.y; first < o.rows; first += step) {
        const int64_t row = first + team.index;
        const bool live = row < o.rows;
        const int64_t given = x_rows(live ? row : 0), dense = (live ? row : 0) * o.width,
                      from = adds ? dense : given;
        R sum = 0, squares = 0;
        /* No barrier is needed, because each thread reads only the sums that it wrote. */
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
        if (!live) continue; /* teams can be without a row only in the last round */
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

/* Returns false, without a launch, if the operands do not allow vector accesses. */
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
    launch_pdl(c, team_grid(o.rows, shape), team_block(shape), 0, kernel, o, p);
    return true;
}

template <typename R> static void norm_by_cells(const Call *c, const NormOperands &n) {
    const Norm<R> o = norm_of<R>(c, n.x);
    const TeamShape shape = cells_team(o.width);
    const NormCells p = {cells(n.x),   cells(n.branch), cells(n.gain), cells(n.bias),
                         cells(n.sum), cells(n.y),      cells(n.rstd), cells(n.mean)};
    launch_pdl(c, team_grid(o.rows, shape), team_block(shape), 0, norm_cells<R>, o, p, rows_of(n.x));
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
    CHECK(tensor_is_contiguous(n.x) && tensor_is_contiguous(n.branch),
          "add_norm: a and b must be contiguous");
    run_norm(c, n);
}
