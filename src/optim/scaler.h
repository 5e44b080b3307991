/* Loss scaling for fp16. Megatron-LM core/optimizer/grad_scaler.py: a constant scale, or a dynamic one that
 * grows after a window of clean steps and shrinks from the second infinity on (hysteresis). Plain data, saved
 * in checkpoints. */
#pragma once

#include "config/config.h"

typedef struct Scaler {
    bool dynamic;
    double scale, min_scale;
    int64_t window, hysteresis;
    int64_t growth_tracker;     /* clean steps since the last change */
    int64_t hysteresis_tracker; /* infinities that are still tolerated */
} Scaler;

/* Scale 1 unless the run is fp16. */
Scaler scaler_new(const Config *);
void scaler_update(Scaler *, bool found_inf);
