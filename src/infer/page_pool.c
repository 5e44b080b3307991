#include "infer/page_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"

enum { NONE = -1 };

typedef struct Page {
    int64_t users;
    uint64_t number; /* 0 if the page has no name */
    uint64_t before;
    int32_t *tokens; /* [n], owned */
    char *salt;      /* [n_salt], owned */
    int64_t n, n_salt;
    int64_t next;         /* next page in the same bucket */
    int64_t older, newer; /* neighbours in the list of unused pages */
} Page;

/* Unused pages form a list, in the order in which they will be reused. */
struct PagePool {
    Page *page;      /* [n] */
    int64_t *bucket; /* [n]: the first page in the bucket of each hash */
    int64_t n, unused, oldest, newest;
    uint64_t numbers;
};

/* ---- unused pages ---- */

static void list_remove(PagePool *p, int64_t i) {
    const Page *x = &p->page[i];
    *(x->older == NONE ? &p->oldest : &p->page[x->older].newer) = x->newer;
    *(x->newer == NONE ? &p->newest : &p->page[x->newer].older) = x->older;
    p->unused--;
}

/* A page without a name is reused before pages with names. */
static void list_add(PagePool *p, int64_t i) {
    Page *x = &p->page[i];
    const bool first = !x->number;
    x->older = first ? NONE : p->newest, x->newer = first ? p->oldest : NONE;
    *(x->older == NONE ? &p->oldest : &p->page[x->older].newer) = i;
    *(x->newer == NONE ? &p->newest : &p->page[x->newer].older) = i;
    p->unused++;
}

/* ---- names ---- */

static int64_t *bucket_of(PagePool *p, const PageName *name) {
    const uint64_t salt = hash64(name->salt, (size_t)name->n_salt, name->before),
                   hash = hash64(name->tokens, (size_t)name->n * sizeof *name->tokens, salt);
    return &p->bucket[hash % (uint64_t)p->n];
}

static int64_t named(PagePool *p, const PageName *name) {
    if (!p->n) return NONE;
    int64_t i = *bucket_of(p, name);
    for (; i != NONE; i = p->page[i].next) {
        const Page *x = &p->page[i];
        if (x->before == name->before && x->n == name->n && x->n_salt == name->n_salt &&
            !memcmp(x->tokens, name->tokens, (size_t)x->n * sizeof *x->tokens) &&
            !memcmp(x->salt, name->salt, (size_t)x->n_salt))
            break;
    }
    return i;
}

static void remove_name(PagePool *p, int64_t i) {
    Page *x = &p->page[i];
    if (!x->number) return;
    int64_t *at = bucket_of(p, &(PageName){x->before, x->tokens, x->n, x->salt, x->n_salt});
    while (*at != i) at = &p->page[*at].next;
    *at = x->next;
    free(x->tokens), free(x->salt);
    x->tokens = NULL, x->salt = NULL, x->number = 0;
}

uint64_t page_pool_name(PagePool *p, int64_t page, const PageName *name) {
    const int64_t other = named(p, name);
    if (other != NONE) return p->page[other].number;
    Page *x = &p->page[page];
    int64_t *bucket = bucket_of(p, name);
    CHECK(x->users > 0 && !x->number, "page %lld cannot get a name: it has %lld users and the number %llu",
          (long long)page, (long long)x->users, (unsigned long long)x->number);
    x->number = ++p->numbers;
    x->before = name->before, x->n = name->n, x->n_salt = name->n_salt;
    x->tokens = mem_copy(name->tokens, (size_t)name->n * sizeof *x->tokens);
    x->salt = mem_copy(name->salt, (size_t)name->n_salt);
    x->next = *bucket, *bucket = page;
    return x->number;
}

int64_t page_pool_find(PagePool *p, const PageName *name, uint64_t *before) {
    const int64_t i = named(p, name);
    if (i == NONE) return NONE;
    if (!p->page[i].users++) list_remove(p, i);
    *before = p->page[i].number;
    return i;
}

bool page_pool_has(PagePool *p, const PageName *name, uint64_t *before) {
    const int64_t i = named(p, name);
    if (i != NONE) *before = p->page[i].number;
    return i != NONE;
}

int64_t page_pool_used(const PagePool *p, int64_t *pages) {
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++)
        if (p->page[i].users) pages[n++] = i;
    return n;
}

void page_pool_forget_unused(PagePool *p) {
    for (int64_t i = 0; i < p->n; i++)
        if (!p->page[i].users) remove_name(p, i);
}

void page_pool_forget(PagePool *p) {
    for (int64_t i = 0; i < p->n; i++) remove_name(p, i);
}

/* ---- the pool ---- */

PagePool *page_pool_new(int64_t n) {
    PagePool *p = mem_zero(1, sizeof *p);
    *p = (PagePool){.page = mem_zero((size_t)n + 1, sizeof *p->page),
                    .bucket = mem_alloc(((size_t)n + 1) * sizeof *p->bucket),
                    .n = n,
                    .oldest = NONE,
                    .newest = NONE};
    for (int64_t i = n - 1; i >= 0; i--) p->bucket[i] = NONE, list_add(p, i);
    return p;
}

void page_pool_free(PagePool *p) {
    page_pool_forget(p);
    free(p->page), free(p->bucket), free(p);
}

int64_t page_pool_size(const PagePool *p) { return p->n; }

int64_t page_pool_available(const PagePool *p) { return p->unused; }

bool page_pool_take(PagePool *p, int64_t count, int64_t *pages) {
    if (count > p->unused) return false;
    for (int64_t i = 0; i < count; i++) {
        pages[i] = p->oldest;
        list_remove(p, pages[i]);
        remove_name(p, pages[i]);
        p->page[pages[i]].users = 1;
    }
    return true;
}

static void check_use(const PagePool *p, int64_t page) {
    CHECK(page >= 0 && page < p->n && p->page[page].users > 0, "page %lld of %lld is not in use",
          (long long)page, (long long)p->n);
}

void page_pool_share(PagePool *p, int64_t count, const int64_t *pages) {
    for (int64_t i = 0; i < count; i++) {
        check_use(p, pages[i]);
        p->page[pages[i]].users++;
    }
}

/* Releases later pages first, because a page cannot be used without the pages before it. */
void page_pool_release(PagePool *p, int64_t count, const int64_t *pages) {
    for (int64_t i = count - 1; i >= 0; i--) {
        check_use(p, pages[i]);
        if (!--p->page[pages[i]].users) list_add(p, pages[i]);
    }
}
