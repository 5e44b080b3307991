/* Loss scaling for fp16, as in Megatron-LM core/optimizer/grad_scaler.py. The scale is constant or dynamic. A
 * dynamic scale doubles after `window` consecutive steps without infinities. The scale is halved after
 * `hysteresis` steps with infinities, and then after each further step with infinities. Checkpoints contain the
 * scaler's state. */
#pragma once

#include "config/config.h"

typedef struct Scaler {
    bool dynamic;
    double scale, min_scale;
    int64_t window, hysteresis;
    int64_t growth_tracker;     /* number of consecutive steps without infinities */
    int64_t hysteresis_tracker; /* number of steps with infinities that remain before the scale is halved */
} Scaler;

/* Creates a scaler. The scale is 1 unless the lane is fp16. */
Scaler scaler_new(const Config *);
void scaler_update(Scaler *, bool found_inf);
