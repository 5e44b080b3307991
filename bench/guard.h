/* A check that can end a benchmark before the measurement begins. */
#pragma once

#include "base/err.h"

struct json_t; /* defined in jansson.h */

/* Receives the result's members that are known before the measurement. An error ends the benchmark. */
typedef struct BenchGuard {
    Err (*check)(void *arg, const struct json_t *facts);
    void *arg;
} BenchGuard;
