/* Blocks of device memory, all of the same size, into which buckets are gathered temporarily. A new block is
 * allocated only if no block is free. The number of blocks therefore depends only on the order of the calls,
 * and a dry run allocates as many blocks as the real run. */
#pragma once

#include <stdbool.h>

#include "param/bucket.h"

typedef struct BucketPool {
    const Registry *registry;
    Comm *comm;       /* transfers the buckets; NULL if no data is transferred */
    const char *what; /* the pool's name in messages */
    size_t bytes;     /* number of bytes per block */
    void **free_ones;
    int taken, n_free;
} BucketPool;

/* Returns whether a block is free, or fewer than `enough` blocks exist. */
bool bucket_pool_can_take(const BucketPool *, int enough);
void *bucket_pool_take(BucketPool *);
void bucket_pool_give(BucketPool *, void *);
/* Returns the total size of all blocks in bytes. */
size_t bucket_pool_bytes(const BucketPool *);
/* Frees the pool. All blocks must have been returned. */
void bucket_pool_free(BucketPool *);
