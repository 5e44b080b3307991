/* Computes the memory for the page pools that serving and conversations use. */
#pragma once

#include "config/config.h"
#include "infer/engine.h"

/* Returns the maximum size of a rank's pools in bytes: the option's value or, without the option, at most engine_room.
 * All ranks must call this function. */
static inline double pools_most_bytes(const Config *c, const RunContext *context) {
    const double asked = c->inference_dynamic_batching_buffer_size_gb * (double)(1 << 30),
                 room = engine_room(context);
    return config_given(c, inference_dynamic_batching_buffer_size_gb) || asked < room ? asked : room;
}
