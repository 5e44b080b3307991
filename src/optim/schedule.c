#include "optim/schedule.h"

#include <math.h>

static double cosine(double r) { return 0.5 * (cos(M_PI * r) + 1); }

/* The decay phase of WSD: a stable plateau until decay - wsd, then one of four decays. */
static double wsd_coefficient(const Config *c, const Derived *d, int64_t n) {
    int64_t start = d->lr_decay_steps - d->lr_wsd_decay_steps;
    if (n <= start) return 1;
    double r = (double)(n - start) / (double)d->lr_wsd_decay_steps;
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

double schedule_lr(const Config *c, const Derived *d, double max_lr, double min_lr, int64_t samples) {
    double n = (double)samples, warmup = d->lr_warmup_steps, decay = (double)d->lr_decay_steps;
    if (warmup > 0 && n <= warmup) return c->lr_warmup_init + (max_lr - c->lr_warmup_init) * n / warmup;
    if (c->lr_decay_style == LR_CONSTANT) return max_lr;
    if (n > decay) return min_lr;
    if (c->lr_decay_style == LR_INVERSE_SQUARE_ROOT)
        return fmax(min_lr, max_lr * sqrt(fmax(warmup, 1)) / sqrt(fmax(n, 1)));
    double r = (n - warmup) / (decay - warmup), coefficient = 1 - r;
    if (c->lr_decay_style == LR_COSINE) coefficient = cosine(r);
    if (c->lr_decay_style == LR_WSD) coefficient = wsd_coefficient(c, d, samples);
    return min_lr + coefficient * (max_lr - min_lr);
}

double schedule_weight_decay(const Config *c, const Derived *d, int64_t samples) {
    if (c->weight_decay_incr_style == WD_CONSTANT) return d->end_weight_decay;
    if (samples > d->wd_incr_steps) return d->end_weight_decay;
    double r = (double)samples / (double)d->wd_incr_steps;
    double coefficient = c->weight_decay_incr_style == WD_COSINE ? cosine(1 - r) : r;
    return d->start_weight_decay + coefficient * (d->end_weight_decay - d->start_weight_decay);
}
