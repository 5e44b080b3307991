/* The page pools for generation. The pools contain the data that a stack's branches need from earlier positions, such
 * as keys and values (BranchOps.caches). A page contains rows for all branches, so a request needs only one page list.
 * An encoder's positions have separate pages. */
#pragma once

#include "models/model.h"

typedef struct CacheShape {
    DType dtype;
    int64_t page;                 /* number of rows per page */
    int64_t pages, encoder_pages; /* number of pages; encoder_pages are for the encoder's positions */
    int64_t requests;             /* number of rows in pools with a row for each request */
    /* 0 for the stack that generates; k for the stack that predicts the token k + 1 positions ahead */
    int depth;
    bool outputs; /* whether the stack's outputs are also stored, for the stack at the next depth */
} CacheShape;

/* Allocates pools for this rank's layers, on the model's device. The caller must free the pools with
 * cache_free. */
Cache cache_new(const Model *, const CacheShape *);
/* Returns how many bytes cache_new allocates. The result is a double, because an integer could overflow. */
double cache_bytes(const Model *, const CacheShape *);
void cache_free(const Model *, Cache *);
/* Returns whether any rank's branches have a pool with a row for each request. */
bool cache_has_states(const Model *);
/* Some pages of a cache, and some requests' rows, which count as pages of EXTENT_SAMPLES. */
typedef struct CachePages {
    const int64_t *page[EXTENT_SAMPLES + 1]; /* [n] */
    int64_t n[EXTENT_SAMPLES + 1];
} CachePages;

typedef enum CacheCopy { CACHE_MEASURES, CACHE_SAVES, CACHE_RESTORES } CacheCopy;

/* Copies the pages to host memory, starting at byte `at`, or from host memory back to the cache. With
 * CACHE_MEASURES, copies nothing, and `host` may be NULL. Returns the offset of the end of the copy. */
size_t cache_copy_pages(const Model *, const CacheShape *, Cache *, const CachePages *, CacheCopy, char *host,
                        size_t at);
/* Copies all rows of page `from` to page `to`, in the pools of this extent. */
void cache_copy_page(const Model *, const CacheShape *, Cache *, FieldExtent, int64_t from, int64_t to);
