/* The scores of a router, shared by its choice and its losses. */
#pragma once

#include "kernels/cpu/vector_math.h"

#define ROUTER_EPSILON 1e-20 /* added to the sum that normalises sigmoids */

/* p may alias x. */
static inline void router_softmax(const real *x, int64_t n, real *p) {
    real max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += p[i] = vector_exp(x[i] - max);
    for (int64_t i = 0; i < n; i++) p[i] /= sum;
}

/* The values by which experts are compared: the logits, or functions of the logits. */
static inline void router_scores(RouterScore kind, const real *logits, int64_t n, real *score) {
    if (kind == ROUTER_SOFTMAX)
        router_softmax(logits, n, score);
    else
        for (int64_t i = 0; i < n; i++)
            score[i] = kind == ROUTER_SIGMOID ? vector_sigmoid(logits[i]) : logits[i];
}
