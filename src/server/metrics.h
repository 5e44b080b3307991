/* The response to GET /metrics, in the Prometheus text format. Metrics that vLLM also has are named as in vLLM. */
#pragma once

#include <stdatomic.h>

#include "base/str.h"
#include "server/queue.h"

/* Latencies of choices, measured by the connection threads. */
typedef enum Latency {
    LATENCY_QUEUE,   /* time from the request to its admission by the engine */
    LATENCY_FIRST,   /* time from the request to the first token */
    LATENCY_NEXT,    /* time from a token to the next token */
    LATENCY_REQUEST, /* time from the request to the end of the text */
    LATENCIES
} Latency;

enum { LATENCY_BUCKETS = 17 };

/* Any number of threads may add latencies concurrently. All-zero is a valid initial value. */
typedef struct Latencies {
    struct {
        atomic_llong buckets[LATENCY_BUCKETS],
            ns; /* buckets: number of latencies in each bucket, not cumulative; ns: sum of all latencies */
    } at[LATENCIES];
} Latencies;

void latency_add(Latencies *, Latency, int64_t ns);
void metrics_print(const QueueCounts *, Latencies *, Str *out);
