#include "infer/placement.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "infer/engine_state.h"

struct Placement {
    EngineLimits limits;
    PagePool **pool; /* [replicas]: the names of pages; all pages are unused between calls */
    int64_t replicas;
};

Placement *placement_new(int64_t replicas, const EngineLimits *l) {
    Placement *r = mem_zero(1, sizeof *r);
    *r = (Placement){
        .limits = *l, .pool = mem_zero((size_t)replicas, sizeof(PagePool *)), .replicas = replicas};
    for (int64_t i = 0; i < replicas; i++) r->pool[i] = page_pool_new(l->pages);
    return r;
}

void placement_free(Placement *r) {
    for (int64_t i = 0; i < r->replicas; i++) page_pool_free(r->pool[i]);
    free(r->pool), free(r);
}

void placement_forget(Placement *r) {
    for (int64_t i = 0; i < r->replicas; i++) page_pool_forget(r->pool[i]);
}

/* Returns how many of the prompt's leading pages a replica has. */
static int64_t pages_found(const Placement *r, const Request *q, int64_t replica, int64_t most) {
    uint64_t before = 0;
    for (int64_t i = 0; i < most; i++) {
        const PageName name = page_name(&r->limits, q, q->prompt, i, before);
        if (!page_pool_has(r->pool[replica], &name, &before)) return i;
    }
    return most;
}

/* Returns a request's score at a replica. The request's last token is always computed. */
static double score(const Placement *r, const Request *q, int64_t replica, int64_t open) {
    const int64_t shareable = q->prompt_logprobs ? 0 : (q->n - 1) / r->limits.page;
    if (r->limits.route == ROUTE_LOAD_BALANCED || !shareable) return 0;
    const bool whole = r->limits.route == ROUTE_LONGEST_PREFIX;
    const int64_t most = whole ? shareable : 1;
    const double match = (double)pages_found(r, q, replica, most) / (double)most,
                 free = open < r->limits.requests ? 1 - (double)open / (double)r->limits.requests : 0;
    return r->limits.route_alpha * match + (1 - r->limits.route_alpha) * free;
}

/* Names the pages of a prompt. */
static void record(const Placement *r, const Request *q, PagePool *pool) {
    const int64_t n = q->n / r->limits.page;
    int64_t *page = mem_alloc(((size_t)n + 1) * sizeof *page);
    uint64_t before = 0;
    for (int64_t i = 0; i < n; i++) {
        const PageName name = page_name(&r->limits, q, q->prompt, i, before);
        page[i] = page_pool_find(pool, &name, &before);
        if (page[i] >= 0) continue;
        CHECK(page_pool_take(pool, 1, &page[i]), "the page pool is too small for a prompt of %lld pages",
              (long long)n);
        before = page_pool_name(pool, page[i], &name);
    }
    page_pool_release(pool, n, page);
    free(page);
}

int64_t placement_choose(Placement *r, const Request *q, const int64_t *open) {
    int64_t best = 0;
    double most = score(r, q, 0, open[0]);
    for (int64_t i = 1; i < r->replicas; i++) {
        const double x = score(r, q, i, open[i]);
        if (x > most || (x == most && open[i] < open[best])) best = i, most = x;
    }
    if (r->limits.route != ROUTE_LOAD_BALANCED) record(r, q, r->pool[best]);
    return best;
}
