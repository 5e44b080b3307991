/* Cross-entropy of each token: loss = lse - logit[label], lse = log(sum over the vocabulary of exp(logit));
 * dlogit = (exp(logit - lse) - [column is label]) * dloss, or 0 in padding columns. Logarithms are natural. loss,
 * lse, dlogits and sums are written. */
#include "kernels/cpu/vector_math.h"

/* The number of interleaved partial reductions over a row; their results are merged at the end. The compiler can
 * vectorize interleaved reductions, and the order of summation is the same on every machine. */
enum { PARTS = 64 };

static real larger(real a, real b) { return a > b ? a : b; }

static real row_max(const real *x, int64_t n) {
    real part[PARTS], max = x[0];
    int64_t i = 0;
    for (int l = 0; l < PARTS; l++) part[l] = max;
    for (; i + PARTS <= n; i += PARTS)
        for (int l = 0; l < PARTS; l++) part[l] = larger(x[i + l], part[l]);
    for (; i < n; i++) max = larger(x[i], max);
    for (int l = 0; l < PARTS; l++) max = larger(part[l], max);
    return max;
}

static real sum_exp(const real *x, int64_t n, real max) {
    real part[PARTS] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + PARTS <= n; i += PARTS)
        for (int l = 0; l < PARTS; l++) part[l] += vector_exp(x[i + l] - max);
    for (int l = 0; l < n - i; l++) part[l] += vector_exp(x[i + l] - max);
    for (int l = 0; l < PARTS; l++) sum += part[l];
    return sum;
}

static int64_t vocab(const Call *c) { return ((const LossAttr *)c->attr)->vocab; }
static int64_t first_column(const Call *c) { return ((const LossAttr *)c->attr)->first; }

/* Returns the number of this tensor's columns that are not padding. */
static int64_t columns(const Call *c, const Tensor *logits) {
    const int64_t n = vocab(c) - first_column(c), width = tensor_width(logits);
    return n < 0 ? 0 : n < width ? n : width;
}

static void check_labels(const Call *c, const Tensor *label) {
    for (int64_t i = 0, n = tensor_count(label); i < n; i++)
        CHECK(int64s(label)[i] >= 0 && int64s(label)[i] < vocab(c),
              "cross_entropy: label %lld of token %lld is outside the vocabulary of size %lld",
              (long long)int64s(label)[i], (long long)i, (long long)vocab(c));
}

/* Returns the index in [b,s] of the token in row r of [s,b,v]. */
static int64_t token_of_row(const Tensor *logits, int64_t r) {
    return r % logits->dim[1] * logits->dim[0] + r / logits->dim[1];
}

static void forward(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *logits = c->in[0];
    for (int64_t r = begin; r < end; r++) {
        const real *x = reals(logits) + r * tensor_width(logits);
        const int64_t token = token_of_row(logits, r);
        const real max = row_max(x, vocab(c)), log_sum = REAL_MATH(log)(sum_exp(x, vocab(c), max));
        reals(c->out[0])[token] = log_sum - (x[int64s(c->in[1])[token]] - max);
        reals(c->out[1])[token] = max + log_sum;
    }
}

void KERNEL(cross_entropy)(const Call *c) {
    check_labels(c, c->in[1]);
    pool_for(c->device->pool, tensor_rows(c->in[0]), grain_rows(tensor_width(c->in[0])), forward, (void *)c);
}

static void loss_backward(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *logits = c->in[1];
    const int64_t width = tensor_width(logits), n = columns(c, logits);
    for (int64_t r = begin; r < end; r++) {
        const int64_t token = token_of_row(logits, r);
        const real *x = reals(logits) + r * width, lse = reals(c->in[3])[token],
                   dloss = reals(c->in[0])[token];
        real *dx = reals(c->out[0]) + r * width;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dx[i] = vector_exp(x[i] - lse) * dloss;
        const int64_t label = int64s(c->in[2])[token] - first_column(c);
        if (label >= 0 && label < n) dx[label] -= dloss;
        for (int64_t i = n; i < width; i++) dx[i] = 0;
    }
}

void KERNEL(cross_entropy_grad)(const Call *c) {
    check_labels(c, c->in[2]);
    pool_for(c->device->pool, tensor_rows(c->in[1]), grain_rows(tensor_width(c->in[1])), loss_backward,
             (void *)c);
}

void KERNEL(cross_entropy_with_grad)(const Call *c) {
    Tensor *const *in = c->in, *const *out = c->out;
    KERNEL(cross_entropy)
    (&(Call){.in = {in[0], in[1]}, .out = {out[0], out[1]}, .attr = c->attr, .device = c->device});
    KERNEL(cross_entropy_grad)
    (&(Call){.in = {in[2], in[0], in[1], out[1]}, .out = {out[2]}, .attr = c->attr, .device = c->device});
}

/* ---- a vocabulary that is sharded over ranks ---- */

static void shard_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *logits = c->in[0];
    const int64_t n = columns(c, logits), tokens = tensor_rows(logits);
    real *lse = reals(c->out[0]), *target = lse + tokens;
    for (int64_t r = begin; r < end; r++) {
        const real *x = reals(logits) + r * tensor_width(logits);
        const int64_t token = token_of_row(logits, r), label = int64s(c->in[1])[token] - first_column(c);
        const real max = n ? row_max(x, n) : 0;
        lse[token] = n ? max + REAL_MATH(log)(sum_exp(x, n, max)) : -(real)INFINITY;
        target[token] = label >= 0 && label < n ? x[label] : 0;
    }
}

void KERNEL(cross_entropy_shard)(const Call *c) {
    check_labels(c, c->in[1]);
    pool_for(c->device->pool, tensor_rows(c->in[0]), grain_rows(tensor_width(c->in[0])), shard_rows,
             (void *)c);
}

void KERNEL(cross_entropy_join)(const Call *c) {
    const int64_t shards = c->in[0]->dim[0], tokens = tensor_count(c->out[0]);
    const real *part = reals(c->in[0]);
    for (int64_t t = 0; t < tokens; t++) {
        real max = part[t], sum = 0, target = 0;
        for (int64_t i = 1; i < shards; i++) max = larger(part[2 * i * tokens + t], max);
        for (int64_t i = 0; i < shards; i++) {
            sum += REAL_MATH(exp)(part[2 * i * tokens + t] - max);
            target += part[(2 * i + 1) * tokens + t];
        }
        reals(c->out[1])[t] = max + REAL_MATH(log)(sum);
        reals(c->out[0])[t] = REAL_MATH(log)(sum) - (target - max);
    }
}

/* Returns true if `label` is the index of the first maximum of n elements. */
static bool is_first_largest(const real *x, int64_t n, int64_t label) {
    const real own = x[label];
    int larger = 0;
    for (int64_t i = 0; i < label; i++) larger |= !(x[i] < own);
    for (int64_t i = label; i < n; i++) larger |= !(x[i] <= own);
    return !larger;
}

static void correct_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *logits = c->in[0];
    const int64_t n = columns(c, logits), tokens = tensor_rows(logits);
    real *top = reals(c->out[0]), *is_label = top + tokens;
    for (int64_t r = begin; r < end; r++) {
        const real *x = reals(logits) + r * tensor_width(logits);
        const int64_t token = token_of_row(logits, r), label = int64s(c->in[1])[token] - first_column(c);
        top[token] = n ? row_max(x, n) : -(real)INFINITY;
        is_label[token] = label >= 0 && label < n && is_first_largest(x, n, label);
    }
}

void KERNEL(correct_shard)(const Call *c) {
    check_labels(c, c->in[1]);
    pool_for(c->device->pool, tensor_rows(c->in[0]), grain_rows(tensor_width(c->in[0])), correct_rows,
             (void *)c);
}

/* The first shard that contains the largest logit determines the result. */
void KERNEL(correct_join)(const Call *c) {
    const int64_t shards = c->in[0]->dim[0], tokens = tensor_count(c->out[0]);
    const real *part = reals(c->in[0]);
    for (int64_t t = 0; t < tokens; t++) {
        int64_t best = 0;
        for (int64_t i = 1; i < shards; i++)
            if (part[2 * i * tokens + t] > part[2 * best * tokens + t]) best = i;
        reals(c->out[0])[t] = part[(2 * best + 1) * tokens + t];
    }
}

void KERNEL(weighted_sum)(const Call *c) {
    const Tensor *x = c->in[0];
    CHECK(c->out[0]->dtype == F64, "weighted_sum: the sum must be F64");
    double *total = c->out[0]->data;
    if (!accumulates(c->out[0])) *total = 0;
    for (int64_t b = 0; b < x->dim[0]; b++) {
        double sum = 0;
        for (int64_t i = b * x->dim[1]; i < (b + 1) * x->dim[1]; i++)
            sum += (double)reals(x)[i] * (double)reals(c->in[1])[i];
        *total += sum;
    }
}
