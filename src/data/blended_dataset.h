/* One split over one or more sources: the dataset and the sample of each index (Megatron-LM
 * core/datasets/blended_dataset.py and the builder's sizes).
 *
 *   weights given  each dataset provides ceil(ceil(total * w) * (1 + surplus)) samples, and the blend has
 *                  the sum of ceil(total * w)
 *   weights NULL   each dataset gives one epoch, the weights are the lengths, and the blend has
 *                  min(total, sum of lengths); every sample of every dataset if total < 0
 *
 * The blend is not shuffled, because its datasets are. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "data/blend.h"
#include "data/dataset.h"

typedef struct BlendedDataset {
    int n;
    DatasetPart **parts; /* [n] */
    NpyArray dataset;    /* i16[size]; no data for a single dataset */
    NpyArray sample;     /* i64[size] */
} BlendedDataset;

/* sources[n] and `config` are borrowed. One source without weights is that dataset, unblended. */
Err blended_open(const DatasetKind *, const TokenSource *sources, int n, const double *weights,
                 const DataConfig *config, DataSplit split, const SplitRange *range, int64_t total,
                 double surplus, BlendedDataset *out);
void blended_close(BlendedDataset *);
int64_t blended_length(const BlendedDataset *);
Err blended_get(const BlendedDataset *, int64_t index, Sample *out);
