/* Measures speed between ranks: the bus bandwidth of collectives, the bandwidth of each pair of ranks in both
 * directions, and the time that each rank needs for equal work (its arrival). Each round samples all three
 * quantities, so that slow changes of the machine affect them equally. A pair or a rank is slow if the entire
 * confidence interval of its median (base/statistics.h) is below a fraction of the upper quartile of its
 * siblings. In a world of two ranks, the only sibling is the other direction of the link, or the arrival of the
 * other rank. The interval must then be below a fraction of the sibling's entire interval. If all links of a
 * rank are slow, the rank is the suspect; otherwise, the suspect is the link. The comparison with the links'
 * roof (links_roof.h) detects whether all links in the world are slow. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/statistics.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "measure/exact.h"
#include "validate/compare.h"
#include "validate/links_roof.h"
#include "validate/stage.h"

/* ROUND_SAMPLES: number of samples per link and rank in a round. PASSES: maximum number of worlds (newly created sets
 * of ranks) in which links are measured. REPEATS: number of calls in a sample. A sample of short GPU calls has SHORT
 * times as many calls, because the overhead at the start of a sample differs between processes. */
enum { MOST_PAIRED = 12, SIZES = 2, ROUND_SAMPLES = 2, PASSES = 2, REPEATS = 2, SHORT = 8 };

typedef struct Speed {
    StageRank *r;
    bool second;      /* whether a link or rank was slow in the first world */
    bool gpu, shared; /* shared: ranks share a device and its memory */
    /* message: bytes in a message over a link, more than the caches can hold; most: bytes in the largest collective */
    size_t message, most;
    int round;
    char *in, *out, *work;
    Tensor x, w, y;
    LinksRoof roof;
} Speed;

/* The collectives whose bus bandwidth is compared with the links' roof. */
static const char *const ROOFED[] = {"all_reduce", "all_gather"};
enum { N_ROOFED = sizeof ROOFED / sizeof *ROOFED };

/* The links and ranks that were slow in every measurement so far, and the rates of their siblings. */
typedef struct Slow {
    bool link[MOST_PAIRED * MOST_PAIRED], rank[EXACT_RANKS]; /* [from * world + to] */
    /* the bus bandwidth is too far below the roof (links_are_slow) */
    bool below[N_ROOFED];
    double of_links, of_ranks;
} Slow;

/* ---- measuring ---- */

static double slowest(const Speed *s, int64_t start_ns) {
    device_wait(s->r->device);
    return stage_reduce(s->r, COMM_MAX, (double)(clock_ns() - start_ns) * 1e-9);
}

/* Returns the number of calls in a sample. */
static int calls_of(const Speed *s, bool is_short) { return s->gpu && is_short ? SHORT * REPEATS : REPEATS; }

static void keep_rate(const Speed *s, double rate, double roof, const char *name) {
    if (!s->r->out) return;
    outcome_sample(s->r->out, "GB/s", rate, name);
    outcome_roof(s->r->out, roof, name);
}

static void sample_collective(Speed *s, const Collective *of, size_t bytes, bool keep) {
    const int n = s->r->world;
    const int64_t parts = of->splits ? n : 1;
    Exact x = {.comm = s->r->comm,
               .group = comm_everyone(s->r->comm),
               .device = s->r->device,
               .in = s->in,
               .out = s->out,
               .of = of,
               .type = &EXACT_TYPES[0],
               .count = (int64_t)(bytes / sizeof(float)) / parts,
               .in_place = !of->out_of_place};
    const CommCall call = exact_call(&x);
    char name[80];
    snprintf(name, sizeof name, "%s %zu KiB", of->name, bytes >> 10);
    STAGE_DOING(s->r, "%s", name);
    device_wait(s->r->device);
    stage_barrier(s->r);
    const int64_t start = clock_ns();
    const int calls = calls_of(s, bytes < s->most);
    for (int i = 0; i < calls; i++) exact_run(&x, call);
    const double each = slowest(s, start) / calls, factor = exact_bus_factor(of, n);
    if (keep) keep_rate(s, (double)bytes * 1e-9 * factor / each, s->roof.rate, name);
}

static void link_name(int from, int to, char out[80]) { snprintf(out, 80, "link %d-%d", from, to); }

/* Measures messages from one rank to another while all other ranks wait. */
static void sample_link(Speed *s, int from, int to, bool keep) {
    StageRank *r = s->r;
    const int low = from < to ? from : to, high = from < to ? to : from;
    const bool takes_part = r->rank == from || r->rank == to;
    const int calls = calls_of(s, true);
    char name[80];
    link_name(from, to, name);
    STAGE_DOING(r, "%s", name);
    const CommCall call = {.kind = r->rank == from ? COMM_SEND : COMM_RECV,
                           .dtype = U8,
                           .group = {.size = 2,
                                     .rank = r->rank == high,
                                     .first = low,
                                     .n_axes = 1,
                                     .axis_size = {2},
                                     .axis_stride = {high - low}},
                           .site = "link",
                           .in = s->in,
                           .out = s->out,
                           .n = (int64_t)s->message,
                           .peer = r->rank == low,
                           .device = r->device};
    /* a warm-up, so that the caches are in the same state for each link */
    if (takes_part) comm_run(r->comm, &call);
    device_wait(r->device);
    stage_barrier(r);
    const int64_t start = clock_ns();
    for (int i = 0; takes_part && i < calls; i++) comm_run(r->comm, &call);
    device_wait(r->device);
    const double own = takes_part ? (double)(clock_ns() - start) * 1e-9 : 0,
                 each = stage_reduce(r, COMM_MAX, own) / calls;
    if (keep) keep_rate(s, (double)s->message * 1e-9 / each, s->roof.of_pair, name);
}

/* Measures each rank's time for an equal amount of work. All ranks do this work simultaneously. */
static void sample_arrival(Speed *s, bool keep) {
    StageRank *r = s->r;
    const LinearAttr attr = {.fixed_order = false};
    const Call call = {.in = {&s->x, &s->w}, .out = {&s->y}, .attr = &attr, .device = r->device};
    double *all = mem_zero((size_t)r->world, sizeof *all);
    STAGE_DOING(r, "arrival of the ranks");
    stage_barrier(r);
    /* a warm-up, because the caches of the rank that waited longest are cold */
    call_run(&OPS[OP_linear], &call);
    device_wait(r->device);
    const int64_t start = clock_ns();
    for (int i = 0; i < REPEATS; i++) call_run(&OPS[OP_linear], &call);
    device_wait(r->device);
    const double own = 1e9 * REPEATS / (double)(clock_ns() - start);
    stage_gather(r, &own, all, sizeof own);
    for (int i = 0; r->out && keep && i < r->world; i++) {
        char name[80];
        snprintf(name, sizeof name, "arrival of rank %d", i);
        outcome_sample(r->out, "1/s", all[i], name);
    }
    free(all);
}

/* Returns the number of samples required to judge a link or rank. */
static int least_samples(const Speed *s) {
    return (int)interval_least(INTERVAL_ERROR / (s->r->world * (s->r->world - 1)));
}

/* Returns whether this world has used less than `seconds`. The callers' limits keep two worlds within the time
 * after which run.c ends a stage. */
static bool is_within(const Speed *s, double seconds) {
    return stage_has_time(s->r, seconds / s->r->in->seconds);
}

/* Returns the minimum number of rounds. A round samples each collective once, and each link and rank at least
 * once. */
static int least_rounds(const Speed *s) {
    const int n = s->r->world, links = n <= MOST_PAIRED ? n * (n - 1) : 0;
    return s->r->in->options->nccl_b ? compare_least(N_COLLECTIVES * SIZES + links + n) : least_samples(s);
}

static bool has_time(const Speed *s) {
    const double budget = s->r->in->seconds, most = s->round <= least_rounds(s) ? 16 : 4;
    return is_within(s, fmin(most * budget, budget + 5));
}

static bool has_time_for_another_world(const Speed *s) { return is_within(s, s->r->in->seconds + 15); }

/* Returns whether there is time for another round. Links and ranks are measured for longer than collectives, so
 * that even a very slow link or rank is identified. The second world may use as much time as the first
 * world. */
static bool has_time_to_name(const Speed *s) {
    return s->second ? has_time_for_another_world(s) : is_within(s, 2 * s->r->in->seconds + 20);
}

static void sample_all(Speed *s, bool keep) {
    const int n = s->r->world;
    const bool collectives = s->round <= 1 || has_time(s);
    for (int k = 0; k < N_COLLECTIVES && collectives; k++)
        for (int size = 0; size < SIZES; size++)
            sample_collective(s, &COLLECTIVES[k], size ? s->most : s->most / 32, keep);
    for (int i = 0; i < ROUND_SAMPLES * n && n <= MOST_PAIRED; i++)
        for (int b = 0; b < n; b++)
            if (i % n != b) sample_link(s, i % n, b, keep);
    for (int i = 0; i < ROUND_SAMPLES; i++) sample_arrival(s, keep);
}

/* ---- judging ---- */

static bool is_slow(const Metric *m, double of, double fraction, int siblings) {
    Interval i;
    return m && interval_of_median(m->sample, m->n, INTERVAL_ERROR / siblings, &i) && i.high < fraction * of;
}

/* Returns the lower end of the faster sibling's interval, or 0 if there are too few samples. */
static double faster_of_two(const Metric *a, const Metric *b) {
    Interval x = {0}, y = {0};
    if (a) interval_of_median(a->sample, a->n, INTERVAL_ERROR / 2, &x);
    if (b) interval_of_median(b->sample, b->n, INTERVAL_ERROR / 2, &y);
    return fmax(x.low, y.low);
}

static const Metric *link_of(const Speed *s, int from, int to) {
    char name[80];
    link_name(from, to, name);
    return outcome_metric(s->r->out, name);
}

/* Returns whether all links from and to a rank are slow. With two ranks, a slow link is not evidence against
 * either rank. */
static bool is_rank(const bool *slow, int n, int rank) {
    bool all = n > 2;
    for (int k = 0; k < n; k++) all &= k == rank || slow[rank * n + k] || slow[k * n + rank];
    return all;
}

static void report_links(const Speed *s, const bool *slow, double of) {
    static const char TEXT[] = "%s %.3g GB/s, %.0f %% of %s %.3g GB/s";
    const int n = s->r->world;
    const char *whose = n > 2 ? "its siblings'" : "the other direction's";
    const StageVerdict verdict = s->shared ? VALIDATE_INCONCLUSIVE : VALIDATE_DEGRADED;
    for (int a = 0; a < n; a++) {
        if (is_rank(slow, n, a)) {
            const double rate = metric_median(link_of(s, a, (a + 1) % n));
            outcome_add(s->r->out, verdict, stage_suspect(s->r, a).s, TEXT,
                        "all of its links are slow: one has", rate, 100 * rate / of, whose, of);
            continue;
        }
        for (int b = 0; b < n; b++) {
            char name[80];
            if (a == b || !slow[a * n + b] || is_rank(slow, n, b)) continue;
            const double rate = metric_median(link_of(s, a, b));
            link_name(a, b, name);
            outcome_add(s->r->out, verdict, name, TEXT, "it is slow:", rate, 100 * rate / of, whose, of);
        }
    }
}

static void judge_links(const Speed *s, Slow *slow) {
    static const double LEAST = 0.7;
    const int n = s->r->world, links = n * (n - 1);
    double medians[MOST_PAIRED * MOST_PAIRED] = {0};
    if (n > MOST_PAIRED) {
        memset(slow->link, 0, sizeof slow->link);
        return;
    }
    for (int a = 0, k = 0; a < n; a++)
        for (int b = 0; b < n; b++)
            if (a != b) medians[k++] = metric_median(link_of(s, a, b));
    slow->of_links = upper_quartile_of(medians, links);
    const double of = n > 2 ? slow->of_links : faster_of_two(link_of(s, 0, 1), link_of(s, 1, 0));
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++)
            slow->link[a * n + b] &= a != b && is_slow(link_of(s, a, b), of, LEAST, links);
}

static const Metric *arrival_of(const Speed *s, int rank) {
    char name[80];
    snprintf(name, sizeof name, "arrival of rank %d", rank);
    return outcome_metric(s->r->out, name);
}

static void judge_arrivals(const Speed *s, Slow *slow) {
    const int n = s->r->world;
    const double least = s->gpu ? 0.8 : 0.5;
    double medians[EXACT_RANKS] = {0};
    for (int i = 0; i < n; i++) medians[i] = metric_median(arrival_of(s, i));
    slow->of_ranks = upper_quartile_of(medians, n);
    const double of = n > 2 ? slow->of_ranks : faster_of_two(arrival_of(s, 0), arrival_of(s, 1));
    for (int i = 0; i < n; i++) slow->rank[i] &= is_slow(arrival_of(s, i), of, least, n);
}

static void report_arrivals(const Speed *s, const Slow *slow) {
    for (int i = 0; i < s->r->world; i++)
        if (slow->rank[i])
            outcome_add(s->r->out, VALIDATE_DEGRADED, stage_suspect(s->r, i).s,
                        "it arrives late: its work takes %.2g ms, compared with %.2g ms on %s",
                        1e3 / metric_median(arrival_of(s, i)), 1e3 / slow->of_ranks,
                        s->r->world > 2 ? "its siblings" : "the other rank");
}

/* ---- the roof of the links ---- */

static const Metric *busbw_of(const Speed *s, const char *collective) {
    char name[80];
    snprintf(name, sizeof name, "%s %zu KiB", collective, s->most >> 10);
    return outcome_metric(s->r->out, name);
}

static void find_roof(Speed *s) {
    StageRank *r = s->r;
    unsigned char(*ids)[16] = mem_zero((size_t)r->world, sizeof *ids);
    NvmlFacts mine = {.known = false}, *all = mem_zero((size_t)r->world, sizeof *all);
    nvml_read(r->device->id, &mine);
    stage_gather(r, r->device->id, ids, sizeof *ids);
    stage_gather(r, &mine, all, sizeof mine);
    if (r->out)
        s->roof = links_roof(all, r->world, nvml_all_linked((const unsigned char(*)[16])ids, r->world),
                             r->device->n_devices);
    free(ids), free(all);
}

/* Returns the rank whose links are slower than all other links, or -1 if there is no such rank, or if it is
 * unknown. */
static int slowest_rank(const Speed *s) {
    static const double LEAST = 0.8;
    const int n = s->r->world;
    double all = 0, rate[MOST_PAIRED] = {0};
    int slowest = 0;
    if (n == 2 || n > MOST_PAIRED) return -1;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            const double of = a == b ? 0 : metric_median(link_of(s, a, b));
            all += of, rate[a] += of, rate[b] += of;
        }
    for (int i = 1; i < n; i++)
        if (rate[i] < rate[slowest]) slowest = i;
    return rate[slowest] < LEAST * (2 * all - rate[slowest]) / (n - 1) ? slowest : -1;
}

static void report_roof(const Speed *s, const Slow *slow) {
    const int n = s->r->world, rank = s->roof.weakest >= 0 ? s->roof.weakest : slowest_rank(s);
    char suspect[64], share[160];
    if (rank >= 0)
        snprintf(suspect, sizeof suspect, "links of rank %d", rank);
    else
        snprintf(suspect, sizeof suspect, "links of %s", n == 2 ? "rank 0 or rank 1" : "all ranks");
    for (int i = 0; i < N_ROOFED; i++) {
        const Metric *busbw = busbw_of(s, ROOFED[i]);
        links_share(&s->roof, busbw, share, sizeof share);
        if (*share) outcome_fact(s->r->out, false, ROOFED[i], "%s", share);
        links_limit_samples(&s->roof, busbw, ROOFED[i], s->r->out);
        if (slow->below[i])
            outcome_add(s->r->out, VALIDATE_DEGRADED, suspect, "%s reaches %.3g GB/s of bus bandwidth, %s",
                        ROOFED[i], metric_median(busbw), share);
    }
    if (s->roof.kind == ROOF_NOT_KNOWN)
        outcome_limit(s->r->out, "speed: bus bandwidth against the roof of the links, which is not known: %s",
                      s->roof.why);
    if (s->roof.kind == ROOF_PCIE)
        outcome_limit(s->r->out, "speed: bus bandwidth against the roof of PCIe, because it depends on the "
                                 "path through bridges and the host");
}

/* ---- the stage ---- */

static size_t bytes_of(const Speed *s) { return s->most > s->message ? s->most : s->message; }

/* Writes the memory before the measurement, because pages that were never written may all map to one page of zeros.
 * Such a page would be read faster. */
static void touch(const Speed *s, char *at) {
    char *filled = mem_alloc(bytes_of(s));
    memset(filled, 1, bytes_of(s));
    device_write(s->r->device, at, filled, bytes_of(s));
    free(filled);
}

static void allocate(Speed *s) {
    const int64_t n = s->gpu ? 4096 : 128, rows[] = {n, 1, n}, square[] = {n, n};
    const size_t operand = (size_t)(n * n) * sizeof(float);
    Device *d = s->r->device;
    s->in = device_alloc(d, bytes_of(s), "messages"), s->out = device_alloc(d, bytes_of(s), "messages");
    touch(s, s->in), touch(s, s->out);
    s->work = device_alloc(d, 3 * operand, "work");
    s->x = tensor_make(s->work, F32, 3, rows);
    s->w = tensor_make(s->work + operand, F32, 2, square);
    s->y = tensor_make(s->work + 2 * operand, F32, 3, rows);
    const LinearAttr attr = {.fixed_order = false};
    Device *null = device_null_for(d);
    call_run(&OPS[OP_linear], &(Call){.in = {&s->x, &s->w}, .out = {&s->y}, .attr = &attr, .device = null});
    device_reserve_scratch(d, null->scratch);
    device_free(null);
}

static void release(const Speed *s) {
    Device *d = s->r->device;
    device_release(d, s->in, bytes_of(s)), device_release(d, s->out, bytes_of(s));
    device_release(d, s->work, 3 * tensor_bytes(&s->w));
}

/* Measures all links and ranks in newly allocated memory, and clears the entries of `slow` that are not slow in
 * this measurement. Returns whether `slow` still has entries. */
static bool measure(Speed *s, Slow *slow) {
    StageRank *r = s->r;
    const int n = r->world;
    allocate(s);
    if (r->out) r->out->n_metrics = 0;
    for (s->round = 0; s->round <= OUTCOME_ROUNDS; s->round++) {
        sample_all(s, s->round > 0); /* the first round is discarded, because it opens the groups */
        if (s->round * ROUND_SAMPLES < least_samples(s) ? !has_time_to_name(s) : !has_time(s)) break;
    }
    bool any = false;
    if (r->out) {
        judge_links(s, slow), judge_arrivals(s, slow);
        for (int i = 0; i < N_ROOFED; i++) {
            slow->below[i] &= links_are_slow(&s->roof, busbw_of(s, ROOFED[i]));
            any |= slow->below[i];
        }
        for (int i = 0; i < n * n && n <= MOST_PAIRED; i++) any |= slow->link[i];
        for (int i = 0; i < n; i++) any |= slow->rank[i];
    }
    release(s);
    return stage_reduce(r, COMM_MAX, any) > 0;
}

static void finish(const Speed *s, const Slow *slow) {
    StageRank *r = s->r;
    const int n = r->world;
    char name[80], share[160];
    report_links(s, slow->link, slow->of_links);
    report_arrivals(s, slow);
    if (s->gpu) report_roof(s, slow);
    if (n == 2 && s->roof.kind != ROOF_NVLINK)
        outcome_limit(r->out, "speed: whether link 0-1 is slow in both directions, because there is no other "
                              "link to compare it with");
    if (n > MOST_PAIRED)
        outcome_limit(r->out, "speed: pairs of ranks, because there are more than %d ranks",
                      (int)MOST_PAIRED);
    snprintf(name, sizeof name, "all_reduce %zu KiB", s->most >> 10);
    const Metric *sum = busbw_of(s, "all_reduce");
    links_share(&s->roof, sum, share, sizeof share);
    const int least = least_samples(s), samples = arrival_of(s, 0) ? arrival_of(s, 0)->n : 0;
    if (samples < least)
        outcome_limit(r->out, "speed: slow links and ranks, because there are only %s, but %d are needed",
                      amount(samples, "sample").s, least);
    if (samples < least) outcome_add(r->out, VALIDATE_INCONCLUSIVE, "", "nothing could be judged");
    outcome_sum_up(r->out, "%s: %s %.2f GB/s of bus bandwidth%s%s%s, %s", r->transport, name,
                   sum ? metric_median(sum) : 0, *share ? " (" : "", share, *share ? ")" : "",
                   amount(samples / ROUND_SAMPLES, "round").s);
    if (s->shared && !r->in->options->good)
        outcome_limit(r->out, "speed: between ranks that share a device and its memory");
}

/* The state that the stage keeps across its worlds. */
typedef struct Passes {
    Slow slow;
    int pass;
    bool again; /* rank 0 sets the state */
} Passes;

static Err on_rank(StageRank *r) {
    Passes *p = r->in->state;
    Speed s = {.r = r,
               .second = p->pass > 0,
               .gpu = device_is_discrete(r->device),
               .roof = {.weakest = -1, .why = "ranks communicate through host memory"}};
    stage_note_transport(r);
    s.shared = s.gpu ? r->sharing > 1 : !stage_is_nccl(r->transport);
    s.message = s.gpu ? 32 << 20 : 16 << 20, s.most = s.gpu ? 256 << 20 : 4 << 20;
    if (s.gpu && !s.shared && stage_is_nccl(r->transport)) find_roof(&s);
    const bool again = measure(&s, &p->slow) && p->pass < PASSES - 1 && has_time_for_another_world(&s);
    if (r->rank == 0 || comm_processes() > 1) p->again = again;
    if (r->out && !again) finish(&s, &p->slow);
    return ERR_OK;
}

/* The placement of memory and threads affects the caches of a CPU. A link or a rank therefore counts as slow
 * only if it is slow in each of several worlds. If the first world takes too much time, no other world is
 * measured. */
Err stage_speed(const StageInput *given) {
    Passes passes = {.again = true};
    StageInput in = *given;
    in.state = &passes;
    memset(&passes.slow, 1, sizeof passes.slow);
    Err e = ERR_OK;
    for (; passes.again && !e.code; passes.pass++) e = stage_on_ranks(&in, on_rank);
    return e;
}
