#include "parity/signature.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/statistics.h"

/* A bound that is far above rounding errors, and far below the error that any fault causes. */
static const double CLOSE = 1e-6;

/* Returns whether ||x - a y + b z|| <= CLOSE ||y||. z may be NULL. */
static bool is_close(const double *x, double a, const double *y, double b, const double *z, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = x[i] - a * y[i] + (z ? b * z[i] : 0);
        sum += d * d;
    }
    return sqrt(sum) <= CLOSE * norm_of(y, n);
}

static bool not_finite(Suspect s, char *out, size_t size) {
    for (int64_t i = 0; i < s.n; i++)
        if (!isfinite(s.x[i])) {
            snprintf(out, size, "not finite from element %lld onward", (long long)i);
            return true;
        }
    return false;
}

/* Describes a wrong set of summands. If one of two summands is missing, the description states that x equals
 * the other one. */
static bool summand(Suspect s, char *out, size_t size) {
    for (int r = 0; s.summands && r < s.ranks; r++)
        if (norm_of(s.summands + r * s.n, s.n) > 0 && is_close(s.x, 0, s.y, -1, s.summands + r * s.n, s.n)) {
            if (r == s.rank)
                snprintf(out, size, "only its own summand: the sum over ranks is missing");
            else
                snprintf(out, size, "only the summand of rank %d", r);
            return true;
        }
    for (int r = 0; s.summands && r < s.ranks; r++) {
        const double *part = s.summands + r * s.n;
        const bool missing = is_close(s.x, 1, s.y, 1, part, s.n),
                   twice = is_close(s.x, 1, s.y, -1, part, s.n);
        if (norm_of(part, s.n) == 0 || (!missing && !twice)) continue;
        snprintf(out, size, "summand of rank %d is %s", r, missing ? "missing" : "counted twice");
        return true;
    }
    return false;
}

static bool scaled(Suspect s, char *out, size_t size) {
    double xy = 0, yy = 0;
    for (int64_t i = 0; i < s.n; i++) xy += s.x[i] * s.y[i], yy += s.y[i] * s.y[i];
    const double c = yy > 0 ? xy / yy : 1;
    if (norm_of(s.x, s.n) == 0)
        snprintf(out, size, "all zero");
    else if (is_close(s.x, c, s.y, 0, NULL, s.n) && fabs(c) > CLOSE)
        snprintf(out, size, "scaled by %.9g", c);
    else
        return false;
    return true;
}

static bool zero_tail(Suspect s, char *out, size_t size) {
    int64_t tail = s.n;
    while (tail > 0 && s.x[tail - 1] == 0) tail--;
    if (tail == s.n || norm_of(s.y + tail, s.n - tail) == 0 || !is_close(s.x, 1, s.y, 0, NULL, tail))
        return false;
    snprintf(out, size, "zero from element %lld of %lld onward", (long long)tail, (long long)s.n);
    return true;
}

static bool permuted(Suspect s, char *out, size_t size) {
    const size_t bytes = (size_t)s.n * sizeof(double);
    double *x = mem_alloc(bytes + 1), *y = mem_alloc(bytes + 1);
    memcpy(x, s.x, bytes), memcpy(y, s.y, bytes);
    sort_numbers(x, s.n), sort_numbers(y, s.n);
    const bool yes = is_close(x, 1, y, 0, NULL, s.n);
    if (yes) snprintf(out, size, "permuted: the same elements in another order");
    free(x), free(y);
    return yes;
}

void signature_of(Suspect s, char *out, size_t size) {
    if (not_finite(s, out, size) || summand(s, out, size) || scaled(s, out, size) ||
        zero_tail(s, out, size) || permuted(s, out, size))
        return;
    snprintf(out, size, "differs by %.3g of its norm",
             distance_of(s.x, s.y, s.n) / fmax(norm_of(s.y, s.n), 1e-300));
}
