#include "bench/comm/comm.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/statistics.h"
#include "bench/head.h"
#include "comm/agree.h"
#include "measure/exact.h"
#include "run/launch.h"
#include "train/memory_plan.h"

typedef struct Rank {
    const BenchComm *options;
    Comm *comm;
    Group group; /* the group in which this rank runs the collectives */
    Device *device;
    char *in, *out; /* device buffers of `most` bytes each */
    bool prints;
    json_t *rows;
    int64_t wrong; /* number of wrong elements, summed over the ranks */
    /* the highest bus bandwidth of each collective in GB/s, or 0 if the collective was not measured */
    double best[N_COLLECTIVES];
} Rank;

/* A table row: a collective, and the size in bytes of the larger of its two buffers. */
typedef struct Row {
    Exact exact;
    int64_t bytes;
} Row;

/* Returns the smallest size in bytes: one element or, if the collective splits its buffer, one element per member. */
static int64_t unit_of(const Collective *c, const ExactType *t, int64_t members) {
    return (c->splits ? members : 1) * (int64_t)dtype_size(t->type);
}

/* ---- measuring ---- */

/* Reduces a number over all ranks. */
static double over_ranks(const Rank *r, CommReduction how, double x) {
    comm_all_reduce(r->comm, comm_everyone(r->comm), "bench", how, F64, &x, 1);
    return x;
}

/* Returns the time, in seconds, that the slowest rank needs for `times` calls. */
static double seconds_of(const Rank *r, const Exact *x, int64_t times) {
    const CommCall call = exact_call(x);
    device_wait(r->device);
    over_ranks(r, COMM_MAX, 0);
    const int64_t start = clock_ns();
    for (int64_t i = 0; i < times; i++) exact_run(x, call);
    device_wait(r->device);
    return over_ranks(r, COMM_MAX, (double)(clock_ns() - start) * 1e-9);
}

/* Returns the median time per call over the rounds, in seconds. */
static double time_of(const Rank *r, const Exact *x) {
    enum { WARMUP = 3, LEAST = 3, ROUNDS = 9 };
    const double first = seconds_of(r, x, WARMUP) / WARMUP, round = r->options->seconds / ROUNDS;
    const int64_t times = 1 + (int64_t)(round / first);
    double t[ROUNDS], spent = 0;
    int rounds = 0;
    while (rounds < LEAST || (rounds < ROUNDS && spent < r->options->seconds))
        spent += t[rounds] = seconds_of(r, x, times), rounds++;
    for (int i = 0; i < rounds; i++) t[i] /= (double)times;
    return median_of(t, rounds);
}

static json_t *one_place(Rank *r, const Row *row, bool in_place) {
    Exact x = row->exact;
    x.in_place = in_place;
    if (!(in_place ? x.of->in_place : x.of->out_of_place)) {
        if (r->prints) printf(" %10s %8s %8s %7s", "-", "-", "-", "-");
        return NULL;
    }
    const CommCall call = exact_call(&x);
    exact_fill(&x, &call);
    exact_run(&x, call);
    const int64_t wrong = (int64_t)over_ranks(r, COMM_SUM, (double)exact_check(&x, &call).count);
    const double s = time_of(r, &x), algbw = (double)row->bytes * 1e-9 / s,
                 busbw = algbw * exact_bus_factor(x.of, r->group.size);
    r->wrong += wrong;
    r->best[x.of - COLLECTIVES] = fmax(r->best[x.of - COLLECTIVES], busbw);
    if (r->prints) printf(" %10.1f %8.2f %8.2f %7lld", s * 1e6, algbw, busbw, (long long)wrong);
    return json_pack("{s:f, s:f, s:f, s:I}", "us", s * 1e6, "algbw", algbw, "busbw", busbw, "wrong",
                     (json_int_t)wrong);
}

static void measure(Rank *r, const Row *row) {
    const Exact *x = &row->exact;
    if (r->prints)
        printf("%-14s %12lld %12lld %6s %6s", x->of->name, (long long)row->bytes, (long long)x->count,
               x->type->name, x->of->reduces ? "sum" : "none");
    json_t *separate = one_place(r, row, false), *in_place = one_place(r, row, true);
    json_t *entry = json_pack("{s:s, s:I, s:I, s:s, s:s}", "collective", x->of->name, "bytes",
                              (json_int_t)row->bytes, "count", (json_int_t)x->count, "type", x->type->name,
                              "redop", x->of->reduces ? "sum" : "none");
    if (separate) json_object_set_new(entry, "out_of_place", separate);
    if (in_place) json_object_set_new(entry, "in_place", in_place);
    json_array_append_new(r->rows, entry);
    if (r->prints) printf("\n"), fflush(stdout);
}

/* Returns a rank's copy bandwidth in GB/s while all ranks copy `most` bytes. The copy bandwidth limits every
 * transport through memory. */
static double copy_roof(const Rank *r) {
    enum { ROUNDS = 5 };
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        device_wait(r->device);
        over_ranks(r, COMM_MAX, 0);
        const int64_t start = clock_ns();
        device_copy(r->device, r->out, r->in, (size_t)r->options->most);
        device_wait(r->device);
        const double s = over_ranks(r, COMM_MAX, (double)(clock_ns() - start) * 1e-9),
                     rate = (double)r->options->most * 1e-9 / s;
        if (rate > best) best = rate;
    }
    return best;
}

static void measure_all(Rank *r) {
    const BenchComm *o = r->options;
    for (int c = 0; c < N_COLLECTIVES; c++)
        for (int t = 0; text_list_selects(&o->collectives, COLLECTIVES[c].name) && t < N_EXACT_TYPES; t++) {
            if (!text_list_selects(&o->types, EXACT_TYPES[t].name)) continue;
            int64_t last = 0;
            for (double bytes = (double)o->least; bytes <= (double)o->most; bytes *= (double)o->factor) {
                const int64_t unit = unit_of(&COLLECTIVES[c], &EXACT_TYPES[t], r->group.size),
                              count = (int64_t)bytes / unit;
                if (count == last) continue;
                last = count;
                const Exact x = {.comm = r->comm,
                                 .group = r->group,
                                 .device = r->device,
                                 .in = r->in,
                                 .out = r->out,
                                 .of = &COLLECTIVES[c],
                                 .type = &EXACT_TYPES[t],
                                 .count = count};
                measure(r, &(Row){x, count * unit});
            }
        }
}

/* ---- ranks ---- */

typedef struct Run {
    const BenchComm *options;
    json_t *result; /* set only on rank 0 */
    int64_t wrong;
} Run;

static void print_head(const Rank *r, const char *device, const char *transport) {
    printf("device: %s\ntransport: %s\nranks: %d", device, transport, comm_world(r->comm));
    if (r->group.size < comm_world(r->comm))
        printf(", in %d concurrent groups of %d", comm_world(r->comm) / r->group.size, r->group.size);
    printf("\n\n%53s %36s %26s\n", "", "out of place        ", "in place");
    printf("%-14s %12s %12s %6s %6s", "collective", "bytes", "count", "type", "redop");
    for (int i = 0; i < 2; i++) printf(" %10s %8s %8s %7s", "time", "algbw", "busbw", "wrong");
    printf("\n%-14s %12s %12s %6s %6s", "", "(B)", "(elements)", "", "");
    for (int i = 0; i < 2; i++) printf(" %10s %8s %8s %7s", "(us)", "(GB/s)", "(GB/s)", "");
    printf("\n");
}

static void finish(const Rank *r, Run *run, const char *device, const char *transport) {
    const double roof = copy_roof(r);
    const int of_host = comm_ranks_of_host(r->comm);
    if (!r->prints) return;
    printf("\nhighest busbw in GB/s:");
    for (int c = 0, n = 0; c < N_COLLECTIVES; c++)
        if (r->best[c] > 0) printf("%s %s %.2f", n++ ? "," : "", COLLECTIVES[c].name, r->best[c]);
    printf("\nroof: a memory copy reaches %.2f GB/s per rank when all ranks copy at the same time\n", roof);
    run->wrong = r->wrong;
    char how[BENCH_TRANSPORT];
    run->result =
        bench_head("comm", device, comm_world(r->comm), bench_transport(r->comm, transport, how), 1);
    json_object_update_new(run->result, json_pack("{s:i, s:i, s:f, s:O}", "group", r->group.size, "per_host",
                                                  of_host < r->group.size ? of_host : r->group.size,
                                                  "copy_gbytes", roof, "rows", r->rows));
}

/* Checks that all ranks' buffers fit into their devices' memory. A reduction in host memory between processes needs a
 * third buffer. */
static Err check_memory(const Rank *r) {
    const size_t available = device_memory_available(r->device), most = (size_t)r->options->most;
    const bool discrete = device_is_discrete(r->device);
    const MemoryPlan own = {.part = {[MEMORY_inputs] = most * (comm_processes() > 1 && !discrete ? 3 : 2)},
                            .discrete = discrete};
    MemoryPlan all = memory_plan_together(&own, r->device, r->comm);
    if (comm_processes() > 1) all = memory_plan_of_host(&all, r->comm);
    const size_t need = memory_plan_total(&all);
    if (need <= available) return ERR_OK;
    return err_user("the ranks' buffers need %s of memory, but only %s are available: lower --max-bytes",
                    bytes_text((double)need).s, bytes_text((double)available).s);
}

static Err run_rank(void *arg, Comm *comm) {
    Run *run = arg;
    const BenchComm *o = run->options;
    char device[200], transport[200];
    Config one_thread = *o->config;
    one_thread.derived.cpu_threads = 1;
    Group all = comm_everyone(comm);
    Rank r = {.options = o,
              .comm = comm,
              .group = o->group ? group_inner(&all, (int)o->group) : all,
              .prints = rank_is_printer(comm)};
    ERR_RETURN(rank_open_device(&one_thread, comm, &r.device, transport));
    const Err e = comm_agree(comm, check_memory(&r));
    if (e.code) {
        rank_free_device(comm, r.device);
        return e;
    }
    r.rows = json_array();
    r.in = device_alloc(r.device, (size_t)o->most, "a benchmark's buffers");
    r.out = device_alloc(r.device, (size_t)o->most, "a benchmark's buffers");
    device_describe(r.device, device, sizeof device);
    if (r.prints) print_head(&r, device, transport);
    measure_all(&r);
    finish(&r, run, device, transport);
    device_release(r.device, r.in, (size_t)o->most);
    device_release(r.device, r.out, (size_t)o->most);
    rank_free_device(comm, r.device);
    json_decref(r.rows);
    return ERR_OK;
}

/* ---- options ---- */

/* Checks that at least one of the sizes to measure is large enough for each collective and type. */
static Err check_sizes(const BenchComm *o) {
    const int64_t members = o->group ? o->group : config_ranks(o->config);
    double largest = (double)o->least;
    while (largest * (double)o->factor <= (double)o->most) largest *= (double)o->factor;
    for (int c = 0; c < N_COLLECTIVES; c++)
        for (int t = 0; text_list_selects(&o->collectives, COLLECTIVES[c].name) && t < N_EXACT_TYPES; t++) {
            const int64_t unit = unit_of(&COLLECTIVES[c], &EXACT_TYPES[t], members);
            if (!text_list_selects(&o->types, EXACT_TYPES[t].name) || (int64_t)largest >= unit) continue;
            return err_user("%s of %s on %lld ranks needs at least %s, but the largest size to measure is "
                            "%.0f: raise --max-bytes",
                            COLLECTIVES[c].name, EXACT_TYPES[t].name, (long long)members,
                            amount(unit, "byte").s, largest);
        }
    return ERR_OK;
}

static Err check_options(const BenchComm *o) {
    const char *collectives[N_COLLECTIVES], *types[N_EXACT_TYPES];
    for (int i = 0; i < N_COLLECTIVES; i++) collectives[i] = COLLECTIVES[i].name;
    for (int i = 0; i < N_EXACT_TYPES; i++) types[i] = EXACT_TYPES[i].name;
    ERR_RETURN(text_list_check(&o->collectives, "collective", collectives, N_COLLECTIVES));
    ERR_RETURN(text_list_check(&o->types, "dtype", types, N_EXACT_TYPES));
    ERR_RETURN(check_sizes(o));
    return o->json ? file_check_target(o->json) : ERR_OK;
}

Err bench_comm_measure(const BenchComm *o, json_t **result) {
    Run run = {.options = o};
    ERR_RETURN(check_options(o));
    ERR_RETURN(world_run(o->config, run_rank, &run));
    *result = run.result;
    return run.wrong ? err_failed("%lld elements are wrong", (long long)run.wrong) : ERR_OK;
}

Err bench_comm(const BenchComm *o) {
    json_t *result = NULL;
    Err e = bench_comm_measure(o, &result);
    const Err written = result ? bench_write(o->json, result) : ERR_OK;
    if (!e.code) e = written;
    json_decref(result);
    return e;
}
