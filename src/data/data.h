/* Training data: the train, valid and test datasets that the options describe, and batches of their samples.
 *
 *   Data *data;
 *   ERR_RETURN(data_open(&config, &data));
 *   const Dataset *train = data_split(data, SPLIT_TRAIN);   NULL if the split is empty
 *   ERR_RETURN(data_batch(train, indices, micro_batch_size, &batch));
 *
 * A split's sample k depends only on (files, seed, k). The ranks, the world size and the microbatches affect
 * only the sampler (sampler.h). Each process opens the data once. Open data is read-only, so ranks that run
 * as threads share one Data. If processes share a cache folder, one process must open the data before the
 * others. Source: Megatron-LM core/datasets/blended_megatron_dataset_builder.py, blended_dataset.py. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/batch.h"
#include "data/dataset.h"

typedef struct Data Data;
typedef struct BlendedDataset Dataset; /* one split of one source, or of a blend of several sources */

/* Opens the data. Copies all strings except the names of record files, which must outlive the data. */
Err data_open(const DataConfig *, Data **out);
void data_close(Data *); /* NULL is fine */
/* Returns a split's dataset, or NULL if the split has width zero, no paths, or no samples. */
const Dataset *data_split(const Data *, DataSplit);
/* Returns the number of validation files if the data consists of records, or 0 for token data. Each
 * validation file is a separate dataset, and all samples in the file are evaluated after each epoch. */
int data_files(const Data *);
const Dataset *data_file(const Data *, int file);

/* Returns a hash of the data, as 32 hexadecimal digits. For token data, the hash covers the content of each
 * .idx and the size of each .bin, in the order of the paths, but neither tokens nor file names. For records,
 * the hash covers all tokens and labels. */
const char *data_fingerprint(const Data *);

int64_t data_length(const Dataset *); /* number of samples */
/* One split's size, and the number of epochs that the requested samples need. In a blend, `epochs` is the maximum over
 * the datasets. */
typedef struct DataFacts {
    int64_t tokens, samples;
    int64_t epoch; /* for records: samples per epoch, counting padding and every choice; 0 for token data */
    double epochs;
    const char *file; /* the first file of records; NULL for token data */
} DataFacts;
DataFacts data_facts(const Dataset *);
/* Fills the first n rows of `out` with the samples at `indices`, each in [0, length), and sets out->b to n. `out` must
 * have room for n samples. Thread-safe. */
Err data_batch(const Dataset *, const int64_t *indices, int64_t n, Batch *out);
