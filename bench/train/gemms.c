#include "bench/train/gemms.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"

/* ---- shapes ---- */

static void describe(const Tensor *t, CaseOperand *o) {
    if (!t) return;
    o->dtype = t->dtype, o->ndim = t->ndim;
    o->updated = t->flags & TENSOR_ACCUM, o->main_grad = t->flags & TENSOR_MAIN_GRAD;
    memcpy(o->dim, t->dim, sizeof o->dim);
    if (o->dtype == I64) o->content = CONTENT_OFFSETS;
}

/* Returns dimension i of an operand. An expert's number of rows varies with the routing, so shapes that
 * differ only in this number are treated as equal. */
static int64_t shape_at(const StepGemm *p, const CaseOperand *o, int i) {
    return p->rows && o->dim[i] == p->rows ? 0 : o->dim[i];
}

static bool same_operand(const StepGemm *p, const CaseOperand *a, const StepGemm *q, const CaseOperand *b) {
    bool equal = a->dtype == b->dtype && a->ndim == b->ndim && a->updated == b->updated &&
                 a->main_grad == b->main_grad;
    for (int i = 0; equal && i < a->ndim; i++) equal = shape_at(p, a, i) == shape_at(q, b, i);
    return equal;
}

static bool is_fp8(OpNumber op) {
    return op == OP_fp8_gemm || op == OP_fp8_grouped_linear || op == OP_fp8_grouped_wgrad;
}

/* The other operands determine the shapes of scales. */
static bool is_scale(const StepGemm *p, int input) { return is_fp8(p->op) && (input == 2 || input == 3); }

static bool same_attributes(const StepGemm *a, const StepGemm *b) {
    const LinearAttr *x = &a->attr.linear, *y = &b->attr.linear;
    const Fp8GemmAttr *p = &a->attr.fp8, *q = &b->attr.fp8;
    if (!is_fp8(a->op)) return x->fixed_order == y->fixed_order && x->activation == y->activation;
    return p->a == q->a && p->b == q->b && p->fast == q->fast && p->fixed_order == q->fixed_order &&
           p->activation == q->activation;
}

static bool same(const StepGemm *a, const StepGemm *b) {
    bool equal = a->op == b->op && same_attributes(a, b);
    for (int i = 0; i < CALL_IN; i++)
        equal = equal && (is_scale(a, i) || same_operand(a, &a->in[i], b, &b->in[i]));
    for (int i = 0; i < CALL_OUT; i++) equal = equal && same_operand(a, &a->out[i], b, &b->out[i]);
    return equal;
}

/* Gives the experts equal numbers of rows, or of blocks if their columns are padded. */
static void set_rows(StepGemm *p, CaseOperand *offset) {
    const int64_t unit = p->op == OP_fp8_grouped_wgrad ? (offset->dim[0] - 1) * FP8_BLOCK : 1;
    p->rows = p->in[0].dim[p->op == OP_fp8_grouped_wgrad];
    offset->range = p->rows / unit * unit;
}

static bool describe_call(const OpDef *op, const Call *c, StepGemm *p) {
    *p = (StepGemm){.op = (OpNumber)op->number};
    if (!work_gemm(p->op, c, &p->shape)) return false;
    for (int i = 0; i < CALL_IN; i++) describe(c->in[i], &p->in[i]);
    for (int i = 0; i < CALL_OUT; i++) describe(c->out[i], &p->out[i]);
    for (int i = 0; i < CALL_IN; i++)
        if (c->in[i] && c->in[i]->dtype == I64) set_rows(p, &p->in[i]);
    if (is_fp8(p->op))
        p->attr.fp8 = *(const Fp8GemmAttr *)c->attr;
    else
        p->attr.linear = *(const LinearAttr *)c->attr;
    return p->shape.m && p->shape.n && p->shape.k; /* false if no token was routed to the experts */
}

static double call_flops(const StepGemm *p) {
    return 2.0 * (double)p->shape.m * (double)p->shape.n * (double)p->shape.k;
}

static int find(const StepGemms *all, const StepGemm *p) {
    for (int i = 0; i < all->count; i++)
        if (same(&all->at[i], p)) return i;
    return -1;
}

int gemms_find(const StepGemms *all, const OpDef *op, const Call *c) {
    StepGemm p;
    return describe_call(op, c, &p) ? find(all, &p) : -1;
}

void gemms_count(StepGemms *all, const OpDef *op, const Call *c) {
    StepGemm p;
    if (!describe_call(op, c, &p)) return;
    int i = find(all, &p);
    if (i < 0) {
        CHECK(all->count < STEP_GEMMS, "the step has more than %d kinds of GEMMs", STEP_GEMMS);
        all->at[i = all->count++] = p;
    }
    all->at[i].calls++;
    all->at[i].flops += call_flops(&p);
}

double gemms_flops(const StepGemms *all) {
    double flops = 0;
    for (int i = 0; i < all->count; i++) flops += all->at[i].flops;
    return flops;
}

/* ---- BLAS ---- */

static float *operand(int64_t elements) {
    float *x = mem_aligned((size_t)elements * sizeof *x);
    for (int64_t i = 0; i < elements; i++) x[i] = (float)(i % 7) - 3;
    return x;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void take_operands(StepGemms *all) {
    int64_t a = 0, b = 0, c = 0;
    for (int i = 0; i < all->count; i++) {
        const GemmShape p = all->at[i].shape;
        a = larger(a, p.m * p.k);
        b = larger(b, p.k * p.n);
        c = larger(c, p.m * p.n);
    }
    all->a = operand(a), all->b = operand(b), all->c = operand(c);
}

/* Replaces the experts by a single expert that processes all rows. */
static void multiply(const StepGemms *all, const StepGemm *p) {
    const bool ta = p->op == OP_linear_wgrad || p->op == OP_grouped_linear_wgrad,
               tb = p->op == OP_linear || p->op == OP_grouped_linear || is_fp8(p->op);
    const int m = (int)p->shape.m, n = (int)p->shape.n, k = (int)p->shape.k;
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, 1,
                all->a, ta ? m : k, all->b, tb ? k : n, ta ? 1 : 0, all->c, n);
}

int64_t gemms_through_blas(StepGemms *all, int threads) {
    enum {
        SETTLE_US = 100 * 1000
    }; /* after a GEMM, BLAS's threads spin for this time, and occupy cores that Isotron's threads need */
    if (!all->a) take_operands(all);
    int64_t total = 0;
    openblas_set_num_threads(threads);
    for (int i = 0; i < all->count; i++) {
        StepGemm *p = &all->at[i];
        multiply(all, p);
        const int64_t start = clock_ns();
        for (int64_t call = 0; call < p->calls; call++) multiply(all, p);
        const int64_t ns = clock_ns() - start;
        p->alone_ns += (double)ns;
        total += ns;
    }
    openblas_set_num_threads(1);
    usleep(SETTLE_US);
    return total;
}

/* ---- a GPU ---- */

void gemms_on_device(StepGemms *all, Device *d, int64_t steps) {
    for (int i = 0; i < all->count; i++) {
        StepGemm *p = &all->at[i];
        KernelCase c = {.op = p->op, .attr = &p->attr};
        memcpy(c.in, p->in, sizeof c.in);
        memcpy(c.out, p->out, sizeof c.out);
        BenchCalls *b =
            /* the argument F32 has no effect, because every operand specifies its type */
            bench_calls_new(d, &c, F32);
        p->alone_ns = bench_calls_time(b, 0).ns * (double)steps * p->flops / call_flops(p);
        bench_calls_free(b);
    }
}

void gemms_free(StepGemms *all) { free(all->a), free(all->b), free(all->c); }
