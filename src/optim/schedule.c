#include "optim/schedule.h"

#include <math.h>

static double cosine(double r) { return 0.5 * (cos(M_PI * r) + 1); }

/* Returns the WSD coefficient: 1 up to lr_decay_steps - lr_wsd_decay_steps samples, followed by one of four decays. */
static double wsd_coefficient(const Config *c, int64_t n) {
    int64_t start = c->derived.lr_decay_steps - c->derived.lr_wsd_decay_steps;
    if (n <= start) return 1;
    double r = (double)(n - start) / (double)c->derived.lr_wsd_decay_steps;
    switch (c->lr_wsd_decay_style) {
    case WSD_LINEAR:
        return 1 - r;
    case WSD_COSINE:
        return cosine(r);
    case WSD_EXPONENTIAL:
        return 2 * pow(0.5, r) - 1;
    case WSD_MINUS_SQRT:
        return 1 - sqrt(r);
    }
    return 1;
}

double schedule_lr(const Config *c, double max_lr, double min_lr, int64_t samples) {
    double n = (double)samples, warmup = c->derived.lr_warmup_steps,
           decay = (double)c->derived.lr_decay_steps;
    if (warmup > 0 && n <= warmup) return c->lr_warmup_init + (max_lr - c->lr_warmup_init) * n / warmup;
    if (c->lr_decay_style == LR_CONSTANT) return max_lr;
    if (n > decay) return min_lr;
    if (c->lr_decay_style == LR_INVERSE_SQUARE_ROOT)
        return fmax(min_lr, max_lr * sqrt(fmax(warmup, 1)) / sqrt(fmax(n, 1)));
    double r = (n - warmup) / (decay - warmup), coefficient = 1 - r;
    if (c->lr_decay_style == LR_COSINE) coefficient = cosine(r);
    if (c->lr_decay_style == LR_WSD) coefficient = wsd_coefficient(c, samples);
    return min_lr + coefficient * (max_lr - min_lr);
}

double schedule_weight_decay(const Config *c, int64_t samples) {
    if (c->weight_decay_incr_style == WD_CONSTANT) return c->derived.end_weight_decay;
    if (samples > c->derived.wd_incr_steps) return c->derived.end_weight_decay;
    double r = (double)samples / (double)c->derived.wd_incr_steps;
    double coefficient = c->weight_decay_incr_style == WD_COSINE ? cosine(1 - r) : r;
    return c->derived.start_weight_decay +
           coefficient * (c->derived.end_weight_decay - c->derived.start_weight_decay);
}
