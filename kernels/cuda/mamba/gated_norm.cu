/* Computes the ops of kernels/cpu/gated_norm.c, which contains the formulas.
 *
 * A unit is one group of a row. A team of threads keeps a unit in registers, so that each value is read from memory
 * once. Units that do not consist of aligned vectors, or do not fit into the registers, are processed in pieces, and
 * read twice. In the backward pass, a team processes the same group of many rows, loads the next unit while it computes,
 * and adds dgain in registers. A second kernel adds the teams' sums. */
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/logistic.cuh"
#include "kernels/cuda/mamba/mamba.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/vectors.cuh"

template <typename T> struct Groups {
    const T *x, *z, *gain;
    int64_t width;
    int rows, groups, m, pieces; /* m: channels per group; pieces: per unit */
    Real<T> eps, per_m;          /* per_m: 1 / m */
    Starts z_rows;
};

template <typename T> static Groups<T> groups_of(const Call *c, Tensor *const *in) {
    const Tensor *x = in[0], *z = in[1];
    const GatedNormAttr *a = (const GatedNormAttr *)c->attr;
    same_type("gated_norm", x, z);
    same_type("gated_norm", x, in[2]);
    Groups<T> o = {data_of<T>(x), data_of<T>(z), data_of<T>(in[2]), tensor_width(x)};
    CHECK(starts_of(z, &o.z_rows) && tensor_rows(x) * a->groups <= INT32_MAX,
          "gated_norm: %lld rows with %lld groups are too many", (long long)tensor_rows(x),
          (long long)a->groups);
    o.rows = (int)tensor_rows(x), o.groups = (int)a->groups, o.m = (int)(o.width / o.groups);
    o.eps = (Real<T>)a->eps, o.per_m = 1 / (Real<T>)o.m;
    return o;
}

/* The runs of a thread in a piece of a unit: K runs of each operand. If WHOLE, units are single pieces of aligned
 * vectors. */
template <typename T, int K, bool WHOLE> struct Piece {
    enum { N = VEC<T> };
    typedef Real<T> R;
    typedef Run<T, N> V;
    int first, step, m; /* element of the first run, and distance of the next one */

    __device__ __forceinline__ Piece(const Team<R, false> &team, const Groups<T> &o, int piece)
        : first((piece * K * team.size + team.lane) * N), step(team.size * N), m(o.m) {}

    template <typename E> __device__ __forceinline__ void load(Run<E, N> *v, const E *from) const {
#pragma unroll
        for (int k = 0; k < K; k++) v[k] = load_or_clear<WHOLE, N>(from, first + k * step, m);
    }
    /* Stores run k, or adds it. */
    template <typename E> __device__ __forceinline__ void store(E *to, int k, R *v, bool add = false) const {
        Run<E, N> out;
        if (add) {
            const Run<E, N> old = load_or_clear<WHOLE, N>(to, first + k * step, m);
#pragma unroll
            for (int e = 0; e < N; e++) v[e] += old.get(e);
        }
        out.fill(v);
        store_or_skip<WHOLE>(to, first + k * step, m, out);
    }
};

/* ---- forward ---- */

/* FORWARD_K: runs of each operand that a thread keeps. FORWARD_TEAM: threads per team. */
enum { FORWARD_K = 4, FORWARD_TEAM = 256 };

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(FORWARD_TEAM, 3) normed(Groups<T> o, T *y, Real<T> *rstd) {
    typedef Real<T> R;
    typedef Piece<T, FORWARD_K, WHOLE> Part;
    constexpr int K = FORWARD_K, N = Part::N;
    __shared__ R room[Team<R, false>::ROOM];
    Team<R, false> team(room);
    start_pdl();
    /* The last teams may have no unit, but must still take part in barriers. */
    const unsigned number = blockIdx.x * blockDim.y + team.index, units = o.rows * o.groups,
                   unit = min(number, units - 1), row = unit / o.groups;
    const int64_t at = (int64_t)(unit - row * o.groups) * o.m;
    const T *x_at = o.x + row * o.width + at, *z_at = o.z + o.z_rows(row) + at;
    R u[K][N], sum = 0;
    const auto load_u = [&](const Part &part) {
        typename Part::V x[K], z[K];
        part.load(x, x_at), part.load(z, z_at);
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int e = 0; e < N; e++) u[k][e] = x[k].get(e) * z[k].get(e) * logistic<T>(z[k].get(e));
    };
    for (int i = 0; i < (WHOLE ? 1 : o.pieces); i++) {
        load_u(Part(team, o, i));
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int e = 0; e < N; e++) sum += u[k][e] * u[k][e];
    }
    const R scale = 1 / sqrt(team.sum(sum) * o.per_m + o.eps);
    if (number >= units) return;
    for (int i = (WHOLE ? 1 : o.pieces) - 1; i >= 0; i--) {
        const Part part(team, o, i);
        typename Part::V gain[K];
        if (!WHOLE && i < o.pieces - 1) load_u(part);
        part.load(gain, o.gain + at);
#pragma unroll
        for (int k = 0; k < K; k++) {
            R v[N];
#pragma unroll
            for (int e = 0; e < N; e++) v[e] = u[k][e] * scale * gain[k].get(e);
            part.store(y + row * o.width + at, k, v);
        }
    }
    if (team.lane == 0) rstd[unit] = scale;
}

/* Returns the shape of teams of at most `most` threads that keep k runs of a unit per thread. */
template <typename T> static TeamShape shape_of(int64_t m, int k, int most) {
    return team_for(least(ceil_div(m, k * VEC<T>), most), most, false);
}

/* Sets the number of pieces. Returns true if units are single pieces of aligned vectors. */
template <typename T>
static bool set_pieces(Groups<T> *o, int k, TeamShape shape, std::initializer_list<const Tensor *> operands) {
    o->pieces = (int)ceil_div(o->m, k * VEC<T> * shape.size);
    bool whole = o->pieces == 1 && o->m % VEC<T> == 0;
    for (const Tensor *t : operands) whole = whole && (!t || rows_are_aligned(t));
    return whole;
}

template <typename T> static void forward(const Call *c) {
    Groups<T> o = groups_of<T>(c, c->in);
    const TeamShape shape = shape_of<T>(o.m, FORWARD_K, FORWARD_TEAM);
    const bool whole = set_pieces(&o, FORWARD_K, shape, {c->in[0], c->in[1], c->in[2], c->out[0]});
    launch_pdl(c, team_grid((int64_t)o.rows * o.groups, shape), team_block(shape), 0,
               whole ? normed<T, true> : normed<T, false>, o, data_of<T>(c->out[0]),
               data_of<Real<T>>(c->out[1]));
}

extern "C" void cuda_gated_norm(const Call *c) {
    same_type("gated_norm", c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

/* ---- backward ---- */

enum { GRAD_K = 2, GRAD_TEAM = 512 };

template <typename T> struct Grads {
    const T *dy;
    const Real<T> *rstd;
    T *dx, *dz;       /* NULL if not needed */
    Real<T> *partial; /* [teams / groups, c]: the sums of dgain; NULL if not needed */
    Starts dz_rows;
    bool add_x, add_z;
};

/* A thread's runs of the operands. */
template <typename Part, int K> struct Operands {
    typename Part::V dy[K], x[K], z[K];

    template <typename T>
    __device__ __forceinline__ void load(const Part &part, const Groups<T> &o, const T *dy_rows, unsigned row,
                                         int64_t at) {
        part.load(dy, dy_rows + row * o.width + at), part.load(x, o.x + row * o.width + at);
        part.load(z, o.z + o.z_rows(row) + at);
    }
    /* Prevents the compiler from keeping results of the first pass over the elements until the second pass, because
     * there are not enough registers. */
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < Part::V::WORDS; i++)
                asm volatile("" : "+r"(dy[k].word(i)), "+r"(x[k].word(i)), "+r"(z[k].word(i)));
    }
};

/* The number of teams is a multiple of the number of groups, so all units of a team are of the same group. */
template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(GRAD_TEAM) normed_grad(Groups<T> o, Grads<T> g) {
    typedef Real<T> R;
    typedef Piece<T, GRAD_K, WHOLE> Part;
    constexpr int K = GRAD_K, N = Part::N;
    __shared__ R room[Team<R, false>::ROOM];
    Team<R, false> team(room);
    start_pdl();
    const int pieces = WHOLE ? 1 : o.pieces;
    const unsigned number = blockIdx.x * blockDim.y + team.index, top = number / o.groups,
                   group = number - top * o.groups, step = gridDim.x * blockDim.y / o.groups,
                   last = o.rows - 1;
    const int64_t at = (int64_t)group * o.m;
    R *partial = g.partial ? g.partial + top * o.width + at : NULL, sum[K][N] = {};
    Operands<Part, K> now, next;
    typename Part::V gain[K];
    for (int i = 0; !WHOLE && partial && i < pieces; i++)
        for (int k = 0; k < K; k++) Part(team, o, i).store(partial, k, sum[0]);
    if (WHOLE) {
        const Part part(team, o, 0);
        part.load(gain, o.gain + at);
        next.load(part, o, g.dy, min(top, last), at);
    }
    for (unsigned first = 0; first <= last; first += step) {
        /* The last teams may have no row, but must still take part in barriers. */
        const unsigned row = min(first + top, last);
        const R rstd = g.rstd[(int64_t)row * o.groups + group];
        R along = 0;
        for (int i = 0; i < pieces; i++) {
            const Part part(team, o, i);
            if (WHOLE) {
                now = next;
                next.load(part, o, g.dy, min(row + step, last), at);
            } else {
                now.load(part, o, g.dy, row, at);
                part.load(gain, o.gain + at);
            }
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const R z = now.z[k].get(e);
                    along += now.dy[k].get(e) * gain[k].get(e) * (now.x[k].get(e) * z * logistic<T>(z));
                }
        }
        along = team.sum(along) * rstd * rstd * rstd * o.per_m;
        if (first + top > last) continue;
        for (int i = pieces - 1; i >= 0; i--) {
            const Part part(team, o, i);
            Run<R, N> before[K];
            if (i < pieces - 1) {
                now.load(part, o, g.dy, row, at);
                part.load(gain, o.gain + at);
            }
            if (!WHOLE && partial) part.load(before, partial);
            now.forget();
#pragma unroll
            for (int k = 0; k < K; k++) {
                R dx[N], dz[N];
#pragma unroll
                for (int e = 0; e < N; e++) {
                    const R x = now.x[k].get(e), z = now.z[k].get(e), open = logistic<T>(z), silu = z * open,
                            u = x * silu, dy = now.dy[k].get(e) * rstd, du = dy * gain[k].get(e) - u * along;
                    dx[e] = du * silu, dz[e] = du * x * (open + silu * (1 - open));
                    if (!WHOLE && partial) sum[k][e] = before[k].get(e);
                    sum[k][e] += dy * u;
                }
                if (!WHOLE && partial) part.store(partial, k, sum[k]);
                if (g.dx) part.store(g.dx + row * o.width + at, k, dx, g.add_x);
                if (g.dz) part.store(g.dz + g.dz_rows(row) + at, k, dz, g.add_z);
            }
        }
    }
    for (int k = 0; WHOLE && partial && k < K; k++) Part(team, o, 0).store(partial, k, sum[k]);
}

/* Must not depend on the requested outputs, so that calls for single outputs are bitwise equal to one call for all
 * outputs. */
struct Plan {
    TeamShape shape;
    int64_t blocks, rows; /* rows: the number of rows of `partial` */
};

template <typename T> static Plan plan_of(const Call *c) {
    enum { RESIDENT = 512 }; /* threads per multiprocessor */
    const int64_t groups = ((const GatedNormAttr *)c->attr)->groups, width = tensor_width(c->in[1]),
                  units = tensor_rows(c->in[1]) * groups;
    Plan p = {shape_of<T>(width / groups, GRAD_K, GRAD_TEAM)};
    int64_t every = 1; /* the number of blocks must be a multiple of this number */
    while (every * p.shape.count % groups) every++;
    const int64_t most = cuda_of(c->device)->multiprocessors * (int64_t)(RESIDENT / team_threads(p.shape)),
                  blocks = least(ceil_div(units, p.shape.count), most) / every * every;
    p.blocks = blocks > every ? blocks : every;
    p.rows = p.blocks * p.shape.count / groups;
    return p;
}

template <typename T> static size_t partial_bytes(const Call *c) {
    if (!c->out[2]) return 0;
    return (size_t)(plan_of<T>(c).rows * tensor_width(c->in[1])) * sizeof(Real<T>);
}

extern "C" size_t cuda_plans_gated_norm_grad(const Call *c) {
    size_t bytes = 0;
    STORAGE_SWITCH(c->in[1]->dtype, bytes = partial_bytes<T>(c));
    return bytes;
}

template <typename T> static void backward(const Call *c) {
    Groups<T> o = groups_of<T>(c, c->in + 1);
    const Tensor *dy = c->in[0], *dx = c->out[0], *dz = c->out[1];
    const Plan plan = plan_of<T>(c);
    const bool whole = set_pieces(&o, GRAD_K, plan.shape, {dy, c->in[1], c->in[2], c->in[3], dx, dz});
    const size_t bytes = partial_bytes<T>(c);
    Grads<T> g = {data_of<T>(dy), data_of<Real<T>>(c->in[4]), data_of<T>(dx), data_of<T>(dz),
                  bytes ? (Real<T> *)cuda_scratch(c->device, bytes) : NULL};
    CHECK(!dz || starts_of(dz, &g.dz_rows), "gated_norm: %lld rows are too many", (long long)o.rows);
    g.add_x = accumulates(dx), g.add_z = accumulates(dz);
    if (o.rows)
        launch_pdl(c, (unsigned)plan.blocks, team_block(plan.shape), 0,
                   whole ? normed_grad<T, true> : normed_grad<T, false>, o, g);
    sum_columns(c, g.partial, o.rows ? plan.rows : 0, o.width, {c->out[2], 0, 1});
}

extern "C" void cuda_gated_norm_grad(const Call *c) {
    same_type("gated_norm_grad", c->in[1], c->in[0]);
    same_type("gated_norm_grad", c->in[1], c->out[0]);
    same_type("gated_norm_grad", c->in[1], c->out[1]);
    STORAGE_SWITCH(c->in[1]->dtype, backward<T>(c));
}
