#include "bench/ops/cases.h"

#include <stdlib.h>

#include "base/mem.h"
#include "bench/ops/operands.h"
#include "measure/op_cost.h"

int bench_case_count(void) { return kernel_case_count(); }

const char *bench_case_name(int i) { return kernel_case(CASE_CPU, i)->name; }

OpNumber bench_case_op(int i) { return kernel_case(CASE_CPU, i)->op; }

bool bench_case_has_type(int i) {
    const KernelCase *c = kernel_case(CASE_CPU, i);
    for (int k = 0; k < CALL_IN; k++)
        if (c->in[k].ndim && c->in[k].dtype >= DTYPES) return true;
    for (int k = 0; k < CALL_OUT; k++)
        if (c->out[k].ndim && c->out[k].dtype >= DTYPES) return true;
    return false;
}

static const KernelCase *case_on(const Device *d, int i) {
    return kernel_case(device_is_discrete(d) ? CASE_GPU : CASE_CPU, i);
}

static void put_operand(const CaseOperand *o, DType type, Str *out) {
    if (!o->ndim) return;
    str_printf(out, "%s%s[", out->len ? " " : "", dtype_name(case_dtype(o, type)));
    for (int i = 0; i < o->ndim; i++) str_printf(out, "%s%lld", i ? "," : "", (long long)o->dim[i]);
    str_puts(out, "]");
}

void bench_case_operands(int i, const Device *d, DType type, Str *out) {
    const KernelCase *c = case_on(d, i);
    for (int k = 0; k < CALL_IN; k++) put_operand(&c->in[k], type, out);
    str_puts(out, " ->");
    for (int k = 0; k < CALL_OUT; k++) put_operand(&c->out[k], type, out);
}

BenchCalls *bench_case_open(int i, Device *d, DType type) { return bench_calls_new(d, case_on(d, i), type); }

/* ---- for the harness ---- */

struct BenchOp {
    Device *device;
    BenchCalls *calls;
    OpNumber op;
};

BenchOp *bench_op_open(int i) {
    BenchOp *b = mem_zero(1, sizeof *b);
    *b = (BenchOp){.device = device_cpu(0), .op = bench_case_op(i)};
    b->calls = bench_case_open(i, b->device, F32);
    return b;
}

void bench_op_run(BenchOp *b) { bench_calls_run(b->calls); }

void bench_op_close(BenchOp *b) {
    bench_calls_free(b->calls);
    device_free(b->device);
    free(b);
}

double bench_op_flops(const BenchOp *b) { return work_flops(b->op, bench_calls_shape(b->calls)); }
double bench_op_bytes(const BenchOp *b) { return work_bytes(b->op, bench_calls_shape(b->calls)); }
