/* One split of one or more sources. Each index of the split maps to a dataset and a sample in that dataset.
 * Source: Megatron-LM core/datasets/blended_dataset.py; the sizes are computed as in
 * blended_megatron_dataset_builder.py.
 *
 *   weights given  each dataset provides ceil(ceil(total * w) * (1 + surplus)) samples, and the blend has
 *                  sum(ceil(total * w)) samples
 *   weights NULL   each dataset provides one epoch, and its length is its weight. The blend has
 *                  min(total, sum of lengths) samples, or every sample once if total < 0
 *
 * The blend is not shuffled, because each dataset is already shuffled. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "data/blend.h"
#include "data/dataset.h"

typedef struct BlendedDataset {
    int n;
    DatasetPart **parts; /* [n] */
    NpyArray dataset;    /* i16[size]; empty if the split is not a blend */
    NpyArray sample;     /* i64[size] */
} BlendedDataset;

/* sources[n] and `config` are borrowed. A single source without weights is not treated as a blend. */
Err blended_open(const DatasetKind *, const TokenSource *sources, int n, const double *weights,
                 const DataConfig *config, DataSplit split, const SplitRange *range, int64_t total,
                 double surplus, BlendedDataset *out);
void blended_close(BlendedDataset *);
int64_t blended_length(const BlendedDataset *);
Err blended_get(const BlendedDataset *, int64_t index, Sample *out);
