/* Equal pieces of device memory that buckets are gathered into for a while. A new piece is taken only when
 * none is free, so that what is taken depends on the order of the calls alone: a dry run takes as much as the
 * run. */
#ifndef ISOTRON_PARAM_BUCKET_POOL_H
#define ISOTRON_PARAM_BUCKET_POOL_H

#include <stdbool.h>

#include "tensor/device.h"

typedef struct BucketPool {
    Device *device;
    const char *what; /* for messages */
    size_t bytes;     /* of each */
    void **free_ones;
    int taken, n_free;
} BucketPool;

/* Whether bucket_pool_take gives one without taking more memory, or fewer than `enough` exist. */
bool bucket_pool_can_take(const BucketPool *, int enough);
void *bucket_pool_take(BucketPool *);
void bucket_pool_give(BucketPool *, void *);
/* All must have been given back. */
void bucket_pool_free(BucketPool *);

#endif
