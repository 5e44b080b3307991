/* Summaries of samples. The samples are not modified. If n = 0, the result is NaN, unless documented otherwise. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

double mean_of(const double *x, int64_t n);
/* Returns the square root of the sum of squares, or 0 if n = 0. */
double norm_of(const double *x, int64_t n);
/* Returns the norm of x - y. */
double distance_of(const double *x, const double *y, int64_t n);
/* Returns the root mean square, or 0 if n = 0. */
double rms_of(const double *x, int64_t n);

typedef struct Range {
    double median, min, max;
} Range;
Range range_of(const double *x, int64_t n);
double median_of(const double *x, int64_t n);
double upper_quartile_of(const double *x, int64_t n);
/* Sorts the numbers in ascending order. */
void sort_numbers(double *x, int64_t n);

/* Confidence intervals for medians, computed from order statistics. The number of samples below the true
 * median is binomial with p = 1/2 for any distribution, so [x_(k), x_(n+1-k)] misses the median with
 * probability 2 P(Bin(n, 1/2) < k). W. J. Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2;
 * J.-Y. Le Boudec, Performance Evaluation of Computer and Communication Systems, theorem 2.1. The only
 * assumption is that the samples are independent and identically distributed. */
typedef struct Interval {
    double low, median, high;
} Interval;

/* The maximum probability that at least one interval in a report misses its median. */
#define INTERVAL_ERROR 0.05

/* Returns the largest k such that the interval misses the median with probability at most `error`, or 0 if there are
 * too few samples. */
int64_t interval_rank(int64_t n, double error);
/* Returns the smallest n for which interval_rank returns a nonzero value. */
int64_t interval_least(double error);
/* Computes an interval for the median. If there are too few samples, returns false and sets the interval to [0,
 * infinity]. */
bool interval_of_median(const double *x, int64_t n, double error, Interval *out);
/* Returns an interval for the ratio of two positive medians. The probability that this interval misses the
 * ratio is at most the probability that at least one of the two intervals misses its median. */
Interval interval_ratio(Interval of, Interval to);
