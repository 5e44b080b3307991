/* A check that may end a bench before it measures. */
#pragma once

#include "base/err.h"

struct json_t; /* jansson.h */

/* Receives the members of the result that are known before the measurement. An error ends the bench. */
typedef struct BenchGuard {
    Err (*check)(void *arg, const struct json_t *facts);
    void *arg;
} BenchGuard;
