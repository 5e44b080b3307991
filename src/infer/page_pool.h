/* Decides which pages of a pool are free. The page that was released last is given out first. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct PagePool {
    int64_t n, n_free;
    int64_t *free; /* [n_free] a stack of free pages */
    bool *used;    /* [n] */
} PagePool;

PagePool page_pool_new(int64_t n);
void page_pool_free(PagePool *);
/* Takes `count` pages. If fewer are free, returns false and takes none. */
bool page_pool_take(PagePool *, int64_t count, int64_t *pages);
/* Releases pages. Releasing a page that is not in use is a fault. */
void page_pool_release(PagePool *, int64_t count, const int64_t *pages);
