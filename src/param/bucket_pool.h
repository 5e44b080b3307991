/* Equal blocks of device memory that buckets are gathered into temporarily. A block is allocated only when
 * none is free, so that the number of blocks depends on the order of the calls alone: a dry run allocates as
 * many as the run. */
#pragma once

#include <stdbool.h>

#include "param/bucket.h"

typedef struct BucketPool {
    const Registry *registry;
    Comm *comm;       /* that moves the buckets; NULL: none */
    const char *what; /* for messages */
    size_t bytes;     /* bytes of one */
    void **free_ones;
    int taken, n_free;
} BucketPool;

/* Whether bucket_pool_take needs no new block, or fewer than `enough` exist. */
bool bucket_pool_can_take(const BucketPool *, int enough);
void *bucket_pool_take(BucketPool *);
void bucket_pool_give(BucketPool *, void *);
/* All blocks must have been returned. */
void bucket_pool_free(BucketPool *);
