#include "measure/interval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int64_t interval_rank(int64_t n, double error) {
    double log_term = -(double)n * log(2), below = 0; /* log of P(Bin(n, 1/2) = k) */
    int64_t k = 0;
    for (; k < n / 2; k++) {
        below += exp(log_term);
        if (2 * below > error) break;
        log_term += log((double)(n - k) / (double)(k + 1));
    }
    return k;
}

int64_t interval_least(double error) { return (int64_t)ceil(1 - log2(error)); }

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool interval_of_median(const double *samples, int64_t n, double error, Interval *out) {
    const int64_t k = interval_rank(n, error);
    double *x = mem_alloc((size_t)(n + 1) * sizeof *x);
    if (n) memcpy(x, samples, (size_t)n * sizeof *x);
    qsort(x, (size_t)n, sizeof *x, by_value);
    *out = (Interval){0, n ? (x[(n - 1) / 2] + x[n / 2]) / 2 : NAN, INFINITY};
    if (k) out->low = x[k - 1], out->high = x[n - k];
    free(x);
    return k > 0;
}
