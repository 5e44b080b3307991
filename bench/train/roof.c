#include "bench/train/roof.h"

#include <cblas.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "kernels/ops.h"

/* OP_linear, OP_linear_dgrad and OP_linear_wgrad stand in this order. */
static int kind(int op) { return op - OP_linear; }

static Product shape(int op, const Call *c) {
    const Tensor *x = c->in[0], *w = c->in[1];
    const int rows = (int)tensor_rows(x), wide = (int)tensor_width(x);
    if (op == OP_linear) return (Product){.op = op, .m = rows, .n = (int)w->dim[0], .k = wide};
    if (op == OP_linear_dgrad) return (Product){.op = op, .m = rows, .n = (int)w->dim[1], .k = wide};
    return (Product){.op = op, .m = wide, .n = (int)tensor_width(w), .k = rows};
}

static Product *find(Roof *r, Product p) {
    for (int i = 0; i < r->count; i++) {
        Product *q = &r->product[i];
        if (q->op == p.op && q->m == p.m && q->n == p.n && q->k == p.k) return q;
    }
    CHECK(r->count < PRODUCTS, "more than %d shapes of linear layers", PRODUCTS);
    r->product[r->count] = p;
    return &r->product[r->count++];
}

void roof_trace(void *arg, const OpDef *op, const Call *c) {
    Roof *r = arg;
    if (op->number != OP_linear && op->number != OP_linear_dgrad && op->number != OP_linear_wgrad) return;
    const int k = kind(op->number);
    Product *p = find(r, shape(op->number, c));
    p->calls += r->counting;
    p->ours_ns += r->profile[op->number].ns - r->seen_ns[k];
    r->seen_ns[k] = r->profile[op->number].ns;
}

void roof_restart(Roof *r) {
    for (int i = 0; i < r->count; i++) r->product[i].ours_ns = r->product[i].roof_ns = 0;
}

static float *operand(size_t elements) {
    float *x = mem_aligned(elements * sizeof *x);
    for (size_t i = 0; i < elements; i++) x[i] = (float)(i % 7) - 3;
    return x;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static void take_operands(Roof *r) {
    size_t a = 0, b = 0, c = 0;
    for (int i = 0; i < r->count; i++) {
        const Product *p = &r->product[i];
        a = larger(a, (size_t)p->m * (size_t)p->k);
        b = larger(b, (size_t)p->k * (size_t)p->n);
        c = larger(c, (size_t)p->m * (size_t)p->n);
    }
    r->a = operand(a), r->b = operand(b), r->c = operand(c);
}

static void multiply(const Roof *r, const Product *p) {
    const bool ta = p->op == OP_linear_wgrad, tb = p->op == OP_linear;
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, p->m, p->n,
                p->k, 1, r->a, ta ? p->m : p->k, r->b, tb ? p->k : p->n, ta ? 1 : 0, r->c, p->n);
}

int64_t roof_replay(Roof *r, int threads) {
    enum {
        SETTLE_US = 100 * 1000
    }; /* BLAS's threads spin this long for more work, on the cores that ours need */
    if (!r->a) take_operands(r);
    int64_t total = 0;
    openblas_set_num_threads(threads);
    for (int i = 0; i < r->count; i++) {
        Product *p = &r->product[i];
        multiply(r, p);
        const int64_t start = clock_ns();
        for (int call = 0; call < p->calls; call++) multiply(r, p);
        const int64_t ns = clock_ns() - start;
        p->roof_ns += ns;
        total += ns;
    }
    openblas_set_num_threads(1);
    usleep(SETTLE_US);
    return total;
}

double roof_flops(const Roof *r) {
    double flops = 0;
    for (int i = 0; i < r->count; i++) {
        const Product *p = &r->product[i];
        flops += 2.0 * p->m * p->n * p->k * p->calls;
    }
    return flops;
}

void roof_free(Roof *r) { free(r->a), free(r->b), free(r->c); }
