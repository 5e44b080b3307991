/* A fixed pool of threads that splits one loop at a time. The split depends on (n, threads) only, so the
 * result of a kernel that writes disjoint elements never depends on timing. */
#pragma once

#include <stdint.h>

typedef struct Pool Pool;

/* A pool of `threads` >= 1, including the caller. */
Pool *pool_new(int threads);
void pool_free(Pool *);
int pool_threads(const Pool *); /* 1 for NULL */

/* Calls fn(arg, begin, end) on contiguous ranges that cover [0, n), and returns when all are done. A range
 * has at least `grain` items. NULL pool: the caller runs all of them. Only the pool's owner may call it;
 * calls do not nest. */
typedef void PoolFn(void *arg, int64_t begin, int64_t end);
void pool_for(Pool *, int64_t n, int64_t grain, PoolFn *fn, void *arg);
