#include "base/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- means ---- */

double mean_of(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum / (double)n;
}

double norm_of(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

double distance_of(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sqrt(sum);
}

double rms_of(const double *x, int64_t n) { return n ? norm_of(x, n) / sqrt((double)n) : 0; }

/* ---- order ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_numbers(double *x, int64_t n) { qsort(x, (size_t)n, sizeof *x, by_value); }

/* Returns a sorted copy, which the caller must release with free(). */
static double *sorted(const double *x, int64_t n) {
    double *copy = mem_alloc((size_t)(n + 1) * sizeof *copy);
    if (n) memcpy(copy, x, (size_t)n * sizeof *copy);
    sort_numbers(copy, n);
    return copy;
}

static double middle(const double *x, int64_t n) { return n ? (x[(n - 1) / 2] + x[n / 2]) / 2 : NAN; }

Range range_of(const double *samples, int64_t n) {
    double *x = sorted(samples, n);
    const Range r = {middle(x, n), n ? x[0] : NAN, n ? x[n - 1] : NAN};
    free(x);
    return r;
}

double median_of(const double *x, int64_t n) { return range_of(x, n).median; }

double upper_quartile_of(const double *samples, int64_t n) {
    double *x = sorted(samples, n);
    const double quartile = n ? x[3 * n / 4] : NAN;
    free(x);
    return quartile;
}

/* ---- intervals ---- */

int64_t interval_rank(int64_t n, double error) {
    double log_term = -(double)n * log(2), below = 0; /* log P(Bin(n, 1/2) = k) */
    int64_t k = 0;
    for (; k < n / 2; k++) {
        below += exp(log_term);
        if (2 * below > error) break;
        log_term += log((double)(n - k) / (double)(k + 1));
    }
    return k;
}

int64_t interval_least(double error) { return (int64_t)ceil(1 - log2(error)); }

bool interval_of_median(const double *samples, int64_t n, double error, Interval *out) {
    const int64_t k = interval_rank(n, error);
    double *x = sorted(samples, n);
    *out = (Interval){0, middle(x, n), INFINITY};
    if (k) out->low = x[k - 1], out->high = x[n - k];
    free(x);
    return k > 0;
}

Interval interval_ratio(Interval of, Interval to) {
    return (Interval){of.low / to.high, of.median / to.median, of.high / to.low};
}
