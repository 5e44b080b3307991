/* The data of training: the train, valid and test datasets that the options describe, samples by number,
 * batches.
 *
 *   Data *data;
 *   ERR_RETURN(data_open(&config, &data));
 *   const Dataset *train = data_split(data, SPLIT_TRAIN);   NULL if the split is empty
 *   ERR_RETURN(data_batch(train, indices, micro_batch_size, &batch));
 *
 * Sample k of a split is a function of (files, seed, k): ranks, world size and microbatches matter only in
 * the sampler (sampler.h). Open once per process. Everything is read-only afterwards, so ranks that are
 * threads share one Data. If processes share a cache folder, one must open before the others. Source:
 * Megatron-LM core/datasets/blended_megatron_dataset_builder.py, blended_dataset.py. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/batch.h"
#include "data/dataset.h"

typedef struct Data Data;
typedef struct BlendedDataset Dataset; /* one split of one source, or a blend of several */

/* All strings are copied. */
Err data_open(const DataConfig *, Data **out);
void data_close(Data *); /* NULL is fine */
/* NULL if the split has width zero, no paths, or 0 samples. */
const Dataset *data_split(const Data *, DataSplit);
/* Records: the files of validation, each a dataset that is evaluated as a whole after each epoch. Tokens: 0. */
int data_files(const Data *);
const Dataset *data_file(const Data *, int file);

/* 32 hexadecimal digits that change, almost surely, with the files: the hash of each .idx and the size of
 * each .bin, in the order of the paths. Tokens are not read, and names are not part of it. For records, all
 * tokens and labels are. */
const char *data_fingerprint(const Data *);

int64_t data_length(const Dataset *); /* samples */
/* The tokens that one split has, and how often the requested samples read them. The epochs of a blend are those
 * of its most repeated dataset. */
typedef struct DataFacts {
    int64_t tokens, samples;
    int64_t epoch; /* samples of an epoch of records, with padding and choices; else 0 */
    double epochs;
    const char *file; /* the first file of records; else NULL */
} DataFacts;
DataFacts data_facts(const Dataset *);
/* Fills the first n <= capacity rows of `out` with the samples `indices` of [0, length), and sets out->b to
 * n. Safe from any thread. */
Err data_batch(const Dataset *, const int64_t *indices, int64_t n, Batch *out);
