/* Maps the distance between a key and a query to a bucket. All distances in a bucket share one relative
 * position bias (T5, Raffel et al., 2020; Megatron-LM
 * core/models/common/embeddings/relative_pos_embedding.py). In each direction, half of the buckets contain
 * one distance each. The other buckets contain ranges of distances, in logarithmic spacing, and the last bucket
 * also contains all larger distances. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fault.h"
#include "base/host_device.h"

enum { BUCKETS_MOST = 256 };

typedef struct RelativeBuckets {
    /* bucket(key = query + n) = later + bucket(key = query - n); if `later` is 0, all keys after the query
     * share bucket 0 */
    int64_t later;
    int64_t exact;                     /* each distance below `exact` has a separate bucket */
    int32_t n, from[BUCKETS_MOST / 2]; /* bucket exact + 1 + i begins at distance from[i] */
} RelativeBuckets;

HOST_DEVICE static inline int64_t relative_bucket(const RelativeBuckets *b, int64_t key_minus_query) {
    const bool later = key_minus_query > 0;
    if (later && !b->later) return 0;
    const int64_t distance = later ? key_minus_query : -key_minus_query, first = later ? b->later : 0;
    if (distance < b->exact) return first + distance;
    int32_t i = 0;
    while (i < b->n && distance >= b->from[i]) i++;
    return first + b->exact + i;
}

/* Returns the index of a distance's bucket, counted from the first of the n logarithmic buckets. The formula
 * and its float arithmetic match Megatron-LM's. */
static inline int64_t relative_log_bucket(int64_t distance, int64_t exact, int64_t max_distance, int64_t n) {
    const float ratio = (float)distance / (float)exact,
                whole = (float)log((double)max_distance / (double)exact);
    return (int64_t)((float)log((double)ratio) / whole * (float)n);
}

/* Computes the table of buckets. Distances >= max_distance belong to the last bucket. */
static inline RelativeBuckets relative_buckets_make(int64_t buckets, int64_t max_distance,
                                                    bool bidirectional) {
    const int64_t of_direction = bidirectional ? buckets / 2 : buckets, exact = of_direction / 2,
                  n = of_direction - exact;
    CHECK(exact >= 1 && buckets <= BUCKETS_MOST && max_distance > exact && max_distance <= INT32_MAX / 2,
          "relative position bias: %lld buckets and a maximum distance of %lld are not compatible",
          (long long)buckets, (long long)max_distance);
    RelativeBuckets b = {0};
    b.later = bidirectional ? of_direction : 0, b.exact = exact, b.n = (int32_t)(n - 1);
    for (int64_t i = 1; i < n; i++) {
        /* The search starts so far below the boundary that float rounding errors cannot matter. */
        const double about = (double)exact * pow((double)max_distance / (double)exact, (double)i / (double)n);
        int64_t from = (int64_t)(about * (1 - 1e-4)) - 2;
        if (from < exact) from = exact;
        while (relative_log_bucket(from, exact, max_distance, n) < i) from++;
        b.from[i - 1] = (int32_t)from;
    }
    return b;
}
