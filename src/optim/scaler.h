/* Loss scaling for fp16, as in Megatron-LM core/optimizer/grad_scaler.py. The scale is constant or dynamic. A
 * dynamic scale doubles after `window` successive steps without infinities. It is halved after `hysteresis`
 * steps with infinities, and then after each further one. Checkpoints save the state. */
#pragma once

#include "config/config.h"

typedef struct Scaler {
    bool dynamic;
    double scale, min_scale;
    int64_t window, hysteresis;
    int64_t growth_tracker;     /* successive steps without infinities */
    int64_t hysteresis_tracker; /* steps with infinities until the scale is halved */
} Scaler;

/* The scale is 1 unless the run is fp16. */
Scaler scaler_new(const Config *);
void scaler_update(Scaler *, bool found_inf);
