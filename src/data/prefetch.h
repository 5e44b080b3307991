/* Prefetches data: a thread fills a ring of micro-batches while the trainer computes. Batches arrive in the sampler's
 * order, because there is only one producer and one consumer.
 *
 *   Prefetch *p = prefetch_start(dataset, sampler, micro_batch_size, shape, 4);
 *   const Batch *batch;
 *   Err e;
 *   while (!(e = prefetch_next(p, &batch)).code && batch) step(batch);
 *   prefetch_stop(p);
 *
 * The sampler runs ahead of the trainer, so the caller must count the consumed samples to resume training later. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "data/data.h"
#include "data/sampler.h"

typedef struct Prefetch Prefetch;

/* Starts the thread. Takes ownership of the sampler, and borrows the dataset. In addition to the micro-batch in use,
 * up to `depth` >= 1 micro-batches are prefetched. */
Prefetch *prefetch_start(const Dataset *, Sampler *, int64_t micro_batch_size, SampleShape, int depth);
/* Waits for the next micro-batch, which is valid until the next call. *out is NULL at the end of the data.
 * After an error, every call returns the same error. */
Err prefetch_next(Prefetch *, const Batch **out);
/* Stops the thread once it has finished the batch that it is reading, and frees everything. NULL is fine. */
void prefetch_stop(Prefetch *);
