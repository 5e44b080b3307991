/* Blocks of device memory, all of one size, into which buckets are gathered temporarily. A block is allocated
 * only when none is free. The number of blocks therefore depends only on the order of the calls, and a dry
 * run allocates as many as the real run. */
#pragma once

#include <stdbool.h>

#include "param/bucket.h"

typedef struct BucketPool {
    const Registry *registry;
    Comm *comm;       /* moves the buckets; NULL: none */
    const char *what; /* for messages */
    size_t bytes;     /* bytes per block */
    void **free_ones;
    int taken, n_free;
} BucketPool;

/* Whether a block is free or fewer than `enough` blocks exist. */
bool bucket_pool_can_take(const BucketPool *, int enough);
void *bucket_pool_take(BucketPool *);
void bucket_pool_give(BucketPool *, void *);
/* The number of bytes of all blocks. */
size_t bucket_pool_bytes(const BucketPool *);
/* All blocks must have been returned. */
void bucket_pool_free(BucketPool *);
