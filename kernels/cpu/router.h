/* Computes the scores with which a router selects experts and computes its losses. */
#pragma once

#include "kernels/cpu/vector_math.h"

#define ROUTER_EPSILON 1e-20 /* epsilon that is added to the sum by which scores are divided */

/* Sets p [n] to the softmax of x. p may be x. */
static inline void router_softmax(const real *x, int64_t n, real *p) {
    real max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += p[i] = vector_exp(x[i] - max);
    for (int64_t i = 0; i < n; i++) p[i] /= sum;
}

/* Computes the values by which experts are compared: the logits, or functions of the logits. */
static inline void router_scores(RouterScore kind, const real *logits, int64_t n, real *score) {
    if (kind == ROUTER_SOFTMAX)
        router_softmax(logits, n, score);
    else
        for (int64_t i = 0; i < n; i++)
            score[i] = kind == ROUTER_SIGMOID        ? vector_sigmoid(logits[i])
                       : kind == ROUTER_SQRTSOFTPLUS ? REAL_MATH(sqrt)(vector_softplus(logits[i]))
                                                     : logits[i];
}

/* Returns true if the selected experts' scores are divided by their sum. */
static inline bool router_normalises(RouterScore kind) {
    return kind == ROUTER_SIGMOID || kind == ROUTER_SQRTSOFTPLUS;
}

/* Returns (d score / d logit) * weight / s for a kind of score s that is normalized. If s is the square root
 * of a softplus u, the result is weight (1 - exp(-u)) / 2u. */
static inline real router_slope(RouterScore kind, real s, real weight) {
    if (kind == ROUTER_SIGMOID) return weight * (1 - s);
    const real u = s * s;
    return weight * (u > 0 ? -REAL_MATH(expm1)(-u) / (2 * u) : (real)0.5);
}
