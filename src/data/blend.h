/* Computes the splits of a dataset, the blends of several datasets, and the number of samples that each
 * dataset must provide. Source: Megatron-LM core/datasets/blended_megatron_dataset_{config,builder}.py,
 * utils.py and helpers.cpp. Results are bitwise equal to Megatron-LM's, which are computed in float64 by
 * Python and numpy. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

typedef enum DataSplit { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLIT_COUNT } DataSplit;
extern const char *const SPLIT_NAMES[SPLIT_COUNT]; /* "train", "valid", "test" */

/* The bounds of one split, as fractions of the dataset. `used` is false if the split has width zero. */
typedef struct SplitRange {
    bool used;
    double low, high;
} SplitRange;

/* Parses a split such as "969, 30, 1". The numbers are normalized so that their sum is 1; a missing number
 * counts as 0. */
Err split_parse(const char *text, SplitRange out[SPLIT_COUNT]);
/* Computes which of n elements belong to a split: the range [begin, end). Bounds are rounded to the nearest
 * integer, with ties to even. */
void split_elements(const SplitRange *, int64_t n, int64_t *begin, int64_t *end);

/* The parsed value of --data-path: "prefix ..." or "weight prefix weight prefix ...". */
typedef struct Blend {
    int n;
    char **prefixes; /* the prefixes without surrounding blanks (owned) */
    /* weights: [n], normalized. NULL if the list has only prefixes; the weight of each dataset is then its length. */
    double *weights;
} Blend;

/* Parses the entries of --data-path. The list has only prefixes if its length is odd or if no pair begins
 * with a number. */
Err blend_parse(const char *const *entries, int n, Blend *out);
void blend_free(Blend *);

/* Computes w / numpy.sum(w) in place, with numpy's pairwise summation. */
void blend_normalize(double *weights, int n);
/* Returns how many of a blend's `total` samples belong to a dataset with weight w: ceil(total * w). */
int64_t blend_target(int64_t total, double weight);
/* Returns how many samples a dataset with this weight must provide: ceil(target * (1 + surplus)). A blend may
 * draw slightly more samples than the target. */
int64_t blend_request(int64_t total, double weight, double surplus);

enum { BLEND_MAX = 32766 }; /* the maximum number of datasets in a blend; an int16 stores a dataset's index */

/* For each s from 0 to size - 1, draws the next sample from the dataset d for which weights[d] * max(s, 1) - drawn[d]
 * is largest. Chooses the lowest d if there is a tie. */
void blend_indices(const double *weights, int n, int64_t size, int16_t *dataset, int64_t *sample);
/* Like blend_indices with the sizes as weights, but draws exactly sizes[d] samples from each dataset d. The
 * output arrays must have room for all samples. */
void blend_indices_exhaustive(const int64_t *sizes, int n, int16_t *dataset, int64_t *sample);
