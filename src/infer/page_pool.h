/* Decides which pages of a pool are in use. A full page can have a name, which consists of its rows' tokens,
 * the previous page's name, and a salt. Requests that begin with the same tokens can then share pages. A named page
 * that no request uses keeps its rows until the pool needs the page. The page that was released first is reused first.
 *
 * Names are compared by their contents, not only by a hash, so that a collision cannot mix requests. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct PageName {
    uint64_t before;       /* page_pool_name's result for the previous page, or 0 for the first page */
    const int32_t *tokens; /* [n] */
    int64_t n;
    const char *salt; /* [n_salt]: pages with different salts have different names */
    int64_t n_salt;
} PageName;

typedef struct PagePool PagePool;

PagePool *page_pool_new(int64_t n);
void page_pool_free(PagePool *);
int64_t page_pool_size(const PagePool *);
/* Returns how many pages page_pool_take can take. */
int64_t page_pool_available(const PagePool *);
/* Takes `count` pages without names. If fewer pages are available, returns false and takes no pages. */
bool page_pool_take(PagePool *, int64_t count, int64_t *pages);
/* Adds references to pages that are in use. */
void page_pool_share(PagePool *, int64_t count, const int64_t *pages);
/* Releases pages. Releasing a page more often than it was taken is a fault. */
void page_pool_release(PagePool *, int64_t count, const int64_t *pages);

/* Names a page that is in use, unless another page already has this name. Returns the number of the page with this
 * name, for PageName.before. Copies the tokens. */
uint64_t page_pool_name(PagePool *, int64_t page, const PageName *);
/* Takes and returns the page that has this name, or returns -1 if there is none. Sets *before to the page's number for
 * PageName.before. */
int64_t page_pool_find(PagePool *, const PageName *, uint64_t *before);
/* Lists the pages in use, and returns their number. `pages` must have room for all pages of the pool. */
int64_t page_pool_used(const PagePool *, int64_t *pages);
/* Removes the names of pages that are not in use. The caller must call this function when the rows of unused pages
 * are lost. */
void page_pool_forget_unused(PagePool *);
/* Returns whether a page has this name, and sets *before as page_pool_find does. The order in which pages are reused
 * does not change. */
bool page_pool_has(PagePool *, const PageName *, uint64_t *before);
/* Removes all names. The caller must call this function when the model's parameters have changed, because the
 * rows no longer match these parameters. */
void page_pool_forget(PagePool *);
