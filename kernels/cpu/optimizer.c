/* Steps of the optimizers over flat slices of the parameter buffers, and the sums they need.
 * AdamW (Loshchilov and Hutter 2019; Transformer Engine's multi_tensor_adam, decoupled decay):
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
 *   p -= lr * (m / correction1 / (sqrt(v / correction2) + eps) + weight_decay p)
 * SGD as in PyTorch: g += weight_decay p, m = momentum m + g, p -= lr m; m begins at 0. */
#include <pthread.h>
#include <string.h>

#include "base/exact_sum.h"
#include "kernels/cpu/real.h"

static void adamw(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const AdamAttr *a = c->attr;
    const real *restrict grad = reals(c->in[0]);
    real *restrict p = reals(c->out[0]), *restrict m = reals(c->out[1]), *restrict v = reals(c->out[2]);
    const real lr = (real)a->lr, decay = (real)a->weight_decay, eps = (real)a->eps;
    const real beta1 = (real)a->beta1, beta2 = (real)a->beta2, scale = (real)a->grad_scale;
    const real new1 = (real)(1 - a->beta1), new2 = (real)(1 - a->beta2);
    const real unbias1 = (real)(1 / a->correction1), unbias2 = (real)(1 / a->correction2);
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        const real g = scale * grad[i];
        m[i] = beta1 * m[i] + new1 * g;
        v[i] = beta2 * v[i] + new2 * g * g;
        p[i] -= lr * (unbias1 * m[i] / (REAL_MATH(sqrt)(unbias2 * v[i]) + eps) + decay * p[i]);
    }
    if (c->out[3]) memcpy(reals(c->out[3]) + begin, p + begin, (size_t)(end - begin) * sizeof *p);
}

void KERNEL(adamw)(const Call *c) {
    pool_for(c->device->pool, tensor_count(c->in[0]), GRAIN, adamw, (void *)c);
}

static void sgd(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const SgdAttr *a = c->attr;
    const real *restrict grad = reals(c->in[0]);
    real *restrict p = reals(c->out[0]), *restrict m = reals(c->out[1]);
    const real lr = (real)a->lr, decay = (real)a->weight_decay, momentum = (real)a->momentum,
               scale = (real)a->grad_scale;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        m[i] = momentum * m[i] + (scale * grad[i] + decay * p[i]);
        p[i] -= lr * m[i];
    }
}

void KERNEL(sgd)(const Call *c) { pool_for(c->device->pool, tensor_count(c->in[0]), GRAIN, sgd, (void *)c); }

/* ---- sums of blocks of fixed size, each in PARTS interleaved sums, so that neither threads nor vectors nor
 * the way a parameter is shared out can change them; adding them up is exact ---- */

enum { PARTS = 16, TOGETHER = 512 };

typedef struct Sums {
    const Call *call;
    pthread_mutex_t lock; /* of the output */
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
    const Tensor *x = s->call->in[0];
    const int64_t block = ((const SumAttr *)s->call->attr)->block, n = tensor_count(x);
    ExactSum sum = {0};
    double of_block[TOGETHER];
    for (int64_t i = begin, k = 0; i < end; i++) {
        const int64_t rest = n - i * block;
        of_block[k++] = squares(reals(x) + i * block, rest < block ? rest : block);
        if (k < TOGETHER && i + 1 < end) continue;
        exact_add(&sum, of_block, k);
        k = 0;
    }
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
    cleared(c->out[0]);
    pool_for(c->device->pool, (tensor_count(c->in[0]) + block - 1) / block, grain_rows(block), sum_blocks,
             &(Sums){c, PTHREAD_MUTEX_INITIALIZER});
}

void KERNEL(count_zeros)(const Call *c) {
    int64_t *count = cleared(c->out[0]);
    const real *x = reals(c->in[0]);
    for (int64_t i = 0, n = tensor_count(c->in[0]); i < n; i++) *count += x[i] == 0;
}
