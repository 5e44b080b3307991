/* Keeps the pages of requests in host memory while an engine is suspended. */
#include <stdlib.h>

#include "infer/engine_state.h"

void kept_pages_free(Engine *e) {
    KeptPages *o = &e->kept_pages;
    for (int i = 0; i <= EXTENT_SAMPLES; i++) free((void *)o->pages.page[i]);
    free(o->host);
    *o = (KeptPages){.host = NULL};
}

/* Copies the requests' pages in all caches. Returns the size of the copy in bytes. */
static size_t copy_pages(Engine *e, const CacheShape *shape, CacheCopy copy) {
    const KeptPages *o = &e->kept_pages;
    const size_t at = cache_copy_pages(e->model, shape, &e->cache, &o->pages, copy, o->host, 0);
    return speculation_copy_pages(e, &o->pages, copy, o->host, at);
}

static const int64_t *used_pages(PagePool *pool, int64_t *n) {
    int64_t *pages = mem_alloc(((size_t)page_pool_size(pool) + 1) * sizeof *pages);
    page_pool_forget_unused(pool);
    *n = page_pool_used(pool, pages);
    return pages;
}

void kept_pages_save(Engine *e, const CacheShape *shape) {
    KeptPages *o = &e->kept_pages;
    PagePool *const pools[] = {
        [EXTENT_POSITIONS] = e->pages, [EXTENT_ENCODER] = e->encoder_pages, [EXTENT_SAMPLES] = e->states};
    for (int i = 0; i <= EXTENT_SAMPLES; i++) o->pages.page[i] = used_pages(pools[i], &o->pages.n[i]);
    o->host = mem_alloc(copy_pages(e, shape, CACHE_MEASURES) + 1);
    copy_pages(e, shape, CACHE_SAVES);
}

void kept_pages_restore(Engine *e, const CacheShape *shape) {
    if (e->kept_pages.host) copy_pages(e, shape, CACHE_RESTORES);
    kept_pages_free(e);
}
