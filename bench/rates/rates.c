#include "bench/rates/rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "bench/head.h"
#include "kernels/attr.h"
#include "measure/op_cost.h"
#include "measure/op_runner.h"
#include "measure/peaks.h"
#include "measure/rates.h"

enum { TYPES = 2, CPU_BYTES = 1 << 29 };
static const char *const NAMES[TYPES] = {"bf16", "fp32"};
static const DType TYPE[TYPES] = {BF16, F32};

typedef struct Session {
    const BenchRates *options;
    Device *device;
    regex_t filter;
    bool counts;   /* count calls instead of measuring them */
    int64_t calls; /* number of counted calls */
    double each;   /* seconds per call */
    DType type;
    Rates rates;
    int room;
} Session;

/* ---- a call ---- */

/* Returns whether a row in its size for GPUs is measured. A CPU measures only ops without FLOPs, in less memory. */
static bool fits(const Session *s, const KernelCase *c) {
    Tensor operand[CALL_IN + CALL_OUT];
    Call call = {.attr = c->attr};
    for (int i = 0; i < CALL_IN + CALL_OUT; i++) {
        const CaseOperand *o = i < CALL_IN ? &c->in[i] : &c->out[i - CALL_IN];
        if (!o->ndim) continue;
        operand[i] = case_tensor(o, s->type);
        *(i < CALL_IN ? &call.in[i] : &call.out[i - CALL_IN]) = &operand[i];
    }
    return device_is_discrete(s->device) ||
           (work_flops(c->op, &call) <= 0 && work_bytes(c->op, &call) <= CPU_BYTES);
}

static void add(Session *s, const KernelCase *c) {
    if (regexec(&s->filter, OPS[c->op].name, 0, NULL, 0)) return;
    if (s->counts) {
        s->calls++;
        return;
    }
    BenchCalls *b = bench_calls_new(s->device, c, s->type);
    Rate r = rate_of(&OPS[c->op], bench_calls_shape(b));
    r.ns = bench_calls_time(b, s->each).ns;
    bench_calls_free(b);
    if (r.size[0] <= 0) return;
    if (s->rates.n == s->room)
        s->rates.rate = mem_grow(s->rates.rate, (size_t)(s->room = 2 * s->room + 256), sizeof r);
    s->rates.rate[s->rates.n++] = r;
}

/* ---- the grids ---- */

static CaseOperand operand(int ndim, const int64_t *dim) {
    CaseOperand o = {.dtype = CASE_STORAGE, .ndim = ndim};
    memcpy(o.dim, dim, (size_t)ndim * sizeof *dim);
    return o;
}

static CaseOperand matrix(int64_t rows, int64_t columns) { return operand(2, (int64_t[]){rows, columns}); }

static CaseOperand gradient(int64_t rows, int64_t columns) {
    CaseOperand o = matrix(rows, columns);
    o.dtype = F32, o.updated = o.main_grad = true;
    return o;
}

/* Adds the three GEMMs of a linear layer, each with the result [m, n] and sums of k terms. */
static void add_linear(Session *s, int64_t m, int64_t n, int64_t k) {
    static const LinearAttr ATTR = {.fixed_order = false};
    add(s, &(KernelCase){
               .op = OP_linear, .attr = &ATTR, .in = {matrix(m, k), matrix(n, k)}, .out = {matrix(m, n)}});
    add(s,
        &(KernelCase){
            .op = OP_linear_dgrad, .attr = &ATTR, .in = {matrix(m, k), matrix(k, n)}, .out = {matrix(m, n)}});
    add(s, &(KernelCase){.op = OP_linear_wgrad,
                         .attr = &ATTR,
                         .in = {matrix(k, m), matrix(k, n)},
                         .out = {gradient(m, n)}});
}

/* The same for `experts` experts that receive `rows` rows each. */
static void add_experts(Session *s, int64_t experts, int64_t rows, int64_t n, int64_t k) {
    static const LinearAttr ATTR = {.fixed_order = false};
    const int64_t all = experts * rows;
    CaseOperand offsets = operand(1, (int64_t[]){experts + 1});
    offsets.dtype = I64, offsets.content = CONTENT_OFFSETS, offsets.range = all;
    add(s, &(KernelCase){.op = OP_grouped_linear,
                         .attr = &ATTR,
                         .in = {matrix(all, k), matrix(experts * n, k), offsets},
                         .out = {matrix(all, n)}});
    add(s, &(KernelCase){.op = OP_grouped_linear_dgrad,
                         .attr = &ATTR,
                         .in = {matrix(all, k), matrix(experts * k, n), offsets},
                         .out = {matrix(all, n)}});
    add(s, &(KernelCase){.op = OP_grouped_linear_wgrad,
                         .attr = &ATTR,
                         .in = {matrix(all, n), matrix(all, k), offsets},
                         .out = {gradient(experts * n, k)}});
}

static void add_attention(Session *s, int64_t length, int64_t heads, int64_t width, bool causal) {
    const AttentionAttr attr = {
        .scale = 1 / sqrt((double)width), .window_left = WINDOW_OFF, .window_right = causal ? 0 : WINDOW_OFF};
    const CaseOperand x = operand(5, (int64_t[]){length, 1, heads, 1, width});
    CaseOperand sums = operand(4, (int64_t[]){1, heads, 1, length});
    sums.dtype = CASE_PRECISE;
    add(s, &(KernelCase){.op = OP_attention, .attr = &attr, .in = {x, x, x}, .out = {x, sums}});
    add(s,
        &(KernelCase){.op = OP_attention_grad, .attr = &attr, .in = {x, x, x, x, x, sums}, .out = {x, x, x}});
}

typedef struct List {
    int n;
    int64_t at[4];
} List;
typedef struct Grid {
    List side, rows, length, heads;
} Grid;
static const Grid SMALL = {{3, {64, 512, 2048}}, {2, {16, 128}}, {3, {64, 256, 1024}}, {2, {4, 16}}},
                  LARGE = {{4, {128, 1024, 4096, 16384}},
                           {3, {64, 1024, 8192}},
                           {3, {512, 2048, 8192}},
                           {2, {16, 128}}};

static void add_grid(Session *s, const Grid *g) {
    const int64_t *side = g->side.at;
    const int n = g->side.n;
    for (int i = 0; i < n * n * n; i++) add_linear(s, side[i / n / n], side[i / n % n], side[i % n]);
    for (int64_t experts = 8; experts <= 64; experts *= 8)
        for (int i = 0; i < 2 * g->rows.n; i++)
            add_experts(s, experts, g->rows.at[i / 2], side[1], side[1 + i % 2]);
    for (int i = 0; i < 4 * g->length.n * g->heads.n; i++) {
        const int kind = i % 4, at = i / 4;
        add_attention(s, g->length.at[at / g->heads.n], g->heads.at[at % g->heads.n], kind / 2 ? 128 : 64,
                      kind % 2);
    }
}

/* ---- all ---- */

static Err open_device(Session *s) {
    const BenchRates *o = s->options;
    const DeviceSpec spec = {.kind = o->device,
                             .threads = (int)o->threads,
                             .any_order = !o->deterministic,
                             .gemm_tuning = dtype_is_16bit(s->type) ? o->tuning : GEMM_TUNING_OFF};
    device_free(s->device);
    return device_open(&spec, &s->device);
}

/* Adds all calls of one type. Rows whose operands have fixed types are measured again, which makes their mean better. */
static void add_type(Session *s) {
    for (int i = 0; i < kernel_case_count(); i++) {
        const KernelCase *largest = kernel_case(CASE_GPU, i);
        add(s, kernel_case(CASE_TEST, i)), add(s, kernel_case(CASE_CPU, i));
        if (fits(s, largest)) add(s, largest);
    }
    add_grid(s, device_is_discrete(s->device) ? &LARGE : &SMALL);
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

static Err measure(Session *s, const bool wanted[TYPES]) {
    for (int pass = 0; pass < 2; pass++) {
        s->counts = !pass;
        for (int t = 0; t < TYPES; t++) {
            if (!wanted[t]) continue;
            s->type = TYPE[t];
            ERR_RETURN(open_device(s));
            if (pass) s->rates.gemm[s->type] = bench_roof_gemm(s->device, s->type);
            add_type(s);
        }
        s->each = s->options->seconds / fmax((double)s->calls, 1);
    }
    s->rates.copy = bench_roof_copy(s->device);
    s->rates.launch_ns = launch_time(s->device);
    s->rates.tile = device_is_discrete(s->device) ? 128 : 8;
    return ERR_OK;
}

static Err write_rates(Session *s) {
    char described[200];
    const int threads = s->device->pool ? pool_threads(s->device->pool) : 0;
    json_t *all = bench_head("rates", device_describe(s->device, described, sizeof described), 1, "none",
                             threads),
           *rates = rates_json(&s->rates);
    json_object_update(all, rates);
    json_decref(rates);
    printf("%s: %d rates, copy %.1f GB/s, host %.1f us per op\n", described, s->rates.n, s->rates.copy,
           s->rates.launch_ns * 1e-3);
    const Err e = bench_write(s->options->json, all);
    json_decref(all);
    return e;
}

Err bench_rates(const BenchRates *o) {
    Session s = {.options = o};
    bool wanted[TYPES];
    ERR_RETURN(text_list_check(&o->types, "dtype", NAMES, TYPES));
    for (int t = 0; t < TYPES; t++) wanted[t] = text_list_selects(&o->types, NAMES[t]);
    ERR_RETURN(bench_filter(o->filter, &s.filter));
    Err e = o->json ? file_check_target(o->json) : ERR_OK;
    if (!e.code) e = measure(&s, wanted);
    if (!e.code) rates_sort(&s.rates), e = write_rates(&s);
    device_free(s.device);
    rates_free(&s.rates);
    regfree(&s.filter);
    return e;
}
