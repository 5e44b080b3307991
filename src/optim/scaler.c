#include "optim/scaler.h"

#include <math.h>

Scaler scaler_new(const Config *c) {
    Scaler s = {.scale = 1};
    if (c->lane != LANE_FP16) return s;
    s.dynamic = !f64_is_set(c->loss_scale);
    s.scale = s.dynamic ? c->initial_loss_scale : c->loss_scale;
    s.min_scale = c->min_loss_scale;
    s.window = c->loss_scale_window;
    s.hysteresis = s.hysteresis_tracker = c->hysteresis;
    return s;
}

void scaler_update(Scaler *s, bool found_inf) {
    if (!s->dynamic) return;
    if (found_inf) {
        s->growth_tracker = 0;
        if (s->hysteresis_tracker > 0) s->hysteresis_tracker--;
        if (s->hysteresis_tracker == 0) s->scale = fmax(s->scale * 0.5, s->min_scale);
    } else if (++s->growth_tracker == s->window) {
        s->growth_tracker = 0;
        s->hysteresis_tracker = s->hysteresis;
        s->scale *= 2;
    }
}
