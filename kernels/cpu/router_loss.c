/* Losses that balance a router. p_te is the probability of expert e for token t, and f_e is the fraction of
 * all selections that select expert e.
 *
 *   balance  experts * sum_e f_e mean_t p_te (Fedus et al., "Switch Transformers", 2021); with counts per
 *            sample, the mean over the samples. The loss equals Megatron-LM's switch_load_balancing_loss_func
 *            (moe_utils.py), because sum_e count_e / (tokens * topk) is 1
 *   z        mean_t logsumexp(logits_t)^2 (Zoph et al., "ST-MoE", 2022)
 *
 * If tokens are sharded over ranks, each rank computes the summand for its tokens. A single thread computes
 * the loss, because the order of the sum over tokens is fixed. loss is written; dlogits is written or
 * accumulated. */
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/cpu/router.h"

typedef struct Loss {
    const RouterLossAttr *attr;
    const Tensor *logits, *count;
    int64_t tokens, experts, samples;
    double all_tokens;
    /* [1 or samples, experts]: the coefficients of the probabilities in the loss; NULL for the z loss */
    double *share;
} Loss;

static Loss loss_open(const Call *c, const Tensor *count) {
    const Tensor *logits = c->in[0];
    Loss l = {c->attr, logits, count, tensor_rows(logits), tensor_width(logits), logits->dim[1], 0, NULL};
    l.all_tokens = (double)(l.tokens * l.attr->ranks);
    if (!count) return l;
    l.share = mem_alloc((size_t)tensor_count(count) * sizeof *l.share);
    const double *n = count->data;
    for (int64_t g = 0; g < count->dim[0]; g++) {
        double sum = 0;
        for (int64_t e = 0; e < l.experts; e++) sum += n[g * l.experts + e];
        for (int64_t e = 0; e < l.experts; e++)
            l.share[g * l.experts + e] = n[g * l.experts + e] / sum * (double)l.experts / l.all_tokens;
    }
    return l;
}

static const double *share_of(const Loss *l, int64_t token) {
    return l->share + (l->count->dim[0] > 1 ? token % l->samples * l->experts : 0);
}

/* Writes the probabilities to p. Returns their sum before normalization, or 1 for a softmax. */
static real probabilities(const Loss *l, const real *logits, real *p) {
    if (!router_normalises(l->attr->score)) return router_softmax(logits, l->experts, p), 1;
    real sum = (real)ROUTER_EPSILON;
    router_scores(l->attr->score, logits, l->experts, p);
    for (int64_t e = 0; e < l->experts; e++) sum += p[e];
    for (int64_t e = 0; e < l->experts; e++) p[e] /= sum;
    return sum;
}

static real logsumexp(const real *x, int64_t n) {
    real max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += vector_exp(x[i] - max);
    return max + REAL_MATH(log)(sum);
}

void KERNEL(router_loss)(const Call *c) {
    Loss l = loss_open(c, c->in[1]);
    real *p = mem_alloc((size_t)l.experts * sizeof *p);
    double sum = 0;
    for (int64_t t = 0; t < l.tokens; t++) {
        const real *logits = reals(l.logits) + t * l.experts;
        if (l.attr->kind == ROUTER_Z) {
            const double lse = (double)logsumexp(logits, l.experts);
            sum += lse * lse / l.all_tokens;
            continue;
        }
        probabilities(&l, logits, p);
        for (int64_t e = 0; e < l.experts; e++) sum += share_of(&l, t)[e] * (double)p[e];
    }
    *(double *)c->out[0]->data = sum;
    free(p), free(l.share);
}

static void balance_grad(const Loss *l, int64_t t, double dloss, real *p, real *d) {
    const double *share = share_of(l, t);
    const real sum = probabilities(l, reals(l->logits) + t * l->experts, p);
    double mean = 0;
    for (int64_t e = 0; e < l->experts; e++) mean += share[e] * (double)p[e];
    for (int64_t e = 0; e < l->experts; e++) {
        const real slope =
            router_normalises(l->attr->score) ? router_slope(l->attr->score, p[e] * sum, p[e]) : p[e];
        d[e] = (real)(dloss * (share[e] - mean)) * slope;
    }
}

static void z_grad(const Loss *l, int64_t t, double dloss, real *p, real *d) {
    const real *logits = reals(l->logits) + t * l->experts,
               factor = (real)(2 * dloss / l->all_tokens) * logsumexp(logits, l->experts);
    router_softmax(logits, l->experts, p);
    for (int64_t e = 0; e < l->experts; e++) d[e] = factor * p[e];
}

void KERNEL(router_loss_grad)(const Call *c) {
    Loss l = loss_open(c, c->in[2]);
    const double dloss = *(const double *)c->in[1]->data;
    real *p = mem_alloc((size_t)(2 * l.experts) * sizeof *p), *d = p + l.experts;
    for (int64_t t = 0; t < l.tokens; t++) {
        real *dlogits = reals(c->out[0]) + t * l.experts;
        if (l.attr->kind == ROUTER_Z)
            z_grad(&l, t, dloss, p, d);
        else
            balance_grad(&l, t, dloss, p, d);
        for (int64_t e = 0; e < l.experts; e++)
            dlogits[e] = accumulates(c->out[0]) ? dlogits[e] + d[e] : d[e];
    }
    free(p), free(l.share);
}
