#include "models/cache.h"

#include <math.h>
#include <stdlib.h>

static int64_t pages_of(const CacheSpec *s, const CacheShape *shape) {
    return s->extent == EXTENT_SAMPLES   ? shape->requests
           : s->extent == EXTENT_ENCODER ? shape->encoder_pages
                                         : shape->pages;
}

static bool has_states(const CacheSpec *s) { return s->extent == EXTENT_SAMPLES; }

static int64_t rows_of(const CacheSpec *s, const CacheShape *shape) {
    return pages_of(s, shape) * (has_states(s) ? 1 : shape->page);
}

static DType type_of(const CacheSpec *s, const CacheShape *shape) {
    return has_states(s) && shape->dtype != F64 ? F32 : shape->dtype;
}

/* Returns the size of a pool. A pool after states must be aligned. */
static double bytes_of(const CacheSpec *s, const CacheShape *shape) {
    const double bytes = (double)rows_of(s, shape) * (double)(s->dim[0] * s->dim[1] * s->dim[2]) *
                         (double)dtype_size(type_of(s, shape));
    return has_states(s) ? ceil(bytes / SPACE_ALIGN) * SPACE_ALIGN : bytes;
}

/* Returns the cache specs of all branches in layer order, followed by that of the stack's outputs if these are stored.
 * Layers on other pipeline ranks get empty specs. The caller frees the array. */
static CacheSpec *specs_of(const Model *m, const CacheShape *shape, int *n) {
    const Stack *stack = &m->stack[m->plan.head[shape->depth].stack];
    const StackSpec *s = stack->spec;
    const Layout *l = &m->registry->layout;
    *n = stack_caches(s, l, s->n, 0, NULL);
    CacheSpec *all = mem_alloc(((size_t)*n + 1) * sizeof *all);
    stack_caches(s, l, s->n, 0, all);
    for (int64_t i = 0; i < s->n; i++)
        for (int k = stack_caches(s, l, i, 0, NULL); k < stack_caches(s, l, i + 1, 0, NULL); k++)
            if (!stack->layer[i].n) all[k].dim[0] = 0;
    if (shape->outputs) all[(*n)++] = (CacheSpec){EXTENT_POSITIONS, {1, 1, s->hidden}};
    return all;
}

double cache_bytes(const Model *m, const CacheShape *shape) {
    int n;
    CacheSpec *spec = specs_of(m, shape, &n);
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += bytes_of(&spec[i], shape);
    free(spec);
    return bytes;
}

Cache cache_new(const Model *m, const CacheShape *shape) {
    Cache cache = {.positions.page = shape->page, .encoder.page = shape->page};
    CacheSpec *spec = specs_of(m, shape, &cache.n);
    cache.pool = mem_zero((size_t)cache.n + 1, sizeof *cache.pool);
    for (int i = 0; i < cache.n; i++) {
        const int64_t *d = spec[i].dim, dim[] = {rows_of(&spec[i], shape), 1, d[0], d[1], d[2]};
        cache.pool[i] = tensor_make(NULL, type_of(&spec[i], shape), 5, dim);
        cache.bytes += (size_t)bytes_of(&spec[i], shape);
    }
    char *at = cache.block = device_alloc(m->device, cache.bytes, "the generation cache");
    for (int i = 0; i < cache.n; at += (size_t)bytes_of(&spec[i++], shape)) cache.pool[i].data = at;
    free(spec);
    if (shape->outputs) cache.output = &cache.pool[cache.n - 1];
    return cache;
}

bool cache_has_states(const Model *m) {
    const StackSpec *s = m->stack[m->plan.head[0].stack].spec;
    const int n = stack_caches(s, &m->registry->layout, s->n, 0, NULL);
    CacheSpec *all = mem_alloc(((size_t)n + 1) * sizeof *all);
    stack_caches(s, &m->registry->layout, s->n, 0, all);
    bool has = false;
    for (int i = 0; i < n; i++) has |= has_states(&all[i]);
    free(all);
    return has;
}

void cache_free(const Model *m, Cache *cache) {
    device_release(m->device, cache->block, cache->bytes);
    free(cache->pool);
    *cache = (Cache){.n = 0};
}

size_t cache_copy_pages(const Model *m, const CacheShape *shape, Cache *cache, const CachePages *pages,
                        CacheCopy copy, char *host, size_t at) {
    int n;
    CacheSpec *spec = specs_of(m, shape, &n);
    for (int i = 0; i < n; i++) {
        const int64_t *list = pages->page[spec[i].extent], count = pages->n[spec[i].extent];
        const size_t bytes = count ? tensor_bytes(&cache->pool[i]) / (size_t)pages_of(&spec[i], shape) : 0;
        for (int64_t k = 0; k < count; k++, at += bytes) {
            char *page = (char *)cache->pool[i].data + (size_t)list[k] * bytes;
            if (copy == CACHE_SAVES) device_read(m->device, host + at, page, bytes);
            if (copy == CACHE_RESTORES) device_write(m->device, page, host + at, bytes);
        }
    }
    free(spec);
    return at;
}

void cache_copy_page(const Model *m, const CacheShape *shape, Cache *cache, FieldExtent extent, int64_t from,
                     int64_t to) {
    int n;
    CacheSpec *spec = specs_of(m, shape, &n);
    for (int i = 0; i < n; i++) {
        if (spec[i].extent != extent) continue;
        const size_t bytes = tensor_bytes(&cache->pool[i]) / (size_t)pages_of(&spec[i], shape);
        char *pool = cache->pool[i].data;
        device_copy(m->device, pool + (size_t)to * bytes, pool + (size_t)from * bytes, bytes);
    }
    free(spec);
}
