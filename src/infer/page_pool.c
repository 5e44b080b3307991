#include "infer/page_pool.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"

PagePool page_pool_new(int64_t n) {
    PagePool p = {.n = n,
                  .n_free = n,
                  .free = mem_zero((size_t)n + 1, sizeof *p.free),
                  .used = mem_zero((size_t)n + 1, sizeof *p.used)};
    for (int64_t i = 0; i < n; i++) p.free[i] = n - 1 - i;
    return p;
}

void page_pool_free(PagePool *p) {
    free(p->free), free(p->used);
    *p = (PagePool){.n = 0};
}

bool page_pool_take(PagePool *p, int64_t count, int64_t *pages) {
    if (count > p->n_free) return false;
    for (int64_t i = 0; i < count; i++) {
        pages[i] = p->free[--p->n_free];
        p->used[pages[i]] = true;
    }
    return true;
}

void page_pool_release(PagePool *p, int64_t count, const int64_t *pages) {
    for (int64_t i = count - 1; i >= 0; i--) {
        CHECK(pages[i] >= 0 && pages[i] < p->n && p->used[pages[i]], "page %lld of %lld is not in use",
              (long long)pages[i], (long long)p->n);
        p->used[pages[i]] = false;
        p->free[p->n_free++] = pages[i];
    }
}
