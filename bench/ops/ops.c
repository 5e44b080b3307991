#include "bench/ops/ops.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "bench/head.h"
#include "bench/ops/cases.h"
#include "bench/ops/operands.h"
#include "measure/op_cost.h"
#include "measure/peaks.h"
#include "models/option_map.h"

/* The types in the order in which they are measured: types for training first, slow types last. */
enum { TYPES = 4 };
static const struct {
    const char *name;
    DType type;
} NAMED[TYPES] = {{"bf16", BF16}, {"fp16", F16}, {"fp32", F32}, {"fp64", F64}};

typedef struct Session {
    const BenchOps *options;
    Device *device;
    regex_t filter;
    bool wanted[TYPES];
    char described[200];      /* the description of the device */
    double copy, gemm[TYPES]; /* roofline limits in GB/s and GFLOP/s, or 0 if not measured yet */
    json_t *rows;
    bool complete;
} Session;

/* ---- options ---- */

static Err choose_types(Session *s) {
    const TextList *types = &s->options->types;
    const char *names[TYPES];
    for (int t = 0; t < TYPES; t++) names[t] = NAMED[t].name;
    for (int t = 0; t < TYPES; t++) s->wanted[t] = text_list_selects(types, names[t]);
    return text_list_check(types, "dtype", names, TYPES);
}

static bool is_chosen(const Session *s, int number) {
    return regexec(&s->filter, bench_case_name(number), 0, NULL, 0) == 0;
}

static Err choose_cases(Session *s) {
    ERR_RETURN(bench_filter(s->options->filter, &s->filter));
    for (int i = 0; i < bench_case_count(); i++)
        if (is_chosen(s, i)) return ERR_OK;
    regfree(&s->filter);
    return bench_filter_unmatched(s->options->filter);
}

/* ---- measuring ---- */

/* Returns the name of the attention implementation that runs, or "" for other ops and on the CPU. */
static const char *path_of(OpNumber op, const Call *c) {
    const char *path = op == OP_attention || op == OP_attention_grad ? call_path(&OPS[op], c) : NULL;
    return path ? path : "";
}

static json_t *shape_of(const Call *c) {
    json_t *shape = json_array();
    for (int i = 0; c->in[0] && i < c->in[0]->ndim; i++)
        json_array_append_new(shape, json_integer(c->in[0]->dim[i]));
    return shape;
}

/* Returns the JSON members that identify a row's work. */
static json_t *row_facts(const Session *s, int number, int t) {
    Str operands = {0};
    bench_case_operands(number, s->device, NAMED[t].type, &operands);
    json_t *row = json_pack("{s:s, s:s, s:s, s:s}", "name", bench_case_name(number), "op",
                            OPS[bench_case_op(number)].name, "type", NAMED[t].name, "operands", operands.s);
    str_free(&operands);
    return row;
}

static void report(Session *s, int number, int t, const Call *c, const BenchTime *time) {
    const OpNumber op = bench_case_op(number);
    const double flops = work_flops(op, c), bytes = work_bytes(op, c), ns = time->ns;
    const bool multiplies = flops > 0;
    if (multiplies && s->gemm[t] == 0) s->gemm[t] = bench_roof_gemm(s->device, NAMED[t].type);
    const double rate = (multiplies ? flops : bytes) / ns, roof = multiplies ? s->gemm[t] : s->copy;
    printf("%-28s %-5s %12.1f us %9.1f MB %9.1f %-7s %6.1f %%  %s\n", bench_case_name(number), NAMED[t].name,
           ns * 1e-3, bytes * 1e-6, rate, multiplies ? "GFLOP/s" : "GB/s", rate / roof * 100, path_of(op, c));
    fflush(stdout);
    json_t *row = row_facts(s, number, t);
    json_object_update_new(row, json_pack("{s:o, s:f, s:f, s:f, s:f, s:i, s:I}", "shape", shape_of(c), "us",
                                          ns * 1e-3, "megabytes", bytes * 1e-6,
                                          multiplies ? "gflops" : "gbytes", rate, "of_roof", rate / roof,
                                          "rounds", time->rounds, "calls", (json_int_t)time->calls));
    json_t *samples = json_array();
    for (int i = 0; i < time->rounds; i++)
        json_array_append_new(samples, json_real(time->round_ns[i] * 1e-3));
    json_object_set_new(row, "samples_us", samples);
    if (*path_of(op, c)) json_object_set_new(row, "path", json_string(path_of(op, c)));
    json_array_append_new(s->rows, row);
}

static void measure(Session *s, int number, int t) {
    const DType type = NAMED[t].type;
    BenchCalls *b = bench_case_open(number, s->device, type);
    const BenchTime time = bench_calls_time(b, s->options->seconds);
    report(s, number, t, bench_calls_shape(b), &time);
    bench_calls_free(b);
}

/* ---- results ---- */

static const char *tuning_name(GemmTuning tuning) {
    int i = 0;
    while (map_gemm_tuning((GemmTuningOption)i) != tuning) i++;
    return GemmTuningOption_spellings[i];
}

static json_t *facts_json(const Session *s, json_t *rows) {
    const int threads = s->device->pool ? pool_threads(s->device->pool) : 0;
    json_t *facts = bench_head("ops", s->described, 1, "none", threads);
    json_object_update_new(facts, json_pack("{s:b, s:s, s:O}", "deterministic", s->options->deterministic,
                                            "gemm_tuning", tuning_name(s->options->tuning), "rows", rows));
    return facts;
}

static json_t *result_json(const Session *s) {
    json_t *roofs = json_pack("{s:f}", "copy_gbytes", s->copy);
    for (int t = 0; t < TYPES; t++)
        if (s->gemm[t] > 0) json_object_set_new(roofs, NAMED[t].name, json_real(s->gemm[t]));
    json_t *result = facts_json(s, s->rows);
    json_object_update_new(result, json_pack("{s:b, s:f, s:o}", "complete", (int)s->complete, "seconds",
                                             s->options->seconds, "roofs", roofs));
    return result;
}

static Err write_json(const Session *s) {
    json_t *all = result_json(s);
    const Err e = bench_write(s->options->json, all);
    json_decref(all);
    return e;
}

/* Writes the results so far, so that the file contains them even if the run is interrupted. A stream (such as a
 * pipe) cannot be overwritten, so it receives the results only once, at the end. */
static Err keep(const Session *s) {
    const char *json = s->options->json;
    return !json || (!s->complete && file_is_stream(json)) ? ERR_OK : write_json(s);
}

/* ---- all rows ---- */

static Err open_device(Session *s, GemmTuning tuning) {
    const BenchOps *o = s->options;
    const DeviceSpec spec = {
        .kind = o->device, .threads = (int)o->threads, .any_order = !o->deterministic, .gemm_tuning = tuning};
    device_free(s->device);
    return device_open(&spec, &s->device);
}

/* Returns whether an earlier type already covers the case: a case whose operands have fixed types is measured
 * only once. */
static bool is_done(const Session *s, int number, int t) {
    bool earlier = false;
    for (int k = 0; k < t; k++) earlier |= s->wanted[k];
    return earlier && !bench_case_has_type(number);
}

/* Returns whether the case is measured with the type. */
static bool is_due(const Session *s, int number, int t) {
    return s->wanted[t] && is_chosen(s, number) && !is_done(s, number, t);
}

static Err ask(const Session *s, const BenchGuard *guard) {
    json_t *rows = json_array();
    for (int t = 0; t < TYPES; t++)
        for (int i = 0; i < bench_case_count(); i++)
            if (is_due(s, i, t)) json_array_append_new(rows, row_facts(s, i, t));
    json_t *facts = facts_json(s, rows);
    const Err e = guard->check(guard->arg, facts);
    json_decref(facts), json_decref(rows);
    return e;
}

static Err measure_all(Session *s) {
    s->copy = bench_roof_copy(s->device);
    for (int t = 0; t < TYPES; t++) {
        if (!s->wanted[t]) continue;
        /* Only 16-bit GEMMs are tuned. Tuning wider types would take minutes, and cuBLASLt's default algorithms
         * for them are already good. */
        ERR_RETURN(open_device(s, dtype_is_16bit(NAMED[t].type) ? s->options->tuning : GEMM_TUNING_OFF));
        for (int i = 0; i < bench_case_count(); i++) {
            if (!is_due(s, i, t)) continue;
            measure(s, i, t);
            ERR_RETURN(keep(s));
        }
    }
    s->complete = true;
    return keep(s);
}

static void print_roofs(const Session *s) {
    printf("roofs: copy %.1f GB/s", s->copy);
    for (int t = 0; t < TYPES; t++)
        if (s->gemm[t] > 0) printf(", %s GEMM %.1f GFLOP/s", NAMED[t].name, s->gemm[t]);
    printf("\n");
}

Err bench_ops(const BenchOps *o, const BenchGuard *guard, json_t **result) {
    Session s = {.options = o};
    ERR_RETURN(choose_types(&s));
    ERR_RETURN(choose_cases(&s));
    Err e = o->json ? file_check_target(o->json) : ERR_OK;
    if (!e.code) e = open_device(&s, o->tuning);
    if (!e.code) {
        printf("device: %s\n", device_describe(s.device, s.described, sizeof s.described));
        s.rows = json_array();
        if (guard) e = ask(&s, guard);
        if (!e.code) e = measure_all(&s);
        if (!e.code) print_roofs(&s);
        if (!e.code && result) *result = result_json(&s);
        json_decref(s.rows);
        device_free(s.device);
    }
    regfree(&s.filter);
    return e;
}
