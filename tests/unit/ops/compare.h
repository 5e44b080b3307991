/* Compares two runs of a case, within a bound or bitwise. */
#pragma once

#include <stdio.h>

#include "unit/cmocka_all.h"
#include "unit/ops/case.h"

static inline double largest(Values a) {
    double m = 0;
    for (int64_t i = 0; i < a.n; i++) m = fmax(m, fabs(a.v[i]));
    return m;
}

/* The largest number of terms of a sum in this case, because reductions are along a row or over the rows of
 * an operand. */
static inline double most_terms(const OpCase *c) {
    int64_t k = 1;
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!c->in[i].ndim) continue;
        const int64_t width = c->in[i].dim[c->in[i].ndim - 1], rows = input_count(&c->in[i]) / width;
        if (width > k) k = width;
        if (rows > k) k = rows;
    }
    return (double)k;
}

/* Returns the first input that requires a gradient and has none, or CASE_INPUTS. Without this check, a missing backward
 * function would not be detected. */
static inline int input_without_gradient(const OpCase *c, const Result *r) {
    int i = 0;
    while (i < CASE_INPUTS && (!wants_gradient(&c->in[i]) || r->grad[i].n)) i++;
    return i;
}

static inline void expect_gradients(const OpCase *c, const Result *r) {
    const int i = input_without_gradient(c, r);
    if (i < CASE_INPUTS) fail_msg("%s: the backward has no gradient of input %d", c->name, i);
}

static inline void compare(const OpCase *c, const char *what, Values got, Values want, double u,
                           double roundings) {
    assert_int_equal(got.v != NULL, want.v != NULL);
    if (!want.v) return;
    assert_int_equal(got.n, want.n);
    const double terms = most_terms(c), scale = 1 + largest(want),
                 bound = roundings * sqrt(terms) * u * scale;
    double worst = 0;
    for (int64_t i = 0; i < want.n; i++) {
        const double error = fabs(got.v[i] - want.v[i]);
        if (!(error <= worst)) worst = error;
    }
    if (!(worst <= bound))
        fail_msg("%s, %s: error %.3g > %g sqrt(%g terms) u %.3g scale %.3g = %.3g", c->name, what, worst,
                 roundings, terms, u, scale, bound);
    print_message("    %-20s error %.3g, bound %g sqrt(%g terms) u scale %.3g = %.3g\n", what, worst,
                  roundings, terms, scale, bound);
}

static const char *const GRAD_NAMES[CASE_INPUTS] = {"grad of input 0", "grad of input 1", "grad of input 2",
                                                    "grad of input 3", "grad of input 4", "grad of input 5"};

/* The bound is 4 standard deviations of a random walk of roundings. Terms are at most 1 because of the grid
 * of inputs, so an error is relative to 1 + the largest result. */
static inline void compare_all(const OpCase *c, const Result *got, const Result *want, double u,
                               double roundings) {
    expect_gradients(c, want);
    compare(c, "y", got->y, want->y, u, roundings);
    for (int i = 0; i < CASE_INPUTS; i++)
        compare(c, GRAD_NAMES[i], got->grad[i], want->grad[i], u, roundings);
}

static inline void same(const OpCase *c, const char *what, Values got, Values want) {
    assert_int_equal(got.n, want.n);
    for (int64_t i = 0; i < want.n; i++)
        if (memcmp(&got.v[i], &want.v[i], sizeof(double)))
            fail_msg("%s, %s: element %lld is %.17g, not %.17g", c->name, what, (long long)i, got.v[i],
                     want.v[i]);
}

static inline void same_all(const OpCase *c, const Result *got, const Result *want, bool with_y) {
    expect_gradients(c, want);
    if (with_y) same(c, "y", got->y, want->y);
    for (int i = 0; i < CASE_INPUTS; i++) same(c, GRAD_NAMES[i], got->grad[i], want->grad[i]);
}
