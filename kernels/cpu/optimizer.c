/* Optimizer steps on pieces of the flat parameter buffers, and the sums that optimizer steps need. AdamW
 * (Loshchilov and Hutter 2019; Transformer Engine's multi_tensor_adam, decoupled decay):
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
 *   p -= lr * (m / correction1 / (sqrt(v / correction2) + eps) + weight_decay p)
 * SGD as in PyTorch: g += weight_decay p, m = momentum m + g, p -= lr m; m begins at 0.
 * Lion (Chen et al. 2023): p -= lr * (sign(beta1 m + (1 - beta1) g) + weight_decay p), m = beta2 m + (1 - beta2) g.
 * Muon (optim/muon.h): m = beta m + (1 - beta) g,  p -= lr * (update + weight_decay p). */
#include <pthread.h>
#include <string.h>

#include "base/exact_sum.h"
#include "kernels/step_numbers.h"
#include "kernels/cpu/real.h"

/* ---- pieces: without a table of pieces, each piece has PIECE_MOST elements ---- */

static int64_t pieces(const Call *c) {
    return c->in[1] ? c->in[1]->dim[0] : (tensor_count(c->in[0]) + PIECE_MOST - 1) / PIECE_MOST;
}

static FlatPiece piece_at(const Call *c, int64_t i) {
    const int64_t n = tensor_count(c->in[0]), begin = i * PIECE_MOST;
    if (!c->in[1]) return (FlatPiece){begin, n - begin < PIECE_MOST ? n - begin : PIECE_MOST, 0};
    const FlatPiece p = ((const FlatPiece *)int64s(c->in[1]))[i];
    CHECK(p.begin >= 0 && p.count >= 0 && p.count <= PIECE_MOST && p.begin + p.count <= n && p.group >= 0 &&
              p.group < STEP_GROUPS,
          "a piece of %lld elements at element %lld of %lld, group %lld, is invalid", (long long)p.count,
          (long long)p.begin, (long long)n, (long long)p.group);
    return p;
}

static void in_pieces(const Call *c, PoolFn *fn, void *arg) {
    pool_for(c->device->pool, pieces(c), GRAIN / PIECE_MOST, fn, arg);
}

/* ---- steps ---- */

/* Returns the step's numbers if they are in an operand, or NULL if they are in the attributes. */
static const StepNumbers *step_in(const Call *c) {
    const Tensor *t = c->in[2];
    CHECK(!t || (t->dtype == F64 && tensor_count(t) == STEP_WORDS),
          "a step has %lld numbers of type %s instead of %d of type F64", (long long)tensor_count(t),
          dtype_name((DType)t->dtype), (int)STEP_WORDS);
    return t ? t->data : NULL;
}

typedef struct Step {
    const Call *call;
    StepNumbers numbers;
} Step;

static void update(Step *s, PoolFn *fn) {
    if (s->numbers.updates != 0) in_pieces(s->call, fn, s);
}

static void adamw_piece(const Step *step, FlatPiece piece) {
    const Call *c = step->call;
    const AdamAttr *a = c->attr;
    const StepNumbers *s = &step->numbers;
    const real *restrict grad = reals(c->in[0]) + piece.begin;
    real *restrict p = reals(c->out[0]) + piece.begin, *restrict m = reals(c->out[1]) + piece.begin,
                   *restrict v = reals(c->out[2]) + piece.begin;
    const StepGroup group = s->group[piece.group];
    const real lr = (real)group.lr, decay = (real)group.weight_decay, eps = (real)group.eps;
    const real beta1 = (real)a->beta1, beta2 = (real)a->beta2, scale = (real)s->grad_scale;
    const real new1 = (real)(1 - a->beta1), new2 = (real)(1 - a->beta2);
    const real unbias1 = (real)s->unbias1, unbias2 = (real)s->unbias2;
#pragma omp simd
    for (int64_t i = 0; i < piece.count; i++) {
        const real g = scale * grad[i];
        m[i] = beta1 * m[i] + new1 * g;
        v[i] = beta2 * v[i] + new2 * g * g;
        p[i] -= lr * (unbias1 * m[i] / (REAL_MATH(sqrt)(unbias2 * v[i]) + eps) + decay * p[i]);
    }
    if (c->out[3]) memcpy(reals(c->out[3]) + piece.begin, p, (size_t)piece.count * sizeof *p);
}

static void adamw(void *arg, int64_t begin, int64_t end) {
    const Step *s = arg;
    for (int64_t i = begin; i < end; i++) adamw_piece(s, piece_at(s->call, i));
}

void KERNEL(adamw)(const Call *c) {
    const StepNumbers *s = step_in(c);
    update(&(Step){c, s ? *s : adam_numbers(c->attr)}, adamw);
}

static void sgd_piece(const Step *step, FlatPiece piece) {
    const Call *c = step->call;
    const SgdAttr *a = c->attr;
    const StepNumbers *s = &step->numbers;
    const real *restrict grad = reals(c->in[0]) + piece.begin;
    real *restrict p = reals(c->out[0]) + piece.begin, *restrict m = reals(c->out[1]) + piece.begin;
    const StepGroup group = s->group[piece.group];
    const real lr = (real)group.lr, decay = (real)group.weight_decay, momentum = (real)a->momentum,
               scale = (real)s->grad_scale;
#pragma omp simd
    for (int64_t i = 0; i < piece.count; i++) {
        m[i] = momentum * m[i] + (scale * grad[i] + decay * p[i]);
        p[i] -= lr * m[i];
    }
}

static void sgd(void *arg, int64_t begin, int64_t end) {
    const Step *s = arg;
    for (int64_t i = begin; i < end; i++) sgd_piece(s, piece_at(s->call, i));
}

void KERNEL(sgd)(const Call *c) {
    const StepNumbers *s = step_in(c);
    update(&(Step){c, s ? *s : sgd_numbers(c->attr)}, sgd);
}

static void lion_piece(const Step *step, FlatPiece piece) {
    const Call *c = step->call;
    const LionAttr *a = c->attr;
    const StepNumbers *s = &step->numbers;
    const real *restrict grad = reals(c->in[0]) + piece.begin;
    real *restrict p = reals(c->out[0]) + piece.begin, *restrict m = reals(c->out[1]) + piece.begin;
    const StepGroup group = s->group[piece.group];
    const real lr = (real)group.lr, decay = (real)group.weight_decay, scale = (real)s->grad_scale;
    const real beta1 = (real)a->beta1, beta2 = (real)a->beta2, new1 = (real)(1 - a->beta1),
               new2 = (real)(1 - a->beta2);
#pragma omp simd
    for (int64_t i = 0; i < piece.count; i++) {
        const real g = scale * grad[i], along = beta1 * m[i] + new1 * g;
        m[i] = beta2 * m[i] + new2 * g;
        p[i] -= lr * ((real)((along > 0) - (along < 0)) + decay * p[i]);
    }
}

static void lion(void *arg, int64_t begin, int64_t end) {
    const Step *s = arg;
    for (int64_t i = begin; i < end; i++) lion_piece(s, piece_at(s->call, i));
}

void KERNEL(lion)(const Call *c) {
    const StepNumbers *s = step_in(c);
    update(&(Step){c, s ? *s : lion_numbers(c->attr)}, lion);
}

static void momentum_piece(const Step *step, FlatPiece piece) {
    const Call *c = step->call;
    const SgdAttr *a = c->attr;
    const real *restrict grad = reals(c->in[0]) + piece.begin;
    real *restrict m = reals(c->out[0]) + piece.begin, *restrict u = reals(c->out[1]) + piece.begin;
    const real beta = (real)a->momentum, new = (real)(1 - a->momentum),
               scale = (real)step->numbers.grad_scale;
#pragma omp simd
    for (int64_t i = 0; i < piece.count; i++) {
        const real g = scale * grad[i];
        m[i] = beta * m[i] + new *g;
        u[i] = a->nesterov ? beta * m[i] + new *g : m[i];
    }
}

static void muon_momentum(void *arg, int64_t begin, int64_t end) {
    const Step *s = arg;
    for (int64_t i = begin; i < end; i++) momentum_piece(s, piece_at(s->call, i));
}

void KERNEL(muon_momentum)(const Call *c) {
    const StepNumbers *s = step_in(c);
    update(&(Step){c, s ? *s : sgd_numbers(c->attr)}, muon_momentum);
}

static void muon_update_piece(const Step *step, FlatPiece piece) {
    const Call *c = step->call;
    const StepGroup group = step->numbers.group[piece.group];
    const real *restrict u = reals(c->in[0]) + piece.begin, lr = (real)group.lr,
                         decay = (real)group.weight_decay;
    real *restrict p = reals(c->out[0]) + piece.begin;
#pragma omp simd
    for (int64_t i = 0; i < piece.count; i++) p[i] -= lr * (u[i] + decay * p[i]);
}

static void muon_update(void *arg, int64_t begin, int64_t end) {
    const Step *s = arg;
    for (int64_t i = begin; i < end; i++) muon_update_piece(s, piece_at(s->call, i));
}

void KERNEL(muon_update)(const Call *c) {
    const StepNumbers *s = step_in(c);
    update(&(Step){c, s ? *s : sgd_numbers(c->attr)}, muon_update);
}

typedef struct Divided {
    const Call *call;
    real by;
} Divided;

static void divide(void *arg, int64_t begin, int64_t end) {
    const Divided *d = arg;
    const real *x = reals(d->call->in[0]);
    real *y = reals(d->call->out[0]);
    for (int64_t i = begin; i < end; i++) y[i] = x[i] / d->by;
}

void KERNEL(unit_norm)(const Call *c) {
    ExactSum squares;
    CHECK(tensor_count(c->in[1]) == EXACT_WORDS, "unit_norm: a sum of %lld words is not supported",
          (long long)tensor_count(c->in[1]));
    memcpy(&squares, c->in[1]->data, sizeof squares);
    pool_for(c->device->pool, tensor_count(c->in[0]), GRAIN, divide,
             &(Divided){c, (real)unit_divisor(exact_value(squares))});
}

void KERNEL(clip)(const Call *c) {
    const Tensor *sum = c->in[0], *from = c->in[1], *step = c->out[0], *outcome = c->out[1];
    const int64_t n = clip_norms(c);
    ExactSum squares[CLIP_NORMS];
    double rounded[CLIP_NORMS];
    StepNumbers before, after[CLIP_NORMS];
    ClipOutcome o[CLIP_NORMS];
    memcpy(squares, sum->data, (size_t)n * sizeof *squares);
    memcpy(&before, from->data, sizeof before);
    for (int64_t i = 0; i < n; i++) rounded[i] = exact_value(squares[i]);
    clip_each(n, rounded, ((const ClipAttr *)c->attr)->most, &before, after, o);
    memcpy(step->data, after, (size_t)n * sizeof *after);
    memcpy(outcome->data, o, (size_t)n * sizeof *o);
}

/* ---- sums: a block of fixed size is summed in PARTS interleaved parts, and the blocks' sums are added
 * exactly. The result does not depend on the number of threads, the vector width or the sharding ---- */

enum { PARTS = 16, TOGETHER = 512 };

typedef struct Sums {
    const Call *call;
    pthread_mutex_t lock; /* protects the output */
} Sums;

static double squares(const real *x, int64_t n) {
    double part[PARTS] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + PARTS <= n; i += PARTS)
#pragma omp simd
        for (int l = 0; l < PARTS; l++) part[l] += (double)x[i + l] * (double)x[i + l];
    for (int l = 0; l < n - i; l++) part[l] += (double)x[i + l] * (double)x[i + l];
    for (int l = 0; l < PARTS; l++) sum += part[l];
    return sum;
}

static void sum_blocks(void *arg, int64_t begin, int64_t end) {
    Sums *s = arg;
    const int64_t block = ((const SumAttr *)s->call->attr)->block;
    ExactSum sum = {0};
    double of_block[TOGETHER];
    int64_t k = 0;
    for (int64_t i = begin; i < end; i++) {
        const FlatPiece piece = piece_at(s->call, i);
        const real *x = reals(s->call->in[0]) + piece.begin;
        for (int64_t at = 0; at < piece.count; at += block) {
            const int64_t rest = piece.count - at;
            of_block[k++] = squares(x + at, rest < block ? rest : block);
            if (k == TOGETHER) exact_add(&sum, of_block, k), k = 0;
        }
    }
    exact_add(&sum, of_block, k);
    pthread_mutex_lock(&s->lock);
    exact_merge(s->call->out[0]->data, &sum);
    pthread_mutex_unlock(&s->lock);
}

static void *cleared(Tensor *sum) {
    CHECK(sum->dtype == I64, "the sum is %s, not I64", dtype_name((DType)sum->dtype));
    if (!accumulates(sum)) memset(sum->data, 0, tensor_bytes(sum));
    return sum->data;
}

void KERNEL(sum_squares)(const Call *c) {
    const int64_t block = ((const SumAttr *)c->attr)->block;
    CHECK(tensor_count(c->out[0]) == EXACT_WORDS, "sum_squares: the sum has %lld words, not %d",
          (long long)tensor_count(c->out[0]), (int)EXACT_WORDS);
    CHECK(block > 0 && PIECE_MOST % block == 0, "sum_squares: blocks of %lld elements are not supported",
          (long long)block);
    cleared(c->out[0]);
    in_pieces(c, sum_blocks, &(Sums){c, PTHREAD_MUTEX_INITIALIZER});
}

void KERNEL(count_zeros)(const Call *c) {
    int64_t *count = cleared(c->out[0]);
    for (int64_t i = 0, n = pieces(c); i < n; i++) {
        const FlatPiece piece = piece_at(c, i);
        const real *x = reals(c->in[0]) + piece.begin;
        for (int64_t e = 0; e < piece.count; e++) *count += x[e] == 0;
    }
}

static void clip_elements(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const real *x = reals(c->in[0]);
    real *y = reals(c->out[0]);
    for (int64_t i = begin; i < end; i++) y[i] = x[i] * (real)qk_clip_factor(c->attr, c->in[1]->data, i);
}

void KERNEL(qk_clip)(const Call *c) {
    pool_for(c->device->pool, tensor_count(c->out[0]), GRAIN, clip_elements, (void *)c);
}
