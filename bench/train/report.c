/* Reports the measured steps as text and JSON. */
#include <cblas.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/mem.h"
#include "base/statistics.h"
#include "bench/head.h"
#include "bench/train/step.h"
#include "measure/peaks.h"
#include "run/provenance.h"

/* ---- summary ---- */

/* Means over the middle half of the profiled steps, in seconds. The middle half excludes steps that were disturbed by
 * other load. All means are taken over the same steps, so that the parts add up to the total. */
typedef struct Summary {
    Range step;      /* time per step; on a GPU, from steps without op timing */
    double profiled; /* mean time per step, over the same steps as the members below */
    double op[OP_KERNELS], family[OP_FAMILIES], rest;
    StepComm comm[COMM_GROUPS];
    /* exposed communication in all groups, and the part of this communication time that the pipeline's schedule
     * implies */
    double exposed, bubble;
    double blas;   /* median time to replay the GEMMs in BLAS */
    Range of_blas; /* the BLAS replay's time divided by the GEMMs' time, for each step */
    double flops;  /* FLOPs per step */
    double peak;   /* peak FLOP/s of a device, or 0 if it is unknown */
    int devices;
    int fastest, slowest,
        /* the rank with the least time in ops, the one with the most time in ops, and the one with the most
         * memory relative to the plan */
        fullest;
    char note[160]; /* a note if ranks share a device, otherwise empty */
} Summary;

static int by_wall(const void *a, const void *b) {
    const int64_t x = ((const Step *)a)->wall_ns, y = ((const Step *)b)->wall_ns;
    return (x > y) - (x < y);
}

static double gemms_ns(const Step *s) {
    double ns = 0;
    for (int op = 0; op < OP_KERNELS; op++)
        if (OPS[op].family == OP_FAMILY_GEMM) ns += (double)s->op_ns[op];
    return ns;
}

static void summarise_walls(const Steps *b, Summary *s) {
    const int64_t n = b->gpu ? b->n_plain : b->n_profiled, replays = b->n_profiled;
    double *value = mem_alloc((size_t)(n > replays ? n : replays) * sizeof *value);
    for (int64_t i = 0; i < n; i++) value[i] = 1e-9 * (b->gpu ? b->wall[i] : (double)b->profiled[i].wall_ns);
    s->step = range_of(value, n);
    for (int64_t i = 0; i < replays; i++) value[i] = (double)b->profiled[i].blas_ns * 1e-9;
    s->blas = median_of(value, replays);
    for (int64_t i = 0; i < replays; i++)
        value[i] = (double)b->profiled[i].blas_ns / gemms_ns(&b->profiled[i]);
    s->of_blas = range_of(value, replays);
    free(value);
}

/* Summarizes communication. The bubble is part of the time that pipeline ranks wait for each other, so it is at
 * most as long as that time. */
static void summarise_comm(const Steps *b, int64_t first, int64_t count, Summary *s) {
    const double each = 1 / (double)count;
    for (int i = 0; i < b->groups; i++) {
        StepComm *sum = &s->comm[i];
        for (int64_t k = first; k < first + count; k++) {
            const StepComm *x = &b->profiled[k].comm[i];
            sum->exposed_ns += x->exposed_ns * each, sum->flight_ns += x->flight_ns * each,
                sum->bytes += x->bytes * each;
        }
        s->exposed += sum->exposed_ns * 1e-9;
    }
    for (int i = 0; i < b->groups && b->bubble > 0; i++) {
        if (b->group[i] != 1u << AXIS_PP) continue;
        const double pipeline = s->comm[i].exposed_ns * 1e-9, passes = s->profiled - pipeline;
        s->bubble = fmin(pipeline, b->bubble * passes);
    }
}

static void summarise_ops(Steps *b, Summary *s) {
    const int64_t n = b->n_profiled, first = n / 4, count = n - 2 * first;
    const double each = 1e-9 / (double)count;
    qsort(b->profiled, (size_t)n, sizeof *b->profiled, by_wall);
    for (int64_t i = first; i < first + count; i++) {
        s->profiled += (double)b->profiled[i].wall_ns * each;
        for (int op = 0; op < OP_KERNELS; op++) s->op[op] += (double)b->profiled[i].op_ns[op] * each;
    }
    summarise_comm(b, first, count, s);
    s->rest = s->profiled - s->exposed;
    for (int op = 0; op < OP_KERNELS; op++) {
        s->rest -= s->op[op];
        s->family[OPS[op].family] += s->op[op];
    }
}

static double over_plan(const Steps *b, int rank) { return b->rank[rank].taken / b->rank[rank].planned; }

static void summarise_ranks(const Steps *b, Summary *s) {
    s->devices = steps_devices(b);
    for (int i = 0; i < b->ranks; i++) {
        if (b->rank[i].busy_ms < b->rank[s->fastest].busy_ms) s->fastest = i;
        if (b->rank[i].busy_ms > b->rank[s->slowest].busy_ms) s->slowest = i;
        if (over_plan(b, i) > over_plan(b, s->fullest)) s->fullest = i;
    }
}

/* Returns the number of cores. With several processes, all of the machine's cores are counted, because a
 * launcher can bind each process to some of the cores. */
static int64_t host_cores(void) {
    const Provenance facts = provenance_read();
    return comm_processes() > 1 ? sysconf(_SC_NPROCESSORS_ONLN) : provenance_threads(&facts, 0);
}

static void note_sharing(const Steps *b, Summary *s) {
    const int64_t cores = host_cores() * s->devices, threads = (int64_t)b->ranks * b->threads;
    if (b->ranks == 1) return;
    if (b->gpu && s->devices < b->ranks)
        snprintf(s->note, sizeof s->note, "%d ranks share %s, so their times are not those of separate GPUs",
                 b->ranks, amount(s->devices, "GPU").s);
    if (!b->gpu && threads > cores)
        snprintf(s->note, sizeof s->note,
                 "%d ranks (%s) share %s, so their times are not those of separate machines", b->ranks,
                 amount(threads, "thread").s, amount(cores, "core").s);
}

static double mfu(const Summary *s) { return s->flops / s->step.median / (s->peak * s->devices); }

static Summary summarise(Steps *b, DType type) {
    const double given = b->options->peak_tflops;
    Summary s = {.flops = b->flops};
    summarise_ranks(b, &s);
    note_sharing(b, &s);
    s.peak = 1e12 * (f64_or(given, b->gpu ? bench_peak(b->name, type) : 0));
    summarise_walls(b, &s);
    summarise_ops(b, &s);
    return s;
}

/* Returns the times of the measured steps. On the CPU, the times are sorted. */
static json_t *samples_json(const Steps *b) {
    json_t *samples = json_array();
    const int64_t n = b->gpu ? b->n_plain : b->n_profiled;
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(samples,
                              json_real(1e-6 * (b->gpu ? b->wall[i] : (double)b->profiled[i].wall_ns)));
    return samples;
}

static int64_t tokens_of(const Steps *b) {
    return b->config.derived.global_batch_size * b->config.seq_length;
}

static const char *rest_name(const Steps *b) { return b->gpu ? "idle" : "other"; }

/* Returns a GEMM's GFLOP/s over its calls in the profiled steps, which take `ns` in total (1 FLOP/ns = 1 GFLOP/s). */
static double gflops(const Steps *b, const StepGemm *p, double ns) {
    return p->flops * (double)b->n_profiled / ns;
}

static double alone_ns(const Steps *b) {
    double ns = 0;
    for (int i = 0; i < b->gemms.count; i++) ns += b->gemms.at[i].alone_ns;
    return ns;
}

static double ours_ns(const Steps *b) {
    double ns = 0;
    for (int i = 0; i < b->gemms.count; i++) ns += b->gemms.at[i].ours_ns;
    return ns;
}

/* ---- JSON ---- */

static json_t *ops_json(const Steps *b, const Summary *s) {
    json_t *ops = json_object();
    for (int i = 0; i < OP_KERNELS; i++)
        if (b->op_calls[i])
            json_object_set_new(ops, OPS[i].name,
                                json_pack("{s:I, s:f, s:s}", "calls", (json_int_t)b->op_calls[i], "ms",
                                          s->op[i] * 1e3, "family", OP_FAMILY_NAMES[OPS[i].family]));
    return ops;
}

static json_t *gemms_json(const Steps *b) {
    json_t *list = json_array();
    for (int i = 0; i < b->gemms.count; i++) {
        const StepGemm *p = &b->gemms.at[i];
        json_t *entry = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f}", "op", OPS[p->op].name, "type",
                                  dtype_name(p->in[0].dtype), "m", (json_int_t)p->shape.m, "n",
                                  (json_int_t)p->shape.n, "k", (json_int_t)p->shape.k, "calls",
                                  (json_int_t)p->calls, "gflops", gflops(b, p, p->ours_ns));
        if (p->alone_ns > 0)
            json_object_set_new(entry, b->gpu ? "alone_gflops" : "blas_gflops",
                                json_real(gflops(b, p, p->alone_ns)));
        json_array_append_new(list, entry);
    }
    return list;
}

static json_t *gemm_json(const Steps *b, const Summary *s) {
    const double gflop = gemms_flops(&b->gemms) * 1e-9;
    json_t *gemm = json_pack("{s:f, s:f, s:o}", "gflop", gflop, "gflops",
                             gflop * (double)b->n_profiled / (ours_ns(b) * 1e-9), "gemms", gemms_json(b));
    if (steps_alone(b) && b->gpu)
        json_object_update_new(gemm, json_pack("{s:f, s:f}", "alone_gflops",
                                               gflop * (double)b->n_profiled / (alone_ns(b) * 1e-9),
                                               "of_alone", alone_ns(b) / ours_ns(b)));
    else if (steps_alone(b))
        json_object_update_new(gemm, json_pack("{s:f, s:{s:f, s:f, s:f}}", "blas_gflops", gflop / s->blas,
                                               "of_blas", "median", s->of_blas.median, "min", s->of_blas.min,
                                               "max", s->of_blas.max));
    return gemm;
}

static json_t *ranks_json(const Steps *b) {
    json_t *ranks = json_array();
    for (int i = 0; i < b->ranks; i++) {
        const RankResult *r = &b->rank[i];
        json_t *rank =
            json_pack("{s:f, s:f, s:f, s:i, s:i}", "busy_ms", r->busy_ms, "planned_mb",
                      r->planned / (1 << 20), "taken_mb", r->taken / (1 << 20), "planned_communicators",
                      r->planned_communicators, "communicators", r->communicators);
        if (r->load.known)
            json_object_update_new(rank, json_pack("{s:f, s:i, s:f, s:i, s:s}", "mean_mhz", r->load.mean_mhz,
                                                   "lowest_mhz", (int)r->load.sm_mhz, "mean_watts",
                                                   r->load.mean_watts, "highest_celsius",
                                                   (int)r->load.celsius, "clock_lowered_by", r->load.limits));
        json_array_append_new(ranks, rank);
    }
    return ranks;
}

static json_t *memory_json(const Steps *b, const Summary *s) {
    const RankResult *r = &b->rank[s->fullest];
    const double mb = 1 << 20;
    if (b->gpu)
        return json_pack("{s:f, s:f, s:f}", "planned", r->planned / mb, "taken", r->taken / mb,
                         "peak_over_plan", over_plan(b, s->fullest));
    return json_pack("{s:f, s:f, s:f, s:f}", "planned", r->planned / mb, "resident_before", b->before / mb,
                     "resident_peak", r->taken / mb, "peak_over_plan", over_plan(b, s->fullest));
}

static json_t *families_json(const Steps *b, const Summary *s) {
    json_t *families = json_object();
    for (int i = 0; i < OP_FAMILIES; i++)
        json_object_set_new(families, OP_FAMILY_NAMES[i], json_real(s->family[i] * 1e3));
    if (b->comm) json_object_set_new(families, "communication", json_real((s->exposed - s->bubble) * 1e3));
    if (b->comm) json_object_set_new(families, "bubble", json_real(s->bubble * 1e3));
    json_object_set_new(families, rest_name(b), json_real(s->rest * 1e3));
    return families;
}

/* Returns the bandwidth, in GB/s, while operations are in flight. */
static double busbw(const StepComm *c) { return c->flight_ns > 0 ? c->bytes / c->flight_ns : 0; }

static json_t *comm_json(const Steps *b, const Summary *s) {
    json_t *groups = json_object();
    char name[32];
    for (int i = 0; i < b->groups; i++) {
        const StepComm *c = &s->comm[i];
        json_object_set_new(groups, mesh_axes_text(b->group[i], name),
                            json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "calls",
                                      (double)b->comm_calls[i] / b->ranks, "megabytes", c->bytes * 1e-6,
                                      "flight_ms", c->flight_ns * 1e-6, "exposed_ms", c->exposed_ns * 1e-6,
                                      "share", c->exposed_ns * 1e-9 / s->profiled, "busbw", busbw(c)));
    }
    return groups;
}

static json_t *options_of(const Steps *b, unsigned classes) {
    Str text = {0};
    config_json(&b->config, classes, &text);
    json_t *options = json_loads(text.s, 0, NULL);
    str_free(&text);
    return options;
}

/* Returns the options that the user gave and that affect the computation. */
static json_t *model_json(const Steps *b) {
    json_t *model = options_of(b, CLASS_ARCH | CLASS_NUMERIC);
#define OPT(type, field, fallback, class, names, help)                                                       \
    if (!config_given(&b->config, field)) json_object_del(model, #field);
#include "config/options.def"
    return model;
}

/* Returns all options that the bench reads, except the number of threads, which is stated separately. */
static json_t *options_json(const Steps *b) {
    json_t *options = options_of(b, CLASS_ALL);
    for (int i = 0; i < OPTIONS; i++)
        if (!config_uses(USE_BENCH_TRAIN, i)) json_object_del(options, config_field_name(i));
    json_object_del(options, "cpu_threads");
    return options;
}

json_t *report_facts(const Steps *b) {
    json_t *facts = bench_head("train", b->name, b->ranks, b->transport, b->threads);
    json_object_update_new(facts,
                           json_pack("{s:s, s:o, s:o, s:I, s:I, s:I, s:I}", "type", dtype_name(b->type),
                                     "model", model_json(b), "options", options_json(b), "micro_batch_size",
                                     (json_int_t)b->config.derived.micro_batch_size, "global_batch_size",
                                     (json_int_t)b->config.derived.global_batch_size, "tokens",
                                     (json_int_t)tokens_of(b), "step_flops", (json_int_t)b->flops));
    return facts;
}

/* Adds the members that exist only for steps on a GPU. */
static void add_gpu(const Steps *b, const Summary *s, json_t *result) {
    json_object_update_new(result,
                           json_pack("{s:f, s:f, s:s, s:f, s:f}", "back_to_back_ms", b->back_to_back * 1e-6,
                                     "graph_replays", b->graph_replays, "attention", b->plan.attention.text,
                                     "profiled_step_ms", s->profiled * 1e3, "timing_ops_adds",
                                     s->profiled / s->step.median - 1));
    if (b->roof_gemm > 0)
        json_object_update_new(result, json_pack("{s:f, s:f, s:f}", "roof_gflops", b->roof_gemm,
                                                 "copy_gbytes", b->roof_copy, "of_roof",
                                                 s->flops / s->step.median / (b->roof_gemm * 1e9)));
}

static json_t *result_json(const Steps *b, const Summary *s) {
    const int64_t tokens = tokens_of(b);
    json_t *result = report_facts(b);
    json_object_update_new(
        result, json_pack("{s:b, s:I, s:{s:f, s:f, s:f, s:f}, s:f, s:f}", "graph", b->graph_replays > 0,
                          "steps", (json_int_t)(b->gpu ? b->n_plain : b->n_profiled), "step_ms", "median",
                          s->step.median * 1e3, "mean", s->profiled * 1e3, "min", s->step.min * 1e3, "max",
                          s->step.max * 1e3, "tokens_per_second", (double)tokens / s->step.median,
                          "model_gflops", s->flops / s->step.median * 1e-9));
    json_object_update_new(
        result, json_pack("{s:o, s:o, s:o, s:o, s:o, s:f, s:f}", "samples_ms", samples_json(b), "family_ms",
                          families_json(b, s), "op_ms", ops_json(b, s), "gemm", gemm_json(b, s), "memory_mb",
                          memory_json(b, s), "init_seconds", b->init_seconds, "loss", b->loss));
    if (s->peak > 0)
        json_object_update_new(result,
                               json_pack("{s:f, s:f}", "peak_tflops", s->peak * 1e-12, "mfu", mfu(s)));
    json_object_update_new(result,
                           json_pack("{s:i, s:f, s:o}", "devices", s->devices, "tokens_per_second_per_device",
                                     (double)tokens / s->step.median / s->devices, "rank", ranks_json(b)));
    if (*s->note) json_object_set_new(result, "note", json_string(s->note));
    if (b->comm) json_object_set_new(result, "communication", comm_json(b, s));
    if (b->gpu) add_gpu(b, s, result);
    return result;
}

/* ---- text ---- */

static void print_row(const char *name, double seconds, const Summary *s) {
    printf("%-33s %10.3f %6.1f%%\n", name, seconds * 1e3, seconds / s->profiled * 100);
}

static void print_ops(const Steps *b, const Summary *s) {
    printf("\n%-26s %6s %10s %7s\n", b->ranks > 1 ? "op (calls of all ranks)" : "op", "calls", "ms/step",
           "share");
    for (int f = 0; f < OP_FAMILIES; f++) {
        if (s->family[f] == 0) continue;
        print_row(OP_FAMILY_NAMES[f], s->family[f], s);
        for (int i = 0; i < OP_KERNELS; i++)
            if (b->op_calls[i] && OPS[i].family == f)
                printf("  %-24s %6lld %10.3f %6.1f%%\n", OPS[i].name, (long long)b->op_calls[i],
                       s->op[i] * 1e3, s->op[i] / s->profiled * 100);
    }
    if (b->comm) print_row("communication, exposed", s->exposed - s->bubble, s);
    if (s->bubble > 0) print_row("pipeline bubble", s->bubble, s);
    print_row(rest_name(b), s->rest, s);
    print_row(b->gpu ? "step while ops are timed" : "step", s->profiled, s);
}

static void print_comm(const Steps *b, const Summary *s) {
    char name[32];
    printf("\n%-14s %8s %10s %12s %12s %7s %12s\n", "communication", "calls", "MB", "in flight", "exposed",
           "share", "busbw, GB/s");
    for (int i = 0; i < b->groups; i++) {
        const StepComm *c = &s->comm[i];
        printf("  %-12s %8.1f %10.3f %9.3f ms %9.3f ms %6.1f%% %12.2f\n", mesh_axes_text(b->group[i], name),
               (double)b->comm_calls[i] / b->ranks, c->bytes * 1e-6, c->flight_ns * 1e-6,
               c->exposed_ns * 1e-6, c->exposed_ns * 1e-7 / s->profiled, busbw(c));
    }
}

static void print_gemms(const Steps *b) {
    const double unit = b->gpu ? 1e-3 : 1;
    char title[32];
    snprintf(title, sizeof title, "%s%s", b->gpu ? "TFLOP/s" : "GFLOP/s", b->ranks > 1 ? " of rank 0" : "");
    printf("\n%-22s %6s %7s %7s %7s %6s %9s %9s %6s\n", title, "type", "m", "n", "k", "calls", "in step",
           b->gpu ? "alone" : "BLAS", "ratio");
    for (int i = 0; i < b->gemms.count; i++) {
        const StepGemm *p = &b->gemms.at[i];
        printf("%-22s %6s %7lld %7lld %7lld %6lld %9.1f", OPS[p->op].name, dtype_name(p->in[0].dtype),
               (long long)p->shape.m, (long long)p->shape.n, (long long)p->shape.k, (long long)p->calls,
               gflops(b, p, p->ours_ns) * unit);
        if (p->alone_ns > 0)
            printf(" %9.1f %6.3f", gflops(b, p, p->alone_ns) * unit, p->alone_ns / p->ours_ns);
        printf("\n");
    }
    const double all = gemms_flops(&b->gemms) * (double)b->n_profiled * unit;
    printf("%-60s %9.1f", "all", all / ours_ns(b));
    if (alone_ns(b) > 0) printf(" %9.1f %6.3f", all / alone_ns(b), alone_ns(b) / ours_ns(b));
    printf("\n");
}

/* Prints the loads of the GPUs with the lowest and the highest mean clock. */
static void print_loads(const Steps *b) {
    const NvmlLoad *low = &b->rank[0].load, *high = low;
    for (int i = 0; i < b->ranks; i++) {
        const NvmlLoad *l = &b->rank[i].load;
        if (!l->known) return;
        if (l->mean_mhz < low->mean_mhz) low = l;
        if (l->mean_mhz > high->mean_mhz) high = l;
    }
    printf("mean clock and power: %.0f MHz and %.0f W", low->mean_mhz, low->mean_watts);
    if (low != high) printf(" (slowest GPU) to %.0f MHz and %.0f W", high->mean_mhz, high->mean_watts);
    printf("%s%s\n", *low->limits ? ", lowered by: " : "", low->limits);
}

static void print_gpu(const Steps *b, const Summary *s) {
    const double planned = b->rank[s->fullest].planned, got = b->rank[s->fullest].taken,
                 rate = s->flops / s->step.median;
    printf("\n%s", b->plan.attention.text);
    printf("memory: planned %s, taken %s (%+.1f %%)\n", bytes_text(planned).s, bytes_text(got).s,
           (got / planned - 1) * 100);
    printf("CUDA graphs: replayed %.1f times per step\n", b->graph_replays);
    print_loads(b);
    printf("timing ops adds %.1f %% to a step\n", (s->profiled / s->step.median - 1) * 100);
    if (b->roof_gemm > 0)
        printf("roofs of %s: GEMM %.1f TFLOP/s, copy %.0f GB/s; the step's model FLOPs are %.1f %% of the "
               "former\n",
               amount(b->ranks, "rank").s, b->roof_gemm * 1e-3, b->roof_copy, rate / b->roof_gemm * 1e-7);
}

static void print_cpu(const Steps *b) {
    const double planned = b->planned;
    printf("\nBLAS core %s, %s\n", openblas_get_corename(), amount(b->threads, "thread").s);
    printf("memory: planned %s, resident peak %s (%+.1f %%), %s of them before the run\n",
           bytes_text(planned).s, bytes_text(b->peak).s, (b->peak / planned - 1) * 100,
           bytes_text(b->before).s);
}

static void print_ranks(const Steps *b, const Summary *s) {
    const RankResult *fast = &b->rank[s->fastest], *slow = &b->rank[s->slowest];
    printf("time in ops: from %.2f ms (rank %d) to %.2f ms (rank %d); the rest is communication, waiting and "
           "the host\n",
           fast->busy_ms, s->fastest, slow->busy_ms, s->slowest);
    if (*s->note) printf("note: %s\n", s->note);
}

static void print(const Steps *b, const Summary *s) {
    print_ops(b, s);
    if (b->comm) print_comm(b, s);
    print_gemms(b);
    if (b->gpu)
        print_gpu(b, s);
    else
        print_cpu(b);
    if (b->ranks > 1) print_ranks(b, s);
    if (s->peak > 0)
        printf("MFU %.2f %% of %s of %.0f TFLOP/s\n", mfu(s) * 100, amount(s->devices, "device").s,
               s->peak * 1e-12);
    else if (b->gpu)
        printf("no MFU: the peak of this device is not known; set it with --peak-tflops\n");
    printf("init %.2f s, loss %.4f\n", b->init_seconds, b->loss);
    printf("step: median %.2f ms (%.2f to %.2f)", s->step.median * 1e3, s->step.min * 1e3, s->step.max * 1e3);
    if (b->gpu) printf(", back to back %.2f ms", b->back_to_back * 1e-6);
    printf("; %.0f tokens/s, %.2f model TFLOP/s", (double)tokens_of(b) / s->step.median,
           s->flops / s->step.median * 1e-12);
    if (s->devices > 1)
        printf("; %.0f tokens/s per device", (double)tokens_of(b) / s->step.median / s->devices);
    printf("\n");
}

Err report_steps(Steps *b, json_t **out) {
    const Summary s = summarise(b, b->type);
    print(b, &s);
    if (!b->options->json && !out) return ERR_OK;
    json_t *result = result_json(b, &s);
    const Err e = bench_write(b->options->json, result);
    if (!e.code && out)
        *out = result;
    else
        json_decref(result);
    return e;
}
