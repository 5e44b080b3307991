/* The cache for generation, such as keys and values: the data of earlier positions that the branches of a
 * model's last stack keep (BranchOps.caches). */
#pragma once

#include "models/model.h"

typedef struct CacheShape {
    DType dtype;
    int64_t capacity, encoder, b; /* capacity: positions; encoder: positions of the encoder; b: samples */
} CacheShape;

/* Allocates a cache on the device of the model, which must be in one pipeline stage. Free it with
 * cache_free. */
Cache cache_new(const Model *, const CacheShape *);
/* The number of bytes that cache_new allocates. It is a double, because an integer could overflow. */
double cache_bytes(const Model *, const CacheShape *);
void cache_free(const Model *, Cache *);
