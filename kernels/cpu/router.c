/* The router of an MoE layer: computes the experts of each token, their probabilities, and the gradient.
 * Source: Megatron-LM core/transformer/moe/moe_utils.py (topk_routing_with_score_function,
 * group_limited_topk, sinkhorn). probs, expert, scores and bias are written; dlogits and count are written or
 * accumulated. */
#include "kernels/cpu/router.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/philox.h"

typedef struct Router {
    const Call *call;
    const RouteAttr *attr;
    const Tensor *logits;
    int64_t experts, topk;
} Router;

static Router router(const Call *c, const Tensor *logits, const Tensor *expert) {
    return (Router){c, c->attr, logits, tensor_width(logits), tensor_width(expert)};
}

/* ---- selection of experts ---- */

/* Returns the index of the first maximum of n values. */
static int64_t largest(const real *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Excludes from `choice` all experts that are not in the best groups. scratch [experts + groups]. */
static void limit_groups(const Router *r, real *choice, real *scratch) {
    const RouteAttr *a = r->attr;
    const int64_t size = r->experts / a->groups;
    real *score = scratch + r->experts;
    for (int64_t i = 0; i < r->experts; i++) scratch[i] = choice[i], choice[i] = -INFINITY;
    for (int64_t g = 0; g < a->groups; g++) {
        real *rest = choice + g * size; /* until the end, `choice` serves as scratch memory */
        for (int64_t i = 0; i < size; i++) rest[i] = scratch[g * size + i];
        score[g] = 0;
        for (int64_t i = 0; i < a->group_scores; i++) {
            const int64_t best = largest(rest, size);
            score[g] += rest[best];
            rest[best] = -INFINITY;
        }
        for (int64_t i = 0; i < size; i++) rest[i] = -INFINITY;
    }
    for (int64_t i = 0; i < a->group_topk; i++) {
        const int64_t best = largest(score, a->groups);
        score[best] = -INFINITY;
        for (int64_t j = best * size; j < (best + 1) * size; j++) choice[j] = scratch[j];
    }
}

/* Returns, in ascending order, the topk experts with the largest values. */
static void choose(const Router *r, real *choice, int64_t *expert) {
    for (int64_t j = 0; j < r->topk; j++) {
        int64_t at = j, best = largest(choice, r->experts);
        choice[best] = -INFINITY;
        for (; at > 0 && expert[at - 1] > best; at--) expert[at] = expert[at - 1];
        expert[at] = best;
    }
}

/* ---- softmax over a band of experts (Liu et al., GRIN, 2024, without sampling) ---- */

/* Returns the expert with the largest logit, and removes this expert from `rest` by setting its logit to
 * -inf. share[i] becomes the softmax over the experts with similar logits (RouteAttr.band), or 0 for other
 * experts. */
static int64_t choose_in_band(const Router *r, real *rest, real *share) {
    const int64_t n = r->experts, best = largest(rest, n);
    const real top = rest[best];
    real sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const real x = rest[i], size = REAL_MATH(fabs)(x);
        const bool near = x > -INFINITY && !((top - x) / (size > top ? size : top) > (real)r->attr->band);
        sum += share[i] = near ? vector_exp(x - top) : 0;
    }
    for (int64_t i = 0; i < n; i++) share[i] /= sum;
    rest[best] = -INFINITY;
    return best;
}

static int64_t place_of(const Router *r, const int64_t *expert, int64_t choice) {
    int64_t at = 0;
    while (at + 1 < r->topk && expert[at] != choice) at++;
    return at;
}

static void band_probs(const Router *r, real *rest, const int64_t *expert, real *share, real *probs) {
    for (int64_t j = 0; j < r->topk; j++) {
        const int64_t choice = choose_in_band(r, rest, share);
        probs[place_of(r, expert, choice)] = share[choice];
    }
}

static void band_grad(const Router *r, real *rest, const int64_t *expert, const real *dprobs, real *share,
                      real *ds) {
    for (int64_t j = 0; j < r->topk; j++) {
        const int64_t choice = choose_in_band(r, rest, share);
        const real d = (real)r->attr->scaling * dprobs[place_of(r, expert, choice)] * share[choice];
        for (int64_t i = 0; i < r->experts; i++) ds[i] -= d * share[i];
        ds[choice] += d;
    }
}

/* ---- route ---- */

static void route_rows(void *arg, int64_t begin, int64_t end) {
    const Router *r = arg;
    const Tensor *select = r->call->in[1], *bias = r->call->in[2];
    const int64_t n = r->experts, k = r->topk;
    real *score = mem_alloc((size_t)(3 * n + r->attr->groups) * sizeof *score), *choice = score + n,
         *scratch = choice + n;
    for (int64_t row = begin; row < end; row++) {
        const RouterOrder order = r->attr->order;
        const real *logits = reals(r->logits) + row * n, *from = order == ORDER_LOGITS    ? logits
                                                                 : order == ORDER_SOFTMAX ? choice
                                                                                          : score;
        real *probs = reals(r->call->out[0]) + row * k, sum = 0;
        int64_t *expert = int64s(r->call->out[1]) + row * k;
        router_scores(r->attr->score, logits, n, score);
        if (order == ORDER_SOFTMAX) router_softmax(logits, n, choice);
        if (select) from = reals(select) + row * n;
        for (int64_t i = 0; i < n; i++) choice[i] = bias ? from[i] + reals(bias)[i] : from[i];
        if (r->attr->groups > 1) limit_groups(r, choice, scratch);
        choose(r, choice, expert);
        for (int64_t j = 0; j < k; j++) sum += probs[j] = score[expert[j]];
        if (r->attr->score == ROUTER_TOPK_SOFTMAX) router_softmax(probs, k, probs);
        if (r->attr->score == ROUTER_SPARSEMIXER) band_probs(r, score, expert, scratch, probs);
        const real norm = router_normalises(r->attr->score) && k > 1 ? sum + (real)ROUTER_EPSILON : 1;
        for (int64_t j = 0; j < k; j++) probs[j] = probs[j] / norm * (real)r->attr->scaling;
    }
    free(score);
}

void KERNEL(route)(const Call *c) {
    Router r = router(c, c->in[0], c->out[1]);
    pool_for(c->device->pool, tensor_rows(r.logits), grain_rows(r.experts * (r.topk + 1)), route_rows, &r);
}

/* Computes ds of the selected experts from dprobs. Returns the sum of ds weighted by s. */
static real score_grad(const Router *r, const real *dprobs, const real *s, real *ds) {
    const int64_t k = r->topk;
    const bool normalised = router_normalises(r->attr->score) && k > 1;
    real sum = normalised ? (real)ROUTER_EPSILON : 1, dot = 0, weighted = 0;
    for (int64_t j = 0; normalised && j < k; j++) sum += s[j];
    for (int64_t j = 0; j < k; j++) dot += dprobs[j] * s[j];
    for (int64_t j = 0; j < k; j++) {
        ds[j] = (real)r->attr->scaling * (normalised ? (dprobs[j] - dot / sum) / sum : dprobs[j]);
        weighted += ds[j] * s[j];
    }
    return weighted;
}

static void route_grad_rows(void *arg, int64_t begin, int64_t end) {
    const Router *r = arg;
    const Call *c = r->call;
    const int64_t n = r->experts, k = r->topk;
    const RouterScore kind = r->attr->score;
    real *score = mem_alloc((size_t)(3 * n + 2 * k) * sizeof *score), *ds = score + n, *share = ds + n,
         *chosen = share + n, *dchosen = chosen + k;
    for (int64_t row = begin; row < end; row++) {
        const int64_t *expert = int64s(c->in[3]) + row * k;
        const real *dprobs = reals(c->in[0]) + row * k, *probs = reals(c->in[2]) + row * k;
        real *dlogits = reals(c->out[0]) + row * n;
        router_scores(kind, reals(r->logits) + row * n, n, score);
        for (int64_t i = 0; i < n; i++) ds[i] = 0;
        for (int64_t j = 0; j < k; j++)
            chosen[j] = kind == ROUTER_TOPK_SOFTMAX ? probs[j] / (real)r->attr->scaling : score[expert[j]];
        const real weighted = score_grad(r, dprobs, chosen, dchosen);
        for (int64_t j = 0; j < k && kind != ROUTER_SPARSEMIXER; j++)
            ds[expert[j]] = kind == ROUTER_TOPK_SOFTMAX ? chosen[j] * (dchosen[j] - weighted) : dchosen[j];
        if (kind == ROUTER_SPARSEMIXER) band_grad(r, score, expert, dprobs, share, ds);
        for (int64_t i = 0; i < n; i++) {
            if (kind == ROUTER_SOFTMAX) ds[i] = score[i] * (ds[i] - weighted);
            if (router_normalises(kind)) ds[i] *= router_slope(kind, score[i], score[i]);
            dlogits[i] = accumulates(c->out[0]) ? dlogits[i] + ds[i] : ds[i];
        }
    }
    free(score);
}

void KERNEL(route_grad)(const Call *c) {
    Router r = router(c, c->in[1], c->in[3]);
    pool_for(c->device->pool, tensor_rows(r.logits), grain_rows(4 * r.experts), route_grad_rows, &r);
}

/* ---- random logits ---- */

static void random_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const RandomLogitsAttr *a = c->attr;
    const int64_t n = tensor_width(c->in[0]);
    for (int64_t row = begin; row < end; row++) {
        const real *x = reals(c->in[0]) + row * n;
        real *y = reals(c->out[0]) + row * n;
        const int64_t first = random_logits_first(a, row, c->in[0]->dim[1], n);
        for (int64_t i = 0; i < n; i++)
            y[i] = (a->kind == RANDOM_REPLACES ? 0 : x[i]) +
                   (real)(a->std * philox_normal(a->index.seed, a->index.site, (uint64_t)(first + i)));
    }
}

void KERNEL(random_logits)(const Call *c) {
    pool_for(c->device->pool, tensor_rows(c->in[0]), grain_rows(32 * tensor_width(c->in[0])), random_rows,
             (void *)c);
}

/* ---- counts ---- */

void KERNEL(expert_count)(const Call *c) {
    const Tensor *expert = c->in[0], *count = c->out[0];
    const int64_t b = expert->dim[1], k = expert->dim[2], groups = count->dim[0], n = count->dim[1];
    double *out = count->data;
    for (int64_t i = 0; !accumulates(count) && i < groups * n; i++) out[i] = 0;
    for (int64_t copy = 0; copy < tensor_count(expert); copy++)
        out[(groups > 1 ? copy / k % b : 0) * n + int64s(expert)[copy]]++;
}

/* Changes the biases to balance the experts: an expert with fewer tokens than the mean becomes more likely to
 * be selected. */
void KERNEL(expert_bias)(const Call *c) {
    const ExpertBiasAttr *a = c->attr;
    const double *count = c->in[1]->data;
    const int64_t n = tensor_count(c->in[0]);
    const real *bias = reals(c->in[0]);
    double sum = 0; /* exact, because the summands are integers */
    for (int64_t i = 0; i < n; i++) sum += count[i];
    const double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        reals(c->out[0])[i] = bias[i] + (real)(a->rate * ((count[i] < mean) - (count[i] > mean)));
}

/* ---- quantiles ---- */

/* A token's threshold is the largest biased logit among the experts that the token does not select. Let d be
 * the (tokens * topk / experts + 1)-th largest difference between an expert's logit and the threshold. With
 * the bias -d, the expert is selected by an equal share of the tokens. */
typedef struct Quantile {
    const Call *call;
    int64_t tokens, experts, topk;
    real *threshold; /* [tokens] */
} Quantile;

static int descending(const void *a, const void *b) {
    const real x = *(const real *)a, y = *(const real *)b;
    return (x < y) - (x > y);
}

static void thresholds(void *arg, int64_t begin, int64_t end) {
    const Quantile *q = arg;
    const real *bias = reals(q->call->in[1]);
    real *choice = mem_alloc((size_t)q->experts * sizeof *choice);
    for (int64_t t = begin; t < end; t++) {
        const real *logits = reals(q->call->in[0]) + t * q->experts;
        for (int64_t e = 0; e < q->experts; e++) choice[e] = logits[e] + bias[e];
        qsort(choice, (size_t)q->experts, sizeof *choice, descending);
        q->threshold[t] = choice[q->topk];
    }
    free(choice);
}

static void quantiles(void *arg, int64_t begin, int64_t end) {
    const Quantile *q = arg;
    const real *logits = reals(q->call->in[0]);
    real *above = mem_alloc((size_t)q->tokens * sizeof *above);
    for (int64_t e = begin; e < end; e++) {
        for (int64_t t = 0; t < q->tokens; t++) above[t] = logits[t * q->experts + e] - q->threshold[t];
        qsort(above, (size_t)q->tokens, sizeof *above, descending);
        ((double *)q->call->out[0]->data)[e] = -(double)above[q->tokens * q->topk / q->experts];
    }
    free(above);
}

void KERNEL(quantile)(const Call *c) {
    Quantile q = {c, tensor_rows(c->in[0]), tensor_width(c->in[0]), ((const QuantileAttr *)c->attr)->topk,
                  NULL};
    q.threshold = mem_alloc((size_t)q.tokens * sizeof *q.threshold);
    pool_for(c->device->pool, q.tokens, grain_rows(8 * q.experts), thresholds, &q);
    pool_for(c->device->pool, q.experts, 1, quantiles, &q);
    ((double *)c->out[0]->data)[q.experts] = 1;
    free(q.threshold);
}

/* Moves each bias towards the mean of the biases computed for the step's microbatches, then subtracts the
 * mean over the experts. */
void KERNEL(quantile_bias)(const Call *c) {
    const double ema = ((const QuantileBiasAttr *)c->attr)->ema, *sum = c->in[1]->data;
    const int64_t n = tensor_count(c->in[0]);
    double mean = 0;
    for (int64_t e = 0; e < n; e++)
        mean += quantile_step(ema, (double)reals(c->in[0])[e], sum, e, n) / (double)n;
    for (int64_t e = 0; e < n; e++)
        reals(c->out[0])[e] = (real)(quantile_step(ema, (double)reals(c->in[0])[e], sum, e, n) - mean);
}

/* ---- sinkhorn ---- */

/* Computes scores_te = d0_t d1_e exp(logits_te). The row factors d0 and the column factors d1 are updated
 * alternately, so that every row sums to 1/tokens and every column to 1/experts, until the mean change of d1
 * is below the tolerance. The factors are double, because the number of iterations must not depend on the
 * precision of `real`. */
void KERNEL(sinkhorn)(const Call *c) {
    const double tolerance = 1e-4, epsilon = 1e-8;
    const Tensor *logits = c->in[0];
    const int64_t tokens = tensor_rows(logits), n = tensor_width(logits);
    double *cost = mem_alloc((size_t)(tokens * n + tokens + 2 * n) * sizeof *cost), *d0 = cost + tokens * n,
           *d1 = d0 + tokens, *sum = d1 + n, change = INFINITY;
    for (int64_t i = 0; i < tokens * n; i++) cost[i] = exp((double)reals(logits)[i]);
    for (int64_t i = 0; i < n; i++) d1[i] = 1;
    while (change > tolerance) {
        for (int64_t i = 0; i < n; i++) sum[i] = 0;
        for (int64_t t = 0; t < tokens; t++) {
            double row = 0;
            for (int64_t i = 0; i < n; i++) row += d1[i] * cost[t * n + i];
            d0[t] = 1 / ((double)tokens * (row + epsilon));
            for (int64_t i = 0; i < n; i++) sum[i] += d0[t] * cost[t * n + i];
        }
        change = 0;
        for (int64_t i = 0; i < n; i++) {
            const double next = 1 / ((double)n * (sum[i] + epsilon));
            change += fabs(next - d1[i]) / (double)n;
            d1[i] = next;
        }
    }
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < n; i++) reals(c->out[0])[t * n + i] = (real)(d1[i] * cost[t * n + i] * d0[t]);
    free(cost);
}
