/* The pools of pages of generation. The pools contain the data of earlier positions, such as keys and values, that
 * the branches of a stack need (BranchOps.caches). A page contains rows of all branches, so a request needs only one
 * list of pages. The positions of an encoder have separate pages. */
#pragma once

#include "models/model.h"

typedef struct CacheShape {
    DType dtype;
    int64_t page;                 /* number of rows of a page */
    int64_t pages, encoder_pages; /* number of pages for positions, and for positions of an encoder */
    /* 0 for the stack that generates; k for the stack that predicts the token k + 1 positions ahead */
    int depth;
    bool outputs; /* the outputs of the stack are also stored, for the stack of the next depth */
} CacheShape;

/* Allocates pools for this rank's layers, on the device of the model. The caller must free them with cache_free. */
Cache cache_new(const Model *, const CacheShape *);
/* Returns the bytes that cache_new allocates. The type is double, because an integer could overflow. */
double cache_bytes(const Model *, const CacheShape *);
void cache_free(const Model *, Cache *);
/* Copies all rows of a page of positions. */
void cache_copy_page(const Model *, const CacheShape *, Cache *, int64_t from, int64_t to);
