/* Reads ahead: one thread fills a ring of micro-batches while the trainer computes. The order is the
 * sampler's, regardless of the timing, because there is one producer and one consumer.
 *
 *   Prefetch *p = prefetch_start(dataset, sampler, micro_batch_size, shape, 4);
 *   const Batch *batch;
 *   Err e;
 *   while (!(e = prefetch_next(p, &batch)).code && batch) step(batch);
 *   prefetch_stop(p);
 *
 * To resume, count the consumed samples yourself: the sampler is ahead. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "data/data.h"
#include "data/sampler.h"

typedef struct Prefetch Prefetch;

/* Takes ownership of the sampler; borrows the dataset. Up to `depth` >= 1 micro-batches are ready in addition
 * to the one in use. */
Prefetch *prefetch_start(const Dataset *, Sampler *, int64_t micro_batch_size, SampleShape, int depth);
/* The next micro-batch, valid until the next call; NULL at the end of the data. Waits for the reader if it is
 * late. After an error every call returns that error. */
Err prefetch_next(Prefetch *, const Batch **out);
/* Stops the thread at its next batch, even if batches are left, and frees everything. NULL is fine. */
void prefetch_stop(Prefetch *);
