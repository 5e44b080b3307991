/* The memory of generation: the data of earlier positions that the branches of a model's last stack keep
 * (BranchOps.caches). */
#pragma once

#include "models/model.h"

typedef struct CacheShape {
    DType dtype;
    int64_t capacity, encoder, b; /* positions; positions of the encoder; samples */
} CacheShape;

/* For a model in one pipeline stage. Allocates on the model's device; free it with cache_free. */
Cache cache_new(const Model *, const CacheShape *);
/* The bytes that cache_new allocates. A double, because an integer could overflow. */
double cache_bytes(const Model *, const CacheShape *);
void cache_free(const Model *, Cache *);
