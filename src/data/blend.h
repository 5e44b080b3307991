/* Documents and samples: splits of a dataset, blends of several, and the number of samples that each must
 * give. Source: Megatron-LM core/datasets/blended_megatron_dataset_{config,builder}.py, utils.py and
 * helpers.cpp. All arithmetic is bitwise equal to the float64 arithmetic of Python and numpy there. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef enum DataSplit { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_COUNT } DataSplit;
extern const char *const SPLIT_NAMES[SPLIT_COUNT]; /* "train", "valid", "test" */

/* The book-ends of one split, as fractions of the dataset; `used` is false for a split of width zero. */
typedef struct SplitRange {
    bool used;
    double low, high;
} SplitRange;

/* "969, 30, 1": the numbers (maximal runs of digits and dots) normalised to sum 1; missing ones are 0. */
Err split_parse(const char *text, SplitRange out[SPLIT_COUNT]);
/* The elements [begin, end) of a split of n, rounded half to even. */
void split_elements(const SplitRange *, int64_t n, int64_t *begin, int64_t *end);

/* The list of --data-path: "prefix ..." or "weight prefix weight prefix ...". */
typedef struct Blend {
    int n;
    char **prefixes; /* owned, blanks trimmed */
    double *weights; /* [n] normalised; NULL if only prefixes were given: the lengths of the datasets are
                        the weights */
} Blend;

/* A list with an odd number of entries, or without a number in an even place, has prefixes only. */
Err blend_parse(const char *const *entries, int n, Blend *out);
void blend_free(Blend *);

/* w / numpy.sum(w), with numpy's pairwise summation. */
void blend_normalize(double *weights, int n);
/* Samples of a dataset of weight w in a blend of `total`: ceil(total * w). */
int64_t blend_target(int64_t total, double weight);
/* Samples to prepare for it: ceil(target * (1 + surplus)), as a blend may draw a little past the target. */
int64_t blend_request(int64_t total, double weight, double surplus);

enum { BLEND_MAX = 32766 }; /* dataset numbers are int16 */

/* For s = 0 .. size-1 draws the next sample of the dataset that is furthest behind its weight: the largest
 * weight[d] * max(s, 1) - drawn[d], the first of equals. */
void blend_indices(const double *weights, int n, int64_t size, int16_t *dataset, int64_t *sample);
/* Draws exactly sizes[d] samples from each dataset by the same rule; the outputs must have room for all of
 * them. */
void blend_indices_exhaustive(const int64_t *sizes, int n, int16_t *dataset, int64_t *sample);
