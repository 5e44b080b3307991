/* Computes the ops of kernels/cpu/optimizer.c. Each op processes all pieces in one launch. Each piece is
 * processed by one thread block or one warp. Steps update their operands in place, and sums are written or
 * accumulated. */
#include <stddef.h>

#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vectors.cuh"

extern "C" {
#include "base/exact_round.h"
#include "kernels/step_numbers.h"
}

enum { THREADS = 256, WARP = 32 };

/* ---- pieces: without a table of pieces, each piece has PIECE_MOST elements ---- */

struct Pieces {
    const FlatPiece *row; /* NULL if there is no table */
    int64_t count, n;     /* n: number of elements in the operands */
    DeviceAssert *failure;
    const char *message;

    __device__ __forceinline__ FlatPiece load(int64_t i) const {
        const int64_t begin = i * PIECE_MOST;
        if (row) return row[i];
        return {begin, n - begin < PIECE_MOST ? n - begin : PIECE_MOST, 0};
    }
    /* Returns a loaded piece. If the piece is invalid, raises an error and returns an empty piece. */
    __device__ __forceinline__ FlatPiece checked(FlatPiece p) const {
        if (p.begin < 0 || p.count < 0 || p.count > PIECE_MOST || p.begin + p.count > n || p.group < 0 ||
            p.group >= STEP_GROUPS) {
            if (threadIdx.x % WARP == 0) raise_assert(failure, message, p.count, p.begin);
            p.begin = p.count = p.group = 0;
        }
        return p;
    }
    __device__ __forceinline__ FlatPiece operator[](int64_t i) const { return checked(load(i)); }
};

static Pieces pieces_of(const Call *c) {
    const Tensor *table = c->in[1];
    const int64_t n = tensor_count(c->in[0]);
    Pieces p = {(const FlatPiece *)ids_of(table), ceil_div(n, PIECE_MOST), n, cuda_of(c->device)->failure,
                "a piece of %lld elements at element %lld is outside the operand"};
    CHECK(!table || (table->ndim == 2 && table->dim[1] == PIECE_WORDS),
          "pieces of %lld words are not supported", (long long)tensor_width(table));
    if (table) p.count = table->dim[0];
    return p;
}

/* ---- steps, computed in the parameters' type ---- */

static void step_types(const char *op, const Call *c, const Tensor *state, bool in_16_bits) {
    const int type = c->in[0]->dtype, param = c->out[0]->dtype;
    CHECK((param == F64 || param == F32) && (type == param || (type == BF16 && param == F32)),
          "%s: the gradient is %s, but the parameters are %s", op, dtype_name((DType)type),
          dtype_name((DType)param));
    CHECK(state->dtype == param || (in_16_bits && param == F32 && dtype_is_16bit((DType)state->dtype)),
          "%s: the state is %s, but the parameters are %s", op, dtype_name((DType)state->dtype),
          dtype_name((DType)param));
}

/* The source of a step's numbers: device memory (so that a CUDA graph reads the current numbers) or the
 * launch arguments. */
struct StepSource {
    const StepNumbers *memory; /* if NULL, `own` is used */
    StepNumbers own;
};

static StepSource step_source(const Call *c, const StepNumbers &own) {
    const Tensor *t = c->in[2];
    CHECK(!t || (t->dtype == F64 && tensor_count(t) == STEP_WORDS),
          "a step has %lld numbers of type %s instead of %d of type F64", (long long)tensor_count(t),
          dtype_name((DType)t->dtype), (int)STEP_WORDS);
    return {t ? (const StepNumbers *)t->data : NULL, own};
}

/* The step's numbers for one piece, in the arithmetic type. */
template <typename R> struct Step { R lr, decay, scale, unbias1, unbias2, eps; };

/* Loads the elements [i, i + N) of x that are before `end`. If INSIDE is true, all N elements are before `end`,
 * and the run begins at a multiple of 16 bytes (or of the run's size, if that is smaller). */
template <bool INSIDE, typename T, int N>
__device__ __forceinline__ void get_run(const T *x, int64_t i, int64_t end, bool aligned, Run<T, N> *run) {
    *run = INSIDE ? load_run<T, N>(x + i, 0, N, true) : load_run<T, N>(x, i, end, aligned);
}
template <bool INSIDE, typename T, int N>
__device__ __forceinline__ void put_run(T *x, int64_t i, int64_t end, bool aligned, const Run<T, N> &run) {
    if (INSIDE)
        store_run<T, N>(x + i, 0, N, true, run);
    else
        store_run<T, N>(x, i, end, aligned, run);
}

/* The pieces of a thread block. A group of `apart` blocks processes `apart` * `each` pieces: block b of the
 * group processes pieces b, b + apart, ... Pieces that are processed simultaneously are therefore contiguous.
 * There are enough blocks to ensure that no block runs alone for long at the end. */
struct Turns {
    unsigned apart, each;

    __device__ __forceinline__ int64_t begin() const {
        return (int64_t)(blockIdx.x / apart) * (apart * each) + blockIdx.x % apart;
    }
    __device__ __forceinline__ int64_t end(int64_t pieces) const {
        const int64_t all = (int64_t)(blockIdx.x / apart + 1) * (apart * each);
        return all < pieces ? all : pieces;
    }
};
/* Numbers of blocks per multiprocessor if there are enough pieces: TOGETHER in a group, and at least
 * LEAST_BLOCKS in all. */
enum { TOGETHER = 8, MOST_EACH = 16, LEAST_BLOCKS = 64 };

static Turns turns_of(const Call *c, int64_t pieces) {
    const int64_t gpu = cuda_of(c->device)->multiprocessors, each = ceil_div(pieces, gpu * LEAST_BLOCKS);
    return {(unsigned)least(pieces, gpu * TOGETHER), (unsigned)least(each, MOST_EACH)};
}
static unsigned turns_grid(const Turns &t, int64_t pieces) {
    return (unsigned)(ceil_div(pieces, t.apart * t.each) * t.apart);
}

/* A Rule loads N elements starting at i into Rule::Loaded, and then updates the elements. At least one element
 * must be before `end`. If WHOLE is true, all N elements are before `end` and aligned. UPDATES_AT_ONCE thread
 * blocks per multiprocessor keep enough loads in flight. */
enum { UPDATES_AT_ONCE = 4 };
template <bool WHOLE, class Rule>
__device__ __forceinline__ void update_piece(const Rule &rule, const Step<typename Rule::R> &s, int64_t i,
                                             int64_t end, bool aligned) {
#pragma unroll 1
    for (; i < end; i += THREADS * Rule::N) {
        typename Rule::Loaded x;
        rule.template load<WHOLE>(&x, i, end, aligned);
        rule.template update<WHOLE>(s, &x, i, end, aligned);
    }
}

template <class Rule>
__global__ void __launch_bounds__(THREADS, sizeof(typename Rule::R) == 4 ? UPDATES_AT_ONCE : 1)
    update(const __grid_constant__ Rule rule, const __grid_constant__ StepSource source, Pieces pieces,
           Turns turns, bool all_aligned) {
    typedef typename Rule::R R;
    constexpr int N = Rule::N;
    __shared__ Step<R> of_group[STEP_GROUPS];
    const int64_t stop = turns.end(pieces.count);
    int64_t at = turns.begin();
    start_pdl();
    const StepNumbers *numbers = source.memory ? source.memory : &source.own;
    if (at >= stop || numbers->updates == 0) return;
    FlatPiece next = pieces.load(at);
    if (threadIdx.x < STEP_GROUPS) {
        const StepGroup g = numbers->group[threadIdx.x];
        of_group[threadIdx.x] = {
            (R)g.lr, (R)g.weight_decay, (R)numbers->grad_scale, (R)numbers->unbias1, (R)numbers->unbias2,
            (R)g.eps};
    }
    __syncthreads();
    for (; at < stop; at += turns.apart) {
        const FlatPiece piece = pieces.checked(next);
        const Step<R> s = of_group[piece.group];
        const bool aligned = all_aligned && piece.begin % N == 0;
        const int64_t i = piece.begin + (int)threadIdx.x * N, end = piece.begin + piece.count;
        if (at + turns.apart < stop)
            next = pieces.load(at + turns.apart); /* loaded while the current piece is processed */
        if (aligned && piece.count == PIECE_MOST)
            update_piece<true>(rule, s, i, end, true);
        else
            update_piece<false>(rule, s, i, end, aligned);
    }
}

template <class Rule> static void launch_update(const Call *c, const Rule &rule, const StepNumbers &own) {
    const Pieces pieces = pieces_of(c);
    bool aligned = aligned_16(c->in[0]->data);
    for (int i = 0; i < CALL_OUT; i++) aligned = aligned && (!c->out[i] || aligned_16(c->out[i]->data));
    if (!pieces.count) return;
    const Turns turns = turns_of(c, pieces.count);
    launch_pdl(c, turns_grid(turns, pieces.count), THREADS, 0, update<Rule>, rule, step_source(c, own),
               pieces, turns, aligned);
}

/* P is the type of parameters, G that of gradients, and M and V are those of the moments. `value`, unless NULL,
 * receives the parameters in P or in 16 bits. Multiply-adds are explicit, because the compiler might fuse operations
 * differently in different template instances. */
template <typename P, typename G, typename M, typename V> struct Adamw {
    typedef P R;
    enum { N = VEC<P> };
    struct Loaded {
        Run<G, N> g;
        Run<P, N> p;
        Run<M, N> m;
        Run<V, N> v;
    };
    const G *grad;
    P *param;
    M *exp_avg;
    V *exp_avg_sq;
    Cells value;
    P beta1, beta2, new1, new2;

    template <bool INSIDE>
    __device__ __forceinline__ void load(Loaded *x, int64_t i, int64_t end, bool aligned) const {
        get_run<INSIDE>(grad, i, end, aligned, &x->g);
        get_run<INSIDE>((const P *)param, i, end, aligned, &x->p);
        get_run<INSIDE>((const M *)exp_avg, i, end, aligned, &x->m);
        get_run<INSIDE>((const V *)exp_avg_sq, i, end, aligned, &x->v);
    }
    template <bool INSIDE, typename T>
    __device__ __forceinline__ void store_value(const P *p, int64_t i, int64_t end, bool aligned) const {
        Real<T> x[N];
        Run<T, N> rounded;
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = (Real<T>)p[k];
        rounded.fill(x);
        put_run<INSIDE>((T *)value.data, i, end, aligned, rounded);
    }
    template <bool INSIDE>
    __device__ __forceinline__ void update(const Step<P> &s, Loaded *x, int64_t i, int64_t end,
                                           bool aligned) const {
        P p[N];
        Real<M> m[N];
        Real<V> v[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            const P g = s.scale * x->g.get(k), old = x->p.get(k);
            const P new_m = fma(new1, g, beta1 * x->m.get(k)), new_v = fma(new2 * g, g, beta2 * x->v.get(k));
            const P along = s.unbias1 * new_m / (sqrt(s.unbias2 * new_v) + s.eps);
            m[k] = new_m, v[k] = new_v;
            p[k] = fma(-s.lr, fma(s.decay, old, along), old);
        }
        x->p.fill(p), x->m.fill(m), x->v.fill(v);
        put_run<INSIDE>(param, i, end, aligned, x->p);
        put_run<INSIDE>(exp_avg, i, end, aligned, x->m);
        put_run<INSIDE>(exp_avg_sq, i, end, aligned, x->v);
        if (!value.data) return;
        if (value.dtype == BF16)
            store_value<INSIDE, bf16>(p, i, end, aligned);
        else if (value.dtype == F16)
            store_value<INSIDE, fp16>(p, i, end, aligned);
        else
            put_run<INSIDE>((P *)value.data, i, end, aligned, x->p);
    }
};

template <typename P, typename G, typename M, typename V> static void step_adamw(const Call *c) {
    const AdamAttr *a = (const AdamAttr *)c->attr;
    const Adamw<P, G, M, V> rule = {data_of<G>(c->in[0]),  data_of<P>(c->out[0]), data_of<M>(c->out[1]),
                                    data_of<V>(c->out[2]), cells(c->out[3]),      (P)a->beta1,
                                    (P)a->beta2,           (P)(1 - a->beta1),     (P)(1 - a->beta2)};
    launch_update(c, rule, adam_numbers(a));
}

/* The parameters are F32. */
template <typename G, typename M> static void step_adamw_f32(const Call *c) {
    switch (c->out[2]->dtype) {
    case BF16:
        step_adamw<float, G, M, bf16>(c);
        break;
    case F16:
        step_adamw<float, G, M, fp16>(c);
        break;
    default:
        step_adamw<float, G, M, float>(c);
    }
}

template <typename G> static void step_adamw_from(const Call *c) {
    switch (c->out[1]->dtype) {
    case BF16:
        step_adamw_f32<G, bf16>(c);
        break;
    case F16:
        step_adamw_f32<G, fp16>(c);
        break;
    default:
        step_adamw_f32<G, float>(c);
    }
}

extern "C" void cuda_adamw(const Call *c) {
    const Tensor *param = c->out[0], *value = c->out[3];
    step_types("adamw", c, c->out[1], true), step_types("adamw", c, c->out[2], true);
    CHECK(!value || value->dtype == param->dtype || dtype_is_16bit((DType)value->dtype),
          "adamw: the values are %s, but the parameters are %s", dtype_name((DType)value->dtype),
          dtype_name((DType)param->dtype));
    if (param->dtype == F64)
        step_adamw<double, double, double, double>(c);
    else if (c->in[0]->dtype == BF16)
        step_adamw_from<bf16>(c);
    else
        step_adamw_from<float>(c);
}

template <typename P, typename G> struct Sgd {
    typedef P R;
    enum { N = VEC<P> };
    struct Loaded {
        Run<G, N> g;
        Run<P, N> p, m;
    };
    const G *grad;
    P *param, *buffer, momentum;

    template <bool INSIDE>
    __device__ __forceinline__ void load(Loaded *x, int64_t i, int64_t end, bool aligned) const {
        get_run<INSIDE>(grad, i, end, aligned, &x->g);
        get_run<INSIDE>((const P *)param, i, end, aligned, &x->p);
        get_run<INSIDE>((const P *)buffer, i, end, aligned, &x->m);
    }
    template <bool INSIDE>
    __device__ __forceinline__ void update(const Step<P> &s, Loaded *x, int64_t i, int64_t end,
                                           bool aligned) const {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const P old = x->p.get(k), g = fma(s.scale, x->g.get(k), s.decay * old),
                    new_m = fma(momentum, x->m.get(k), g);
            x->m.put(k, new_m);
            x->p.put(k, fma(-s.lr, new_m, old));
        }
        put_run<INSIDE>(param, i, end, aligned, x->p);
        put_run<INSIDE>(buffer, i, end, aligned, x->m);
    }
};

template <typename P, typename G> static void step_sgd(const Call *c) {
    const SgdAttr *a = (const SgdAttr *)c->attr;
    const Sgd<P, G> rule = {data_of<G>(c->in[0]), data_of<P>(c->out[0]), data_of<P>(c->out[1]),
                            (P)a->momentum};
    launch_update(c, rule, sgd_numbers(a));
}

extern "C" void cuda_sgd(const Call *c) {
    step_types("sgd", c, c->out[1], false);
    if (c->in[0]->dtype == BF16)
        step_sgd<float, bf16>(c);
    else
        REAL_SWITCH(c->in[0]->dtype, step_sgd<R, R>(c));
}

/* Products are rounded as on the CPU, because a fused multiply-add could change the sign of `along`. */
template <typename P> __device__ __forceinline__ P rounded_product(P a, P b);
template <> __device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
template <> __device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

template <typename P, typename G> struct Lion {
    typedef P R;
    enum { N = VEC<P> };
    struct Loaded {
        Run<G, N> g;
        Run<P, N> p, m;
    };
    const G *grad;
    P *param, *exp_avg, beta1, beta2, new1, new2;

    template <bool INSIDE>
    __device__ __forceinline__ void load(Loaded *x, int64_t i, int64_t end, bool aligned) const {
        get_run<INSIDE>(grad, i, end, aligned, &x->g);
        get_run<INSIDE>((const P *)param, i, end, aligned, &x->p);
        get_run<INSIDE>((const P *)exp_avg, i, end, aligned, &x->m);
    }
    template <bool INSIDE>
    __device__ __forceinline__ void update(const Step<P> &s, Loaded *x, int64_t i, int64_t end,
                                           bool aligned) const {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const P g = rounded_product(s.scale, (P)x->g.get(k)), old = x->p.get(k), m = x->m.get(k),
                    along = rounded_product(beta1, m) + rounded_product(new1, g),
                    sign = (P)((along > 0) - (along < 0));
            x->m.put(k, fma(new2, g, beta2 * m));
            x->p.put(k, fma(-s.lr, fma(s.decay, old, sign), old));
        }
        put_run<INSIDE>(param, i, end, aligned, x->p);
        put_run<INSIDE>(exp_avg, i, end, aligned, x->m);
    }
};

template <typename P, typename G> static void step_lion(const Call *c) {
    const LionAttr *a = (const LionAttr *)c->attr;
    const Lion<P, G> rule = {data_of<G>(c->in[0]), data_of<P>(c->out[0]), data_of<P>(c->out[1]), (P)a->beta1,
                             (P)a->beta2,          (P)(1 - a->beta1),     (P)(1 - a->beta2)};
    launch_update(c, rule, lion_numbers(a));
}

extern "C" void cuda_lion(const Call *c) {
    step_types("lion", c, c->out[1], false);
    if (c->in[0]->dtype == BF16)
        step_lion<float, bf16>(c);
    else
        REAL_SWITCH(c->in[0]->dtype, step_lion<R, R>(c));
}

/* ---- Muon ---- */

template <typename P, typename G> struct MuonMomentum {
    typedef P R;
    enum { N = VEC<P> };
    struct Loaded {
        Run<G, N> g;
        Run<P, N> m;
    };
    const G *grad;
    P *momentum, *direction, beta, added;
    bool nesterov;

    template <bool INSIDE>
    __device__ __forceinline__ void load(Loaded *x, int64_t i, int64_t end, bool aligned) const {
        get_run<INSIDE>(grad, i, end, aligned, &x->g);
        get_run<INSIDE>((const P *)momentum, i, end, aligned, &x->m);
    }
    template <bool INSIDE>
    __device__ __forceinline__ void update(const Step<P> &s, Loaded *x, int64_t i, int64_t end,
                                           bool aligned) const {
        Run<P, N> u;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const P g = added * (s.scale * x->g.get(k)), m = fma(beta, x->m.get(k), g);
            x->m.put(k, m);
            u.put(k, nesterov ? fma(beta, m, g) : m);
        }
        put_run<INSIDE>(momentum, i, end, aligned, x->m);
        put_run<INSIDE>(direction, i, end, aligned, u);
    }
};

template <typename P, typename G> static void step_momentum(const Call *c) {
    const SgdAttr *a = (const SgdAttr *)c->attr;
    const MuonMomentum<P, G> rule = {data_of<G>(c->in[0]), data_of<P>(c->out[0]), data_of<P>(c->out[1]),
                                     (P)a->momentum,       (P)(1 - a->momentum),  a->nesterov};
    launch_update(c, rule, sgd_numbers(a));
}

extern "C" void cuda_muon_momentum(const Call *c) {
    step_types("muon_momentum", c, c->out[1], false);
    if (c->in[0]->dtype == BF16)
        step_momentum<float, bf16>(c);
    else
        REAL_SWITCH(c->in[0]->dtype, step_momentum<R, R>(c));
}

template <typename P> struct MuonUpdate {
    typedef P R;
    enum { N = VEC<P> };
    struct Loaded {
        Run<P, N> u, p;
    };
    const P *direction;
    P *param;

    template <bool INSIDE>
    __device__ __forceinline__ void load(Loaded *x, int64_t i, int64_t end, bool aligned) const {
        get_run<INSIDE>(direction, i, end, aligned, &x->u);
        get_run<INSIDE>((const P *)param, i, end, aligned, &x->p);
    }
    template <bool INSIDE>
    __device__ __forceinline__ void update(const Step<P> &s, Loaded *x, int64_t i, int64_t end,
                                           bool aligned) const {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const P old = x->p.get(k);
            x->p.put(k, fma(-s.lr, fma(s.decay, old, x->u.get(k)), old));
        }
        put_run<INSIDE>(param, i, end, aligned, x->p);
    }
};

template <typename P> static void step_muon(const Call *c) {
    const MuonUpdate<P> rule = {data_of<P>(c->in[0]), data_of<P>(c->out[0])};
    launch_update(c, rule, sgd_numbers((const SgdAttr *)c->attr));
}

extern "C" void cuda_muon_update(const Call *c) {
    step_types("muon_update", c, c->out[0], false);
    REAL_SWITCH(c->out[0]->dtype, step_muon<R>(c));
}

/* ---- QK clip ---- */

template <typename R>
static __global__ void qk_clip(const QkClipAttr a, const R *x, const double *max, R *y, int64_t n) {
    GRID_LOOP(i, n) y[i] = x[i] * (R)qk_clip_factor(&a, max, i);
}

extern "C" void cuda_qk_clip(const Call *c) {
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t n = tensor_count(y);
    CHECK(x->dtype == y->dtype, "qk_clip: the input is %s, but the output is %s", dtype_name((DType)x->dtype),
          dtype_name((DType)y->dtype));
    if (!n) return;
    REAL_SWITCH(x->dtype, qk_clip<R><<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(
                              *(const QkClipAttr *)c->attr, (const R *)x->data,
                              (const double *)c->in[1]->data, (R *)y->data, n));
    LAUNCHED();
}

/* ---- clipping by the gradient's norm ---- */

/* A single thread processes the limbs in order, as the host does. */
static __global__ void clip(const int64_t *sum, int n, const StepNumbers *from, double most,
                            StepNumbers *step, ClipOutcome *outcome) {
    __shared__ ExactSum squares[CLIP_NORMS];
    double rounded[CLIP_NORMS];
    start_pdl();
    for (int i = (int)threadIdx.x; i < n * EXACT_WORDS; i += (int)blockDim.x)
        ((int64_t *)squares)[i] = sum[i];
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 0; i < n; i++) rounded[i] = __longlong_as_double((long long)exact_round(&squares[i]));
    clip_each(n, rounded, most, from, step, outcome);
}

extern "C" void cuda_clip(const Call *c) {
    launch_pdl(c, 1, ceil_div(EXACT_WORDS, WARP) * WARP, 0, clip, (const int64_t *)c->in[0]->data,
               (int)clip_norms(c), (const StepNumbers *)c->in[1]->data, ((const ClipAttr *)c->attr)->most,
               (StepNumbers *)c->out[0]->data, (ClipOutcome *)c->out[1]->data);
}

/* ---- exact sums (base/exact_sum.h) of non-negative numbers. Each thread adds to a private window of WINDOW
 * limbs. The window begins at limb `base`, and moves if a number does not fit. The block then adds the
 * windows. A limb cannot overflow before 2^31 numbers have been added. Integer sums do not depend on the
 * order of summation ---- */

typedef unsigned long long Word; /* for atomicAdd */

/* CHUNKS is the number of limbs that a number can overlap. */
enum { WINDOW = 5, LIMB_BITS = 32, CHUNKS = 3, COLLECTORS = THREADS / EXACT_LIMBS };
static_assert(sizeof(ExactSum) == EXACT_WORDS * sizeof(Word) && (int)EXACT_WORDS <= (int)THREADS,
              "there must be a thread for each word");

struct Sums {
    Word total[EXACT_WORDS]; /* an ExactSum */
    int64_t window[WINDOW][THREADS];
    int base[THREADS];
    unsigned infinities, nans;
};

__device__ __forceinline__ void begin_sums(Sums *s, const Word *add_to) {
    if (threadIdx.x < EXACT_WORDS) s->total[threadIdx.x] = add_to ? add_to[threadIdx.x] : 0;
    for (int k = 0; k < WINDOW; k++) s->window[k][threadIdx.x] = 0;
    s->base[threadIdx.x] = 0;
    if (threadIdx.x == 0) s->infinities = s->nans = 0;
    __syncthreads();
}

__device__ __noinline__ void move_window(Sums *s, int limb) {
    const int t = threadIdx.x, base = s->base[t];
    for (int k = 0; k < WINDOW; k++) {
        if (s->window[k][t]) atomicAdd(&s->total[base + k], (Word)s->window[k][t]);
        s->window[k][t] = 0;
    }
    s->base[t] = limb > 0 ? limb - 1 : 0;
}

__device__ __forceinline__ void add_exactly(Sums *s, double x) {
    const uint64_t bits = (uint64_t)__double_as_longlong(x);
    const int exponent = (int)(bits >> 52 & 0x7ff), t = threadIdx.x;
    const uint64_t fraction = bits & (((uint64_t)1 << 52) - 1);
    if (x == 0) return;
    if (exponent == 0x7ff) {
        atomicAdd(fraction ? &s->nans : &s->infinities, 1u);
        return;
    }
    const uint64_t mantissa = fraction | (uint64_t)(exponent > 0) << 52;
    const int at = exponent > 0 ? exponent - 1 : 0, limb = at / LIMB_BITS, shift = at % LIMB_BITS;
    if (limb < s->base[t] || limb + CHUNKS > s->base[t] + WINDOW) move_window(s, limb);
    const uint64_t low = mantissa << shift, high = mantissa >> LIMB_BITS >> (LIMB_BITS - shift);
    const int k = limb - s->base[t];
    s->window[k][t] += (int64_t)(low & 0xffffffffu);
    s->window[k + 1][t] += (int64_t)(low >> LIMB_BITS);
    s->window[k + 2][t] += (int64_t)high;
}

/* Returns the carry from limb i to the next limb, as computed by exact_normalise in exact_sum.c. */
__device__ __forceinline__ int64_t carry_of(const Word *word, int i) {
    return i >= 0 && i < EXACT_LIMBS - 1 ? (int64_t)word[i] / ((int64_t)1 << LIMB_BITS) : 0;
}
/* Propagates all carries in parallel until there are none. */
__device__ __forceinline__ void normalise(Word *word) {
    const int i = threadIdx.x;
    for (;;) {
        const int64_t out = carry_of(word, i), in = i < EXACT_LIMBS ? carry_of(word, i - 1) : 0;
        if (!__syncthreads_or(out != 0)) return;
        if (i < EXACT_LIMBS) word[i] += (Word)(in - (out << LIMB_BITS));
        __syncthreads();
    }
}

/* Adds the block's sum to the output. If `alone` (there is only one block), writes the sum instead. */
__device__ __forceinline__ void end_sums(Sums *s, Word *out, bool alone) {
    __syncthreads();
    const int limb = threadIdx.x % EXACT_LIMBS, first = threadIdx.x / EXACT_LIMBS;
    if (first < COLLECTORS) {
        int64_t sum = 0;
        for (int t = first; t < THREADS; t += COLLECTORS) {
            const int k = limb - s->base[t];
            if (k >= 0 && k < WINDOW) sum += s->window[k][t];
        }
        if (sum) atomicAdd(&s->total[limb], (Word)sum);
    }
    if (threadIdx.x == 0) {
        s->total[offsetof(ExactSum, plus_infinities) / sizeof(Word)] += s->infinities;
        s->total[offsetof(ExactSum, nans) / sizeof(Word)] += s->nans;
    }
    __syncthreads();
    normalise(s->total);
    const Word word = threadIdx.x < EXACT_WORDS ? s->total[threadIdx.x] : 0;
    if (alone && threadIdx.x < EXACT_WORDS)
        out[threadIdx.x] = word;
    else if (word)
        atomicAdd(&out[threadIdx.x], word);
}

__global__ void normal_sum(Word *out) {
    __shared__ Word word[EXACT_WORDS];
    start_pdl();
    if (threadIdx.x < EXACT_WORDS) word[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    normalise(word);
    if (threadIdx.x < EXACT_LIMBS) out[threadIdx.x] = word[threadIdx.x];
}

/* ---- sum of squares ---- */

/* A warp processes a piece. A full piece has as many blocks of SUM_BLOCK elements as a warp has lanes. In
 * each turn, the warp processes GROUPS blocks, with LANES lanes per block. At the end, each lane has the sum
 * of one block. The order of summation in a block depends only on the type. */
enum { LANES = 8, GROUPS = WARP / LANES, TURNS = WARP / GROUPS, SHARE = SUM_BLOCK / LANES };
static_assert(TURNS == LANES && (int)PIECE_MOST == WARP * (int)SUM_BLOCK, "one block for each lane");

/* Returns the sum of squares over this lane's share of the block that the lane's group processes. x is the
 * piece, with n elements. If INSIDE is true, the piece is full and aligned. */
template <typename T, bool INSIDE>
__device__ __forceinline__ double share_of_a_block(const T *x, int turn, int n, bool aligned) {
    constexpr int N = VEC<T>;
    const int lane = threadIdx.x % WARP;
    const int block = (turn * GROUPS + lane / LANES) * SUM_BLOCK;
    double sum = 0;
#pragma unroll
    for (int i = 0; i < SHARE / N; i++) {
        const int at = block + (i * LANES + lane % LANES) * N;
        Run<T, N> run;
        get_run<INSIDE>(x, at, n, aligned, &run);
#pragma unroll
        for (int k = 0; k < N; k++) sum = fma((double)run.get(k), (double)run.get(k), sum);
    }
    return sum;
}

/* Returns the sum of squares of the lane's block. Each iteration of the second loop halves the number of
 * blocks whose sums a lane keeps, and doubles the number of lanes whose shares these sums include. */
template <typename T> __device__ __forceinline__ double sum_of_a_block(const T *x) {
    double part[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) part[turn] = share_of_a_block<T, true>(x, turn, 0, true);
#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2) {
        const bool upper = threadIdx.x & half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const double mine = upper ? part[i + half] : part[i], other = upper ? part[i] : part[i + half];
            part[i] = mine + __shfl_xor_sync(0xffffffffu, other, half);
        }
    }
    return part[0];
}

/* Computes the same sum as sum_of_a_block, turn by turn, for a piece that may be short or unaligned. */
template <typename T> __device__ __noinline__ double sum_of_a_block_outside(const T *x, int n, bool aligned) {
    double mine = 0;
#pragma unroll 1
    for (int turn = 0; turn * GROUPS * SUM_BLOCK < n; turn++) {
        double sum = share_of_a_block<T, false>(x, turn, n, aligned);
        for (int half = LANES / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
        if (threadIdx.x % LANES == turn) mine = sum;
    }
    return mine;
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 3)
    squares(const T *x, Pieces pieces, bool all_aligned, Word *out, bool add, bool alone) {
    __shared__ Sums s;
    start_pdl();
    begin_sums(&s, alone && add ? out : NULL);
    const int64_t warps = (int64_t)gridDim.x * (THREADS / WARP);
    int64_t at = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    for (; at < pieces.count; at += warps) {
        const FlatPiece piece = pieces[at];
        const T *first = x + piece.begin;
        const bool aligned = all_aligned && piece.begin % VEC<T> == 0;
        add_exactly(&s, aligned && piece.count == PIECE_MOST
                            ? sum_of_a_block(first)
                            : sum_of_a_block_outside(first, (int)piece.count, aligned));
    }
    end_sums(&s, out, alone);
}

/* A thread block processes one piece. Each thread processes one block of the piece at a time. */
__global__ void __launch_bounds__(THREADS)
    squares_of_blocks(Cells x, Pieces pieces, int64_t block, Word *out, bool add, bool alone) {
    __shared__ Sums s;
    start_pdl();
    begin_sums(&s, alone && add ? out : NULL);
    for (int64_t at = blockIdx.x; at < pieces.count; at += gridDim.x) {
        const FlatPiece piece = pieces[at];
        const int64_t end = piece.begin + piece.count;
        for (int64_t i = piece.begin + threadIdx.x * block; i < end; i += THREADS * block) {
            double sum = 0;
            for (int64_t e = i; e < end && e < i + block; e++)
                sum = fma(x.get<double>(e), x.get<double>(e), sum);
            add_exactly(&s, sum);
        }
    }
    end_sums(&s, out, alone);
}

static Word *sum_of(const char *op, const Call *c, int64_t words) {
    const Tensor *sum = c->out[0];
    CHECK(sum->dtype == I64 && tensor_count(sum) == words,
          "%s: the sum has %lld words of type %s instead of %lld of type I64", op,
          (long long)tensor_count(sum), dtype_name((DType)sum->dtype), (long long)words);
    return (Word *)sum->data;
}

extern "C" void cuda_sum_squares(const Call *c) {
    const Tensor *x = c->in[0];
    const int64_t block = ((const SumAttr *)c->attr)->block;
    const Pieces pieces = pieces_of(c);
    CHECK(block > 0 && PIECE_MOST % block == 0, "sum_squares: blocks of %lld elements are not supported",
          (long long)block);
    const bool by_warp = block == SUM_BLOCK, add = accumulates(c->out[0]), aligned = aligned_16(x->data);
    /* There are few thread blocks, because the end of a thread block takes as long as the processing of a
     * piece. */
    const int64_t most = (int64_t)cuda_of(c->device)->multiprocessors * 16;
    const int64_t want = by_warp ? ceil_div(pieces.count, THREADS / WARP) : pieces.count;
    const unsigned grid = (unsigned)(want < most ? want : most);
    const bool alone = grid == 1;
    Word *out = sum_of("sum_squares", c, EXACT_WORDS);
    if (!alone && !add) CUDA_CHECK(cudaMemsetAsync(out, 0, EXACT_WORDS * sizeof *out, stream_of(c)));
    if (!pieces.count) return;
    if (by_warp)
        STORAGE_SWITCH(x->dtype, launch_pdl(c, grid, THREADS, 0, squares<T>, data_of<T>(x), pieces, aligned,
                                            out, add, alone));
    else
        launch_pdl(c, grid, THREADS, 0, squares_of_blocks, cells(x), pieces, block, out, add, alone);
    if (alone) return;
    launch_pdl(c, 1, ceil_div(EXACT_WORDS, WARP) * WARP, 0, normal_sum, out);
}

/* ---- zeros ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS) zeros(const T *x, Pieces pieces, bool all_aligned, Word *count) {
    constexpr int N = VEC<T>;
    __shared__ Word room[WARP];
    Word found = 0;
    for (int64_t at = blockIdx.x; at < pieces.count; at += gridDim.x) {
        const FlatPiece piece = pieces[at];
        const bool aligned = all_aligned && piece.begin % N == 0;
        const int64_t end = piece.begin + piece.count;
        for (int64_t i = piece.begin + (int)threadIdx.x * N; i < end; i += THREADS * N) {
            const Run<T, N> run = load_run<T, N>(x, i, end, aligned);
#pragma unroll
            for (int k = 0; k < N; k++) found += i + k < end && run.get(k) == 0;
        }
    }
    found = block_sum(found, room);
    if (threadIdx.x == 0 && found) atomicAdd(count, found);
}

extern "C" void cuda_count_zeros(const Call *c) {
    const Tensor *x = c->in[0];
    const Pieces pieces = pieces_of(c);
    Word *count = sum_of("count_zeros", c, 1);
    if (!accumulates(c->out[0])) CUDA_CHECK(cudaMemsetAsync(count, 0, sizeof *count, stream_of(c)));
    if (!pieces.count) return;
    STORAGE_SWITCH(x->dtype, zeros<T><<<grid_for(c, pieces.count, 1), THREADS, 0, stream_of(c)>>>(
                                 data_of<T>(x), pieces, aligned_16(x->data), count));
    LAUNCHED();
}
