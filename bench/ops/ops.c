#include "bench/ops/ops.h"

#include <jansson.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "bench/ops/cases.h"
#include "bench/ops/operands.h"
#include "bench/provenance.h"
#include "bench/roofs.h"
#include "bench/work.h"
#ifdef ISOTRON_CUDA
#include "kernels/cuda/attention_path.h"
#endif

enum { TYPES = 4 };
static const struct {
    const char *name;
    DType type;
} NAMED[TYPES] = {{"fp64", F64}, {"fp32", F32}, {"bf16", BF16}, {"fp16", F16}};

typedef struct Session {
    const BenchOps *options;
    Device *device;
    regex_t filter;
    bool wanted[TYPES];
    double copy, product[TYPES]; /* roofs, GB/s and GFLOP/s; 0: not measured yet */
    json_t *rows;
} Session;

/* ---- options ---- */

static Err choose_types(Session *s) {
    const TextList *types = &s->options->types;
    for (int t = 0; t < TYPES; t++) s->wanted[t] = types->count == 0;
    for (int64_t i = 0; i < types->count; i++) {
        int t = 0;
        while (t < TYPES && strcmp(types->at[i], NAMED[t].name)) t++;
        if (t == TYPES) return err_user("--dtype %s: the types are fp64, fp32, bf16 and fp16", types->at[i]);
        s->wanted[t] = true;
    }
    return ERR_OK;
}

static Err choose_cases(Session *s) {
    char why[120];
    const int e = regcomp(&s->filter, s->options->filter ? s->options->filter : "", REG_EXTENDED | REG_NOSUB);
    if (!e) return ERR_OK;
    regerror(e, &s->filter, why, sizeof why);
    return err_user("--filter %s: %s", s->options->filter, why);
}

/* ---- measuring ---- */

/* Who does the attention; "" for other ops and on the CPU. */
static const char *path_of(const Session *s, OpNumber op, const Call *c) {
#ifdef ISOTRON_CUDA
    if (s->device->kind == DEVICE_CUDA && (op == OP_attention || op == OP_attention_grad))
        return attention_path(c);
#endif
    (void)s, (void)op, (void)c;
    return "";
}

static void report(Session *s, int number, int t, const Call *c, double ns) {
    const OpNumber op = bench_case_op(number);
    const double flops = work_flops(op, c), bytes = work_bytes(op, c);
    const bool multiplies = flops > 0;
    if (multiplies && s->product[t] == 0) s->product[t] = bench_roof_product(s->device, NAMED[t].type);
    const double rate = (multiplies ? flops : bytes) / ns, roof = multiplies ? s->product[t] : s->copy;
    printf("%-28s %-5s %12.1f us %9.1f MB %9.1f %-7s %6.1f %%  %s\n", bench_case_name(number), NAMED[t].name,
           ns * 1e-3, bytes * 1e-6, rate, multiplies ? "GFLOP/s" : "GB/s", rate / roof * 100,
           path_of(s, op, c));
    fflush(stdout);
    json_t *row = json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f}", "name", bench_case_name(number), "op",
                            OPS[op].name, "type", NAMED[t].name, "us", ns * 1e-3, "megabytes", bytes * 1e-6,
                            multiplies ? "gflops" : "gbytes", rate, "of_roof", rate / roof);
    if (*path_of(s, op, c)) json_object_set_new(row, "path", json_string(path_of(s, op, c)));
    json_array_append_new(s->rows, row);
}

static void measure(Session *s, int number, int t) {
    BenchCalls *b = bench_case_open(number, s->device, NAMED[t].type);
    const double ns = bench_calls_time(b);
    report(s, number, t, bench_calls_shape(b), ns);
    bench_calls_free(b);
}

static void measure_all(Session *s) {
    s->copy = bench_roof_copy(s->device);
    for (int i = 0; i < bench_case_count(); i++) {
        if (regexec(&s->filter, bench_case_name(i), 0, NULL, 0)) continue;
        bool once = false; /* what has no type of its own is measured in one */
        for (int t = 0; t < TYPES; t++) {
            if (!s->wanted[t] || (once && !bench_case_has_type(i))) continue;
            measure(s, i, t);
            once = true;
        }
    }
}

/* ---- results ---- */

static Err write_json(const Session *s, const char *described) {
    json_t *roofs = json_pack("{s:f}", "copy_gbytes", s->copy);
    for (int t = 0; t < TYPES; t++)
        if (s->product[t] > 0) json_object_set_new(roofs, NAMED[t].name, json_real(s->product[t]));
    json_t *all = json_pack("{s:o, s:s, s:o, s:i, s:O}", "provenance", provenance_json(), "device", described,
                            "roofs", roofs, "rounds", (int)BENCH_ROUNDS, "rows", s->rows);
    char *text = json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(all);
    Err e = file_write_atomic(s->options->json, text, strlen(text));
    free(text);
    return e;
}

Err bench_ops(const BenchOps *o) {
    Session s = {.options = o};
    char described[200];
    ERR_RETURN(choose_types(&s));
    ERR_RETURN(choose_cases(&s));
    Err e = device_open(o->cuda, 0, (int)o->threads, &s.device);
    if (!e.code) {
        printf("device: %s\n", device_describe(s.device, described, sizeof described));
        s.rows = json_array();
        measure_all(&s);
        printf("roofs: copy %.1f GB/s", s.copy);
        for (int t = 0; t < TYPES; t++)
            if (s.product[t] > 0) printf(", %s product %.1f GFLOP/s", NAMED[t].name, s.product[t]);
        printf("\n");
        if (o->json) e = write_json(&s, described);
        json_decref(s.rows);
        device_free(s.device);
    }
    regfree(&s.filter);
    return e;
}
