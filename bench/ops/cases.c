#include "bench/ops/cases.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

typedef struct Operand {
    DType dtype;
    bool updated;  /* read and written */
    int64_t range; /* of ids */
    int ndim;
    int64_t dim[TENSOR_DIMS];
} Operand;

typedef struct OpCase {
    const char *name;
    OpNumber op;
    const void *attr;
    Operand in[CALL_IN], out[CALL_OUT];
} OpCase;

#define NONE            NULL
#define ATTR(type, ...) (&(const type){__VA_ARGS__})
#define CAUSAL          ATTR(AttentionAttr, .scale = 0.125, .window_left = WINDOW_OFF)
#define IN(...)                                                                                              \
    { __VA_ARGS__ }
#define OUT(...)                                                                                             \
    { __VA_ARGS__ }
#define SHAPE(...) .ndim = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), .dim = {__VA_ARGS__}
#define X(...)                                                                                               \
    { .dtype = F32, SHAPE(__VA_ARGS__) }
#define Y(...)                                                                                               \
    { .dtype = F32, .updated = true, SHAPE(__VA_ARGS__) }
#define IDS(n, ...)                                                                                          \
    { .dtype = I64, .range = n, SHAPE(__VA_ARGS__) }
#define LONGS(...)                                                                                           \
    { .dtype = I64, .updated = true, SHAPE(__VA_ARGS__) }

static const OpCase CASES[] = {
#define BENCH(name, op, attr, in, ...) {name, OP_##op, attr, in, __VA_ARGS__},
#include "bench/ops/cases.def"
#undef BENCH
};
enum { CASE_COUNT = sizeof CASES / sizeof CASES[0] };

struct BenchOp {
    const OpCase *c;
    Device *device;
    Tensor in[CALL_IN], out[CALL_OUT];
    Call call;
};

/* ---- roofs ---- */

enum { ROOF_ROUNDS = 5, ROOF_SIZE = 2048, ROOF_COPY = 64 << 20 };

static float *numbers(int64_t n) {
    float *x = mem_aligned((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 7 + 1) / 8; /* positive: also a second moment */
    return x;
}

static double best_gflops(void) {
    const int64_t n = ROOF_SIZE;
    float *a = numbers(n * n), *b = numbers(n * n), *c = numbers(n * n);
    double best = 0;
    for (int i = 0; i < ROOF_ROUNDS; i++) {
        const int64_t start = clock_ns();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, ROOF_SIZE, ROOF_SIZE, ROOF_SIZE, 1, a,
                    ROOF_SIZE, b, ROOF_SIZE, 0, c, ROOF_SIZE);
        best = fmax(best, 2.0 * (double)(n * n * n) / (double)(clock_ns() - start));
    }
    free(a), free(b), free(c);
    return best;
}

typedef struct Copy {
    char *to;
    const char *from;
} Copy;

static void copy(void *arg, int64_t begin, int64_t end) {
    const Copy *c = arg;
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

static double best_gbytes(void) {
    Device *d = device_cpu(0);
    float *from = numbers(ROOF_COPY), *to = numbers(ROOF_COPY);
    const int64_t bytes = ROOF_COPY * (int64_t)sizeof *from;
    double best = 0;
    for (int i = 0; i < ROOF_ROUNDS; i++) {
        const int64_t start = clock_ns();
        pool_for(d->pool, bytes, 1, copy, &(Copy){(char *)to, (const char *)from});
        best = fmax(best, 2.0 * (double)bytes / (double)(clock_ns() - start));
    }
    free(from), free(to);
    device_free(d);
    return best;
}

BenchRoofs bench_roofs(void) { return (BenchRoofs){best_gflops(), best_gbytes()}; }

/* ---- ops ---- */

int bench_op_count(void) { return CASE_COUNT; }

const char *bench_op_name(int i) { return CASES[i].name; }

static Tensor *operand(const Operand *o, Tensor *t) {
    if (!o->ndim) return NULL;
    *t = tensor_make(NULL, o->dtype, o->ndim, o->dim);
    const int64_t n = tensor_count(t);
    if (o->dtype == F32) t->data = numbers(n);
    if (o->dtype == F64) t->data = mem_zero((size_t)n, sizeof(double));
    if (o->dtype == I64) t->data = mem_zero((size_t)n, sizeof(int64_t));
    for (int64_t i = 0; o->dtype == I64 && i < n; i++)
        ((int64_t *)t->data)[i] = philox_u32(1, 2, (uint64_t)i) % (uint64_t)o->range;
    if (o->updated) t->flags = TENSOR_ACCUM;
    return t;
}

BenchOp *bench_op_open(int i) {
    BenchOp *b = mem_zero(1, sizeof *b);
    b->c = &CASES[i];
    b->device = device_cpu(0);
    b->call = (Call){.attr = b->c->attr, .device = b->device};
    for (int j = 0; j < CALL_IN; j++) b->call.in[j] = operand(&b->c->in[j], &b->in[j]);
    for (int j = 0; j < CALL_OUT; j++) b->call.out[j] = operand(&b->c->out[j], &b->out[j]);
    return b;
}

void bench_op_run(BenchOp *b) { call_run(&OPS[b->c->op], &b->call); }

void bench_op_close(BenchOp *b) {
    for (int i = 0; i < CALL_IN; i++) free(b->in[i].data);
    for (int i = 0; i < CALL_OUT; i++) free(b->out[i].data);
    device_free(b->device);
    free(b);
}

/* Causal: half of all pairs of query and key, each d multiply-adds per product. */
static double attention_flops(const Tensor *q, int products) {
    return (double)tensor_count(q) * (double)q->dim[0] / 2 * 2 * products;
}

double bench_op_flops(const BenchOp *b) {
    const Tensor *const *in = (const Tensor *const *)b->call.in;
    switch (b->c->op) {
    case OP_linear:
        return 2.0 * (double)tensor_count(in[0]) * (double)in[1]->dim[0];
    case OP_linear_dgrad:
    case OP_linear_wgrad:
        return 2.0 * (double)tensor_count(in[0]) * (double)tensor_width(in[1]);
    case OP_attention:
        return attention_flops(in[0], 2);
    case OP_attention_grad:
        return attention_flops(in[0], 5);
    default:
        return 0;
    }
}

double bench_op_bytes(const BenchOp *b) {
    /* Of an embedding's table only the rows in use are touched. */
    if (b->c->op == OP_embedding) return 2.0 * (double)tensor_bytes(b->call.out[0]);
    if (b->c->op == OP_embedding_grad) return 3.0 * (double)tensor_bytes(b->call.in[0]);
    double bytes = 0;
    for (int i = 0; i < CALL_IN; i++) bytes += b->call.in[i] ? (double)tensor_bytes(b->call.in[i]) : 0;
    for (int i = 0; i < CALL_OUT; i++)
        bytes += b->call.out[i] ? (double)tensor_bytes(b->call.out[i]) * (1 + b->c->out[i].updated) : 0;
    return bytes;
}
