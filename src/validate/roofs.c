/* Measures the roofs of each device: the bandwidth of a copy, and the rate of a large GEMM in each type. All
 * devices work at the same time. A device is compared with the rates that the vendor states, and with the other
 * devices. For the comparison with the last good run, only rank 0 measures a CPU, because all ranks share the CPU. */
#include "validate/roofs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/mem.h"
#include "base/statistics.h"
#include "measure/peaks.h"
#include "validate/compare.h"
#include "validate/load.h"

static const Roof ITEMS[] = {{"copy", "GB/s", F32, true, true},
                             {"GEMM fp64", "GFLOP/s", F64, false, true},
                             {"GEMM fp32", "GFLOP/s", F32, false, true},
                             {"GEMM bf16", "GFLOP/s", BF16, false, false},
                             {"GEMM fp16", "GFLOP/s", F16, false, false}};
enum { N_ITEMS = sizeof ITEMS / sizeof *ITEMS };

/* The lowest accepted fraction of the vendor's rate, and of the median of all devices. The power limit
 * determines the clocks during a GEMM: the rates of four healthy H100 in one host differed by 6 %. */
static const double LEAST_COPY = 0.7, LEAST_GEMM = 0.6, LEAST_COPY_OF_SIBLINGS = 0.95,
                    LEAST_GEMM_OF_SIBLINGS = 0.9;

static double measure(const StageRank *r, int item) {
    return ITEMS[item].copy ? bench_roof_copy(r->device) : bench_roof_gemm(r->device, ITEMS[item].type);
}

static void name_of(const StageRank *r, int item, int rank, char out[80]) {
    snprintf(out, 80, "%s, %s", ITEMS[item].name, stage_suspect(r, rank).s);
}

static double best_of(const StageRank *r, int item, int rank) {
    char name[80];
    name_of(r, item, rank, name);
    const Metric *m = outcome_metric(r->out, name);
    double best = 0;
    for (int i = 0; m && i < m->n; i++) best = m->sample[i] > best ? m->sample[i] : best;
    return best;
}

void roofs_judge(Outcome *out, const Roof *roof, const double *best, const Suspect *suspect,
                 const NvmlLoad *load, int n, double stated) {
    const double least = roof->copy ? LEAST_COPY : LEAST_GEMM,
                 of_siblings = roof->copy ? LEAST_COPY_OF_SIBLINGS : LEAST_GEMM_OF_SIBLINGS;
    const double median = median_of(best, n);
    for (int i = 0; i < n; i++) {
        const LoadText why = load_text(&load[i]);
        const char *open = *why.s ? " (" : "", *close = *why.s ? ")" : "";
        if (best[i] < of_siblings * median)
            outcome_add(out, VALIDATE_DEGRADED, suspect[i].s,
                        "%s: %.0f %s, %.0f %% below the median of all devices%s%s%s", roof->name, best[i],
                        roof->unit, 100 * (1 - best[i] / median), open, why.s, close);
        if (best[i] < least * stated)
            outcome_add(out, VALIDATE_DEGRADED, suspect[i].s, "%s: %.0f %s, %.0f %% of the stated %.0f%s%s%s",
                        roof->name, best[i], roof->unit, 100 * best[i] / stated, stated, open, why.s, close);
    }
}

/* Returns the vendor's rate, or 0 if it is unknown. */
static double stated(const StageRank *r, int item) {
    return ITEMS[item].copy ? bench_peak_copy(r->described)
                            : 1e3 * bench_peak(r->described, ITEMS[item].type);
}

static void judge(const StageRank *r, const NvmlLoad *load, int item) {
    double *best = mem_alloc((size_t)r->world * sizeof *best);
    Suspect *suspect = mem_alloc((size_t)r->world * sizeof *suspect);
    for (int i = 0; i < r->world; i++) best[i] = best_of(r, item, i), suspect[i] = stage_suspect(r, i);
    roofs_judge(r->out, &ITEMS[item], best, suspect, load, r->world, stated(r, item));
    free(best), free(suspect);
}

static void finish(const StageRank *r, bool gpu, const NvmlLoad *load, int rounds) {
    for (int i = 0; i < N_ITEMS && gpu; i++) judge(r, load, i);
    outcome_sum_up(r->out, "copy %.0f GB/s, GEMM fp32 %.0f%s %.0f GFLOP/s, %s", best_of(r, 0, 0),
                   best_of(r, 2, 0), gpu ? ", bf16" : ", fp64", best_of(r, gpu ? 3 : 1, 0),
                   amount(rounds, "round").s);
    if (!gpu && !r->in->options->good)
        outcome_limit(r->out,
                      "roofs: the speed of the CPU, because there is no good run (--good) to compare with");
    if (gpu && r->world == 1)
        outcome_limit(r->out, "roofs: equal speed of siblings, because there is only one GPU");
    if (gpu && bench_peak(r->described, BF16) <= 0)
        outcome_limit(r->out, "roofs: the stated rates of this GPU, because they are not known");
}

/* Returns whether more rounds are needed for a comparison with a good run. On GPUs, these rounds also run
 * without a good run, because a later run may be compared with this run. */
static bool needs_more(const StageRank *r, bool gpu, int rounds) {
    int rates = 0;
    for (int i = 0; i < N_ITEMS; i++) rates += gpu ? r->world : ITEMS[i].on_cpu;
    return (gpu || r->in->options->good) && rounds < compare_least(rates);
}

static Err on_rank(StageRank *r) {
    const bool gpu = device_is_discrete(r->device);
    if (gpu && r->sharing > 1) {
        if (r->out) outcome_limit(r->out, "roofs: the speed of GPUs, because ranks share them");
        if (r->out) outcome_add(r->out, VALIDATE_INCONCLUSIVE, "", "%d ranks share a GPU", r->sharing);
        return ERR_OK;
    }
    double *all = mem_zero((size_t)r->world, sizeof *all);
    NvmlWatch *watch = gpu ? load_watch(r) : NULL;
    int rounds = 0;
    do
        for (int i = 0; i < N_ITEMS; i++) {
            if (!gpu && !ITEMS[i].on_cpu) continue;
            STAGE_DOING(r, "%s, round %d", ITEMS[i].name, rounds);
            stage_barrier(r);
            const double rate = gpu || r->rank == 0 ? measure(r, i) : 0;
            stage_gather(r, &rate, all, sizeof rate);
            for (int k = 0; r->out && k < r->world; k++) {
                char name[80];
                name_of(r, i, k, name);
                if (all[k] > 0) outcome_sample(r->out, ITEMS[i].unit, all[k], name);
                outcome_roof(r->out, stated(r, i), name);
            }
        }
    while (++rounds < OUTCOME_ROUNDS && stage_has_time(r, needs_more(r, gpu, rounds) ? 1.8 : 0.8));
    NvmlLoad *load = loads_of_ranks(r, watch);
    if (r->out) finish(r, gpu, load, rounds);
    free(all), free(load);
    return ERR_OK;
}

Err stage_roofs(const StageInput *in) {
    static const double LEAST_S = 5; /* duration of a round on a CPU, in seconds */
    if (stage_on_gpu(in) || in->seconds >= LEAST_S) return stage_on_ranks(in, on_rank);
    outcome_limit(in->out, "roofs: a CPU needs %.0f s to measure them, but only %.1f s are left", LEAST_S,
                  in->seconds);
    outcome_add(in->out, VALIDATE_INCONCLUSIVE, "", "there is too little time");
    return ERR_OK;
}
