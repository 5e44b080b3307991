/* The pools of pages of generation: what the branches of a stack keep of earlier positions, such as
 * keys and values (BranchOps.caches). A page has rows of all branches, so that a request needs one list of pages.
 * An encoder's positions have separate pages. */
#pragma once

#include "models/model.h"

typedef struct CacheShape {
    DType dtype;
    int64_t page;                 /* rows of a page */
    int64_t pages, encoder_pages; /* number of pages for positions, and for positions of an encoder */
    int depth; /* 0: the stack that generates; k: the stack that predicts the token k + 1 positions ahead */
    bool outputs; /* also keep the outputs of the stack, for the stack of the next depth */
} CacheShape;

/* Allocates pools for this rank's layers, on the device of the model. Free them with cache_free. */
Cache cache_new(const Model *, const CacheShape *);
/* The number of bytes that cache_new allocates. It is a double, because an integer could overflow. */
double cache_bytes(const Model *, const CacheShape *);
void cache_free(const Model *, Cache *);
/* Copies all rows of a page of positions. */
void cache_copy_page(const Model *, const CacheShape *, Cache *, int64_t from, int64_t to);
