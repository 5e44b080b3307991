#include "models/cache.h"

#include <stdlib.h>

static const StackSpec *generates(const Model *m) { return &m->plan.stack[m->plan.head[0].stack]; }

static int64_t rows(const CacheShape *shape, FieldExtent extent) {
    return extent == EXTENT_POSITIONS ? shape->capacity : extent == EXTENT_ENCODER ? shape->encoder : 1;
}

/* A tensor without memory: [positions, b, dim...] or [b, dim...] */
static Tensor tensor_of(const CacheSpec *s, const CacheShape *shape) {
    int64_t dim[2 + sizeof s->dim / sizeof *s->dim];
    int n = 0;
    if (s->extent != EXTENT_SAMPLES) dim[n++] = rows(shape, s->extent);
    dim[n++] = shape->b;
    for (int i = 0; i < s->ndim; i++) dim[n++] = s->dim[i];
    return tensor_make(NULL, shape->dtype, n, dim);
}

static double bytes_of(const CacheSpec *s, const CacheShape *shape) {
    double count = (double)rows(shape, s->extent) * (double)shape->b;
    for (int i = 0; i < s->ndim; i++) count *= (double)s->dim[i];
    return count * (double)dtype_size(shape->dtype);
}

/* Returns the cache specs of all branches, in the order of layers. The caller frees the array. */
static CacheSpec *specs_of(const Model *m, int *n) {
    const StackSpec *s = generates(m);
    const Layout *l = &m->registry->layout;
    *n = stack_caches(s, l, s->n, 0, NULL);
    CacheSpec *all = mem_alloc(((size_t)*n + 1) * sizeof *all);
    stack_caches(s, l, s->n, 0, all);
    return all;
}

double cache_bytes(const Model *m, const CacheShape *shape) {
    int n;
    CacheSpec *spec = specs_of(m, &n);
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += bytes_of(&spec[i], shape);
    free(spec);
    return bytes;
}

Cache cache_new(const Model *m, const CacheShape *shape) {
    Cache cache = {.length = 0};
    CacheSpec *spec = specs_of(m, &cache.n);
    cache.tensor = mem_zero((size_t)cache.n + 1, sizeof *cache.tensor);
    for (int i = 0; i < cache.n; i++) {
        cache.tensor[i] = tensor_of(&spec[i], shape);
        cache.bytes += tensor_bytes(&cache.tensor[i]);
    }
    char *at = cache.block = device_alloc(m->device, cache.bytes, "the cache of generation");
    for (int i = 0; i < cache.n; at += tensor_bytes(&cache.tensor[i++])) cache.tensor[i].data = at;
    free(spec);
    return cache;
}

void cache_free(const Model *m, Cache *cache) {
    device_release(m->device, cache->block, cache->bytes);
    free(cache->tensor);
    *cache = (Cache){.length = 0};
}
