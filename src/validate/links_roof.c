#include "validate/links_roof.h"

#include <stdio.h>

#include "base/amount.h"
#include "base/statistics.h"

static const double FLOOR = 0.45, ERROR = INTERVAL_ERROR / 2;

/* Returns an NVLink's rate in GB/s in each direction. The rate is derived from the compute capability of the
 * GPU, because some drivers report the fourth generation of NVLink as the fifth. */
static double of_nvlink(int sm) {
    if (sm >= 100) return 50;
    if (sm >= 86 && sm < 90) return 14.0625;
    return sm >= 70 ? 25 : sm >= 60 ? 20 : 0;
}

/* Returns a PCIe lane's rate in GB/s in each direction, without the encoding overhead. */
static double of_lane(unsigned generation) {
    static const double RATES[] = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
    return generation < sizeof RATES / sizeof *RATES ? RATES[generation] : 0;
}

static double rate_of(const NvmlFacts *f, RoofKind kind) {
    return kind == ROOF_NVLINK ? f->nvlinks * of_nvlink(f->sm) : f->width * of_lane(f->pcie);
}

/* Returns the kind of links that determine the roofline limit. In a mesh of GPUs without switches, only some of
 * the links are used if there are ranks on only some of the GPUs. */
static RoofKind kind_of(const NvmlFacts *facts, int n, bool all_linked, int devices, const char **why) {
    bool known = true, any = false, all = true, switched = true;
    for (int i = 0; i < n; i++) {
        known &= facts[i].known;
        any |= facts[i].nvlinks > 0, all &= facts[i].nvlinks > 0;
        switched &= facts[i].switched == facts[i].nvlinks;
    }
    *why = !known                             ? "NVML (libnvidia-ml.so.1) does not report the links"
           : any && !(all && all_linked)      ? "NVLink does not connect all pairs of GPUs"
           : any && !switched && devices != n ? "NVLinks lead to GPUs without a rank"
                                              : NULL;
    return *why ? ROOF_NOT_KNOWN : any ? ROOF_NVLINK : ROOF_PCIE;
}

LinksRoof links_roof(const NvmlFacts *facts, int n, bool all_linked, int devices) {
    LinksRoof r = {.weakest = -1};
    int best = 0, weakest = 0;
    r.kind = kind_of(facts, n, all_linked, devices, &r.why);
    if (r.kind == ROOF_NOT_KNOWN) return r;
    for (int i = 1; i < n; i++) {
        if (rate_of(&facts[i], r.kind) > rate_of(&facts[best], r.kind)) best = i;
        if (rate_of(&facts[i], r.kind) < rate_of(&facts[weakest], r.kind)) weakest = i;
    }
    r.rate = rate_of(&facts[best], r.kind);
    if (rate_of(&facts[weakest], r.kind) < r.rate) r.weakest = weakest;
    bool whole = r.kind == ROOF_PCIE || n == 2;
    whole |= facts[best].switched == facts[best].nvlinks;
    r.of_pair = whole ? r.rate : 0;
    if (r.rate <= 0) r.kind = ROOF_NOT_KNOWN, r.why = "the rate of a link of this GPU is not known";
    if (r.kind == ROOF_NVLINK)
        snprintf(r.of, sizeof r.of, "%d NVLinks of %.3g GB/s", facts[best].nvlinks,
                 of_nvlink(facts[best].sm));
    else
        snprintf(r.of, sizeof r.of, "PCIe %u x%u", facts[best].pcie, facts[best].width);
    return r;
}

bool links_are_slow(const LinksRoof *r, const Metric *busbw) {
    Interval i;
    return r->kind == ROOF_NVLINK && busbw && interval_of_median(busbw->sample, busbw->n, ERROR, &i) &&
           i.high < FLOOR * r->rate;
}

void links_limit_samples(const LinksRoof *r, const Metric *busbw, const char *collective, Outcome *out) {
    const int samples = busbw ? busbw->n : 0, least = (int)interval_least(ERROR);
    if (r->kind == ROOF_NVLINK && samples < least)
        outcome_limit(out,
                      "speed: %s against the roof of the links, because there are only %s, but %d are needed",
                      collective, amount(samples, "sample").s, least);
}

void links_share(const LinksRoof *r, const Metric *busbw, char *out, size_t n) {
    *out = 0;
    if (r->kind != ROOF_NOT_KNOWN && busbw)
        snprintf(out, n, "%.0f %% of %.0f GB/s, %s", 100 * metric_median(busbw) / r->rate, r->rate, r->of);
}
