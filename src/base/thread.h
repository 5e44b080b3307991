/* A fixed pool of threads that execute one parallel loop at a time. The division into ranges depends only on n,
 * the grain and the number of threads, so a kernel that writes disjoint elements gives the same result
 * regardless of timing. */
#pragma once

#include <stdint.h>

typedef struct Pool Pool;

/* Returns a pool of `threads` (>= 1) threads, including the caller's. */
Pool *pool_new(int threads);
void pool_free(Pool *);
int pool_threads(const Pool *); /* returns 1 for NULL */

/* Calls fn(arg, begin, end) for contiguous ranges that cover [0, n), and returns when all calls are done. Each range
 * contains at least min(n, `grain`) items. If the pool is NULL, the caller runs all ranges. Only the pool's owner may
 * call this function, and calls must not be nested. */
typedef void PoolFn(void *arg, int64_t begin, int64_t end);
void pool_for(Pool *, int64_t n, int64_t grain, PoolFn *fn, void *arg);
