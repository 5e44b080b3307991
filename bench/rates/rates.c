#include "bench/rates/rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/isolated.h"
#include "base/mem.h"
#include "base/statistics.h"
#include "bench/comm/comm.h"
#include "bench/head.h"
#include "bench/rates/grid.h"
#include "kernels/attr.h"
#include "measure/op_cost.h"
#include "measure/op_runner.h"
#include "measure/peaks.h"
#include "measure/rates.h"

enum { TYPES = 3, CPU_BYTES = 1 << 26, SKIPPED = -1 };
static const char *const NAMES[TYPES] = {"bf16", "fp32", "fp16"};
static const DType TYPE[TYPES] = {BF16, F32, F16};

typedef enum ItemKind { ITEM_CALL, ITEM_COPY_AND_LAUNCH, ITEM_HOST_COPIES, ITEM_LARGE_GEMM } ItemKind;
enum { COPIES = 4 }; /* sizes of copies between host memory and the device */
static const size_t COPY_BYTES[COPIES] = {64 << 10, 1 << 20, 16 << 20, 256 << 20};
typedef struct Item {
    ItemKind kind;
    KernelCase c;
    DType type;
    bool any_order; /* of the device */
    Rate rate;      /* name and size of the call */
} Item;

/* Results. The processes that measure share this memory with the process that writes the file. */
typedef struct Shared {
    Err error;
    char device[200];
    bool discrete;
    int threads, at; /* at: the item that is being measured */
    int64_t start;   /* when its measurement began */
    double copy, launch_ns, gemm[DTYPES];
    double host_ns[2][COPIES]; /* of copies to the device, and to the host */
    double ns[];               /* of each call; SKIPPED if it failed */
} Shared;

typedef struct Session {
    const BenchRates *options;
    regex_t filter;
    Arena *arena; /* attributes of calls */
    Item *item;   /* [n] */
    int n, room;
    DType type;  /* of the items that are added */
    double each; /* seconds per call */
    Shared *shared;
    json_t *skipped, *comm; /* comm: the result of bench comm, or NULL */
    int64_t begin, written; /* times */
} Session;

/* ---- a call ---- */

/* Returns whether a row in its size for GPUs is measured. A CPU measures only ops without FLOPs, in less memory. */
static bool fits(const Session *s, OpNumber op, const Call *c) {
    return s->options->device != DEVICE_CPU || (work_flops(op, c) <= 0 && work_bytes(op, c) <= CPU_BYTES);
}

static void add_item(Session *s, Item x) {
    if (s->n == s->room) s->item = mem_grow(s->item, (size_t)(s->room = 2 * s->room + 256), sizeof x);
    s->item[s->n++] = x;
}

static bool is_added(const Session *s, const Rate *r) {
    for (const Item *x = s->item; x < s->item + s->n; x++)
        if (!strcmp(x->rate.name, r->name) && !memcmp(x->rate.size, r->size, sizeof r->size)) return true;
    return false;
}

/* Adds a call, unless its rate is already added. If the rate depends on the order of sums, adds it with both. */
static void add_sized(Session *s, const KernelCase *c, bool large) {
    Tensor operand[CALL_IN + CALL_OUT];
    if (regexec(&s->filter, OPS[c->op].name, 0, NULL, 0)) return;
    for (int ordered = 0; ordered <= s->options->deterministic; ordered++) {
        Device device = {.any_order = !ordered};
        Call call = {.attr = c->attr, .device = &device};
        for (int i = 0; i < CALL_IN + CALL_OUT; i++) {
            const CaseOperand *o = i < CALL_IN ? &c->in[i] : &c->out[i - CALL_IN];
            if (!o->ndim) continue;
            operand[i] = case_tensor(o, s->type);
            *(i < CALL_IN ? &call.in[i] : &call.out[i - CALL_IN]) = &operand[i];
        }
        const Item x = {ITEM_CALL, *c, s->type, !ordered, rate_of(&OPS[c->op], &call)};
        if (x.rate.size[0] > 0 && (!large || fits(s, c->op, &call)) && !is_added(s, &x.rate)) add_item(s, x);
    }
}

static void add(void *arg, const KernelCase *c) { add_sized(arg, c, false); }

/* ---- all ---- */

/* Adds all calls of one type. */
static void add_type(Session *s) {
    for (int i = 0; i < kernel_case_count(); i++) {
        add(s, kernel_case(CASE_TEST, i)), add(s, kernel_case(CASE_CPU, i));
        add_sized(s, kernel_case(CASE_GPU, i), true);
    }
    rates_grid(&(GridCalls){add, s, s->arena, s->type, s->options->device != DEVICE_CPU});
}

static Err add_all(Session *s) {
    const bool cpu = s->options->device == DEVICE_CPU;
    const int order[TYPES] = {cpu, !cpu, 2}; /* a CPU's main type is F32 */
    ERR_RETURN(text_list_check(&s->options->types, "dtype", NAMES, TYPES));
    for (int i = 0; i < TYPES; i++) {
        const int t = order[i];
        if (s->options->types.count ? !text_list_selects(&s->options->types, NAMES[t]) : TYPE[t] == F16)
            continue;
        s->type = TYPE[t];
        if (!s->n) {
            add_item(s, (Item){.kind = ITEM_COPY_AND_LAUNCH, .type = s->type});
            add_item(s, (Item){.kind = ITEM_HOST_COPIES, .type = s->type});
        }
        add_item(s, (Item){.kind = ITEM_LARGE_GEMM, .type = s->type});
        add_type(s);
    }
    s->each = s->options->seconds / s->n;
    for (int i = 0; i < s->n; i++)
        if (s->item[i].kind == ITEM_CALL) return ERR_OK;
    return bench_filter_unmatched(s->options->filter);
}

/* ---- measuring, in a separate process ---- */

static Err open_device(const Session *s, DType type, Device **out) {
    const BenchRates *o = s->options;
    const DeviceSpec spec = {.kind = o->device,
                             .threads = (int)o->threads,
                             .gemm_tuning = dtype_is_16bit(type) ? o->tuning : GEMM_TUNING_OFF};
    device_free(*out);
    return device_open(&spec, out);
}

/* Measures the host's time for starting an op: the time of calls that do not wait for the device. */
static double launch_time(Device *d) {
    enum { CALLS = 1000 };
    static const FillAttr ATTR = {0};
    const KernelCase c = {.op = OP_fill, .attr = &ATTR, .out = {{.dtype = F32, .ndim = 1, .dim = {1}}}};
    if (!device_is_discrete(d)) return 0;
    BenchCalls *b = bench_calls_new(d, &c, F32);
    for (int i = 0; i < CALLS; i++) bench_calls_run(b);
    device_wait(d);
    const int64_t start = clock_ns();
    for (int i = 0; i < CALLS; i++) bench_calls_run(b);
    const double ns = (double)(clock_ns() - start) / CALLS;
    device_wait(d);
    bench_calls_free(b);
    return ns;
}

/* Measures copies from pinned host memory to the device, and back. */
static void host_copies(Device *d, double ns[2][COPIES]) {
    enum { ROUNDS = 5 };
    const size_t most = COPY_BYTES[COPIES - 1];
    char *host = device_host_alloc(d, most, "copies"), *at = device_alloc(d, most, "copies");
    memset(host, 1, most);
    for (int i = 0; i < 2 * COPIES; i++) {
        const bool back = i / COPIES;
        const size_t bytes = COPY_BYTES[i % COPIES], copies = (most / bytes + 15) / 16;
        double round[ROUNDS];
        for (int k = -1; k < ROUNDS; k++) { /* the first round is a warm-up */
            const int64_t start = clock_ns();
            for (size_t n = 0; n < copies; n++) device_copy(d, back ? host : at, back ? at : host, bytes);
            device_wait(d);
            if (k >= 0) round[k] = (double)(clock_ns() - start) / (double)copies;
        }
        ns[back][i % COPIES] = median_of(round, ROUNDS);
    }
    device_release(d, at, most), device_host_release(d, host, most);
}

static void measure_item(const Session *s, const Item *x, Device *d) {
    Shared *out = s->shared;
    if (x->kind == ITEM_COPY_AND_LAUNCH) {
        device_describe(d, out->device, sizeof out->device);
        out->discrete = device_is_discrete(d), out->threads = d->pool ? pool_threads(d->pool) : 0;
        out->copy = bench_roof_copy(d), out->launch_ns = launch_time(d);
    } else if (x->kind == ITEM_HOST_COPIES) {
        host_copies(d, out->host_ns);
    } else if (x->kind == ITEM_LARGE_GEMM) {
        out->gemm[x->type] = bench_roof_gemm(d, x->type);
    } else {
        BenchCalls *b = bench_calls_new(d, &x->c, x->type);
        out->ns[x - s->item] = bench_calls_time(b, s->each).ns;
        bench_calls_free(b);
    }
}

static bool is_over(const Session *s) {
    return s->options->most > 0 && (double)(clock_ns() - s->begin) > s->options->most * 1e9;
}

/* Measures items from `at`, until all are measured, the time is over or this process fails. */
static void measure(void *arg) {
    const Session *s = arg;
    Shared *out = s->shared;
    Device *d = NULL;
    for (int type = -1; out->at < s->n; out->at++) {
        const Item *x = &s->item[out->at];
        out->start = clock_ns();
        if (out->ns[out->at] == SKIPPED) continue;
        if (type != (int)x->type) out->error = open_device(s, x->type, &d), type = (int)x->type;
        if (out->error.code || is_over(s)) return;
        d->any_order = x->any_order;
        measure_item(s, x, d);
    }
    device_free(d);
}

/* ---- the file ---- */

/* Returns the rates that are known so far. The caller releases them. */
static Rates rates_now(const Session *s) {
    const Shared *x = s->shared;
    Rates r = {.tile = x->discrete ? 128 : 8, .copy = x->copy, .launch_ns = x->launch_ns};
    memcpy(r.gemm, x->gemm, sizeof r.gemm);
    r.rate = mem_zero((size_t)s->n, sizeof *r.rate);
    for (int i = 0; i < s->n; i++)
        if (x->ns[i] > 0) r.rate[r.n] = s->item[i].rate, r.rate[r.n++].ns = x->ns[i];
    for (int i = 0; i < 2 * COPIES; i++)
        if (x->host_ns[i / COPIES][i % COPIES] > 0)
            links_append(&r.links,
                         (LinkTime){i / COPIES ? LINK_TO_HOST : LINK_TO_DEVICE, 1, 1,
                                    (double)COPY_BYTES[i % COPIES], x->host_ns[i / COPIES][i % COPIES]});
    if (s->comm) (void)links_add("bench comm", s->comm, &r.links); /* a valid result */
    rates_sort(&r);
    return r;
}

static Err write_rates(const Session *s) {
    Rates r = rates_now(s);
    json_t *all = bench_head("rates", s->shared->device, 1, "none", s->shared->threads),
           *rates = rates_json(&r);
    json_object_update(all, rates);
    json_object_set(all, "skipped", s->skipped);
    const Err e = bench_write(s->options->json, all);
    json_decref(rates), json_decref(all);
    rates_free(&r);
    return e;
}

/* ---- the process that writes the file ---- */

static const char *describe(const Item *x, char text[RATE_NAME + 80]) {
    static const char *const WHAT[] = {[ITEM_COPY_AND_LAUNCH] = "copy and launch",
                                       [ITEM_HOST_COPIES] = "copies between host and device",
                                       [ITEM_LARGE_GEMM] = "large GEMM"};
    int n = sprintf(text, "%s", x->kind == ITEM_CALL ? x->rate.name : WHAT[x->kind]);
    if (x->kind == ITEM_LARGE_GEMM) sprintf(text + n, " %s", dtype_name(x->type));
    for (int i = 0; i < x->rate.sizes; i++)
        n += sprintf(text + n, "%s%.0f", i ? " x " : " ", x->rate.size[i]);
    return text;
}

/* Runs about every millisecond, while the other process measures. Returns whether an item exceeds its time. */
static bool watch(void *arg) {
    enum { STEP_S = 10, MOST_S = 60 };
    Session *s = arg;
    const Shared *x = s->shared;
    const int64_t now = clock_ns();
    if (now - s->written > STEP_S * INT64_C(1000000000) && x->at < s->n) {
        char text[RATE_NAME + 80];
        s->written = now;
        printf("%d of %d, %.0f s: %s\n", x->at, s->n, (double)(now - s->begin) * 1e-9,
               describe(&s->item[x->at], text));
        fflush(stdout);
        if (*x->device) (void)write_rates(s); /* the last write reports errors */
    }
    return now - x->start > MOST_S * INT64_C(1000000000);
}

/* Skips the item that failed and, if it is the op's second failure, all its remaining calls. */
static void skip(Session *s, const Isolated *end) {
    Shared *x = s->shared;
    char text[RATE_NAME + 80], line[RATE_NAME + 480];
    const int at = x->at;
    const Item *failed = &s->item[at];
    const Blame why = isolated_blame(end);
    bool again = false;
    snprintf(line, sizeof line, "%s: %s", describe(failed, text),
             end->end == JOB_STOPPED ? "not finished after 60 s"
             : *why.line             ? why.line
                                     : "the process ended");
    printf("skipped %s\n", line), fflush(stdout);
    json_array_append_new(s->skipped, json_string(line));
    x->ns[at] = SKIPPED;
    for (int i = 0; i < s->n && *failed->rate.name; i++) {
        if (strcmp(s->item[i].rate.name, failed->rate.name)) continue;
        again |= i < at && x->ns[i] == SKIPPED;
        if (i > at && again) x->ns[i] = SKIPPED;
    }
    if (again) printf("skipped all further calls of %s\n", failed->rate.name);
    while (x->at < s->n && x->ns[x->at] == SKIPPED) x->at++;
}

static void leave_out(Session *s) {
    char line[120];
    snprintf(line, sizeof line, "%d of %d measurements, because the limit of %.0f s was reached",
             s->n - s->shared->at, s->n, s->options->most);
    printf("skipped %s: raise --most-seconds\n", line);
    json_array_append_new(s->skipped, json_string(line));
}

static Err measure_all(Session *s) {
    const JobWatch w = {watch, s};
    Shared *x = s->shared;
    s->begin = s->written = clock_ns();
    while (x->at < s->n) {
        x->start = clock_ns();
        Isolated end = isolated_run(measure, s, INFINITY, &w);
        if (x->error.code) return x->error;
        if (end.end != JOB_DONE) skip(s, &end);
        str_free(&end.said);
        if (end.end == JOB_DONE) break;
    }
    if (!x->at) return err_user("no measurement finished in --most-seconds %g: raise it", s->options->most);
    if (x->at < s->n) leave_out(s);
    if (!*x->device)
        return err_infra("the device does not work: %s", json_string_value(json_array_get(s->skipped, 0)));
    return write_rates(s);
}

/* Measures collectives as bench comm does. This process may then use GPUs, because it starts no other process. */
static Err measure_comm(Session *s) {
    const char *type = "fp32";
    const BenchComm o = {.config = s->options->config,
                         .types = {&type, 1},
                         .least = 1 << 10,
                         .most = s->options->device == DEVICE_CPU ? 16 << 20 : 256 << 20,
                         .factor = 4,
                         .seconds = 0.05};
    ERR_RETURN(bench_comm_measure(&o, &s->comm));
    return write_rates(s);
}

Err bench_rates(const BenchRates *o) {
    Session s = {.options = o};
    ERR_RETURN(bench_filter(o->filter, &s.filter));
    s.arena = arena_new(), s.skipped = json_array();
    Err e = o->json ? file_check_target(o->json) : ERR_OK;
    if (!e.code) e = add_all(&s);
    const size_t bytes = sizeof *s.shared + (size_t)s.n * sizeof *s.shared->ns;
    if (!e.code) s.shared = isolated_memory(bytes), e = measure_all(&s);
    if (!e.code && i64_or(o->config->ranks, 1) > 1) e = measure_comm(&s);
    if (!e.code)
        printf("%s: %d measurements in %.0f s; copy %.1f GB/s, host %.1f us per op\n", s.shared->device,
               s.shared->at, (double)(clock_ns() - s.begin) * 1e-9, s.shared->copy,
               s.shared->launch_ns * 1e-3);
    isolated_free(s.shared, bytes);
    json_decref(s.skipped), json_decref(s.comm);
    arena_free(s.arena);
    free(s.item);
    regfree(&s.filter);
    return e;
}
