#include "measure/peaks.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/exact_sum.h"
#include "base/fault.h"
#include "base/mem.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "measure/op_runner.h"

enum { ROUNDS = 9 };

/* Returns the device's rate for an op: its work, divided by the time of a call. */
static double rate_of_op(Device *d, const KernelCase *c, DType type, int64_t work) {
    BenchCalls *b = bench_calls_new(d, c, type);
    const double ns = bench_calls_time(b, 0).ns;
    bench_calls_free(b);
    return (double)work / ns;
}

/* ---- copy ---- */

typedef struct Copy {
    char *to;
    const char *from;
} Copy;

static void copy_part(void *arg, int64_t begin, int64_t end) {
    const Copy *c = arg;
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

static void peaks_copy(Device *d, const Copy *c, size_t bytes) {
    if (device_is_discrete(d))
        device_copy(d, c->to, c->from, bytes);
    else
        pool_for(d->pool, (int64_t)bytes, 1, copy_part, (void *)c);
}

double bench_roof_copy(Device *d) {
    const size_t bytes = device_is_discrete(d) ? 1 << 30 : 256 << 20;
    const int copies = device_is_discrete(d) ? 10 : 1;
    char *both = device_alloc(d, 2 * bytes, "the copy that measures the roof");
    const Copy c = {both, both + bytes};
    double best = 0;
    peaks_copy(d, &c, bytes);
    peaks_copy(d, &(Copy){both + bytes, both}, bytes); /* together, these two copies touch every page */
    for (int i = 0; i < ROUNDS; i++) {
        device_wait(d);
        const int64_t start = clock_ns();
        for (int k = 0; k < copies; k++) peaks_copy(d, &c, bytes);
        device_wait(d);
        best = fmax(best, 2.0 * (double)bytes * copies / (double)(clock_ns() - start));
    }
    device_release(d, both, 2 * bytes);
    return best;
}

/* ---- read ---- */

typedef struct Read {
    const uint64_t *at; /* [n] */
    int64_t n, parts;
    uint64_t *sum; /* [parts] */
} Read;

static void read_parts(void *arg, int64_t begin, int64_t end) {
    const Read *r = arg;
    for (int64_t part = begin; part < end; part++) {
        uint64_t sum = 0;
        for (int64_t i = r->n * part / r->parts; i < r->n * (part + 1) / r->parts; i++) sum += r->at[i];
        r->sum[part] = sum;
    }
}

static double read_of_host(Device *d) {
    const size_t bytes = 256 << 20;
    const int threads = pool_threads(d->pool);
    uint64_t *at = mem_aligned(bytes), *sum = mem_alloc((size_t)threads * sizeof *sum), total = 0;
    Read r = {at, (int64_t)(bytes / sizeof *at), threads, sum};
    double best = 0;
    memset(at, 1, bytes);
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t start = clock_ns();
        pool_for(d->pool, threads, 1, read_parts, &r);
        best = fmax(best, (double)bytes / (double)(clock_ns() - start));
        for (int k = 0; k < threads; k++) total += sum[k];
    }
    CHECK(total == ROUNDS * (bytes / 8) * UINT64_C(0x0101010101010101), "the memory was not read");
    free(at), free(sum);
    return best;
}

double bench_roof_read(Device *d) {
    if (!device_is_discrete(d)) return read_of_host(d);
    enum { BYTES = 1 << 30, WIDTH = 8192, ROWS = BYTES / WIDTH / 2 };
    const SumAttr sum = {.block = SUM_BLOCK};
    const KernelCase squares = {.op = OP_sum_squares,
                                .attr = &sum,
                                .in = {{.dtype = F32, .ndim = 1, .dim = {BYTES / 4}}},
                                .out = {{.dtype = I64, .ndim = 1, .dim = {EXACT_WORDS}}}};
    const LinearAttr product = {.fixed_order = false};
    const KernelCase row = {.op = OP_linear,
                            .attr = &product,
                            .in = {{.dtype = CASE_STORAGE, .ndim = 2, .dim = {1, WIDTH}},
                                   {.dtype = CASE_STORAGE, .ndim = 2, .dim = {ROWS, WIDTH}}},
                            .out = {{.dtype = CASE_STORAGE, .ndim = 2, .dim = {1, ROWS}}}};
    return fmax(rate_of_op(d, &squares, F32, BYTES), rate_of_op(d, &row, BF16, BYTES));
}

/* ---- GEMMs ---- */

static double blas(DType type) {
    enum { N = 2048 };
    const size_t bytes = (size_t)N * N * dtype_size(type);
    void *a = mem_aligned(bytes), *b = mem_aligned(bytes), *c = mem_aligned(bytes);
    for (size_t i = 0; i < (size_t)N * N; i++)
        if (type == F64)
            ((double *)a)[i] = ((double *)b)[i] = (double)(i % 7 + 1) / 8;
        else
            ((float *)a)[i] = ((float *)b)[i] = (float)(i % 7 + 1) / 8;
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t start = clock_ns();
        if (type == F64)
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, b, N, 0, c, N);
        else
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, b, N, 0, c, N);
        best = fmax(best, 2.0 * N * N * N / (double)(clock_ns() - start));
    }
    free(a), free(b), free(c);
    return best;
}

double bench_roof_gemm(Device *d, DType type) {
    if (!device_is_discrete(d)) return blas(type == F64 ? F64 : F32);
    const int64_t n = dtype_is_16bit(type) ? 8192 : 4096;
    const LinearAttr attr = {.fixed_order = false};
    const CaseOperand x = {.dtype = CASE_STORAGE, .ndim = 2, .dim = {n, n}};
    const KernelCase c = {.op = OP_linear, .attr = &attr, .in = {x, x}, .out = {x}};
    return rate_of_op(d, &c, type, 2 * n * n * n);
}

/* ---- stated peaks ---- */

typedef struct Stated {
    const char *begins; /* start of the device's name; a longer name must precede its prefixes */
    double half, single, full, memory;
} Stated;

static const Stated STATED[] = {
    {"NVIDIA H200 NVL", 835, 60, 60, 4800},     {"NVIDIA H200", 989, 67, 67, 4800},
    {"NVIDIA GH200", 989, 67, 67, 4000},        {"NVIDIA H100 PCIe", 756, 51, 51, 2000},
    {"NVIDIA H100 NVL", 835, 60, 60, 3900},     {"NVIDIA H100", 989, 67, 67, 3350},
    {"NVIDIA A100", 312, 19.5, 19.5, 1555},     {"NVIDIA B200", 2250, 75, 37, 7700},
    {"NVIDIA L40S", 362, 91.6, 91.6 / 64, 864},
};

static Stated stated(const char *described) {
    for (size_t i = 0; i < sizeof STATED / sizeof *STATED; i++)
        if (!strncmp(described, STATED[i].begins, strlen(STATED[i].begins))) return STATED[i];
    return (Stated){.half = 0};
}

double bench_peak(const char *described, DType type) {
    const Stated s = stated(described);
    return dtype_is_16bit(type) ? s.half : type == F64 ? s.full : s.single;
}

double bench_peak_copy(const char *described) { return stated(described).memory; }
