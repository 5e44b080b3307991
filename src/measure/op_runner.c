#include "measure/op_runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/statistics.h"

enum { SETS_MAX = 64, CALLS_MAX = 1000 };
/* total size of all sets in bytes, more than twice that of any L2 cache */
static const size_t ROTATION = 256 << 20;
static const double WARM_NS = 50e6, ROUND_NS = 5e6;

typedef struct Set {
    Tensor in[CALL_IN], out[CALL_OUT];
    Call call;
} Set;

struct BenchCalls {
    Device *device;
    const OpDef *op;
    int sets, next;
    char *block; /* memory for all operand sets */
    size_t bytes;
    Set set[SETS_MAX];
};

/* ---- contents ---- */

/* The period of the random numbers. It is odd, so that the rows of a matrix differ. */
enum { PATTERN = (1 << 17) - 1 };

static void draw(float *x, int64_t n, bool positive, uint64_t seed) {
    for (int64_t i = 0; i < n; i += 4) {
        const Philox4 p = philox4x32(seed, 0, (uint64_t)i);
        for (int64_t k = i; k < i + 4 && k < n; k++) {
            const float u = (float)((p.v[k - i] >> 8) + 1) * 0x1p-24f;
            x[k] = positive ? u : 2 * u - 1;
        }
    }
}

static void fill_numbers(Device *d, const Tensor *t, bool positive, uint64_t seed) {
    const size_t size = dtype_size((DType)t->dtype), bytes = tensor_extent(t);
    const int64_t count = (int64_t)(bytes / size), n = count < PATTERN ? count : PATTERN;
    float *x = mem_alloc((size_t)n * sizeof *x);
    void *stored = mem_alloc((size_t)n * size);
    draw(x, n, positive, seed);
    dtype_convert(stored, (DType)t->dtype, x, F32, (size_t)n);
    device_write(d, t->data, stored, (size_t)n * size);
    for (size_t done = (size_t)n * size, more; done < bytes; done += more) {
        more = bytes - done < done ? bytes - done : done;
        device_copy(d, (char *)t->data + done, t->data, more);
    }
    device_wait(d);
    free(x), free(stored);
}

static void fill_integers(Device *d, const CaseOperand *o, const Tensor *t, uint64_t seed) {
    const int64_t n = tensor_count(t);
    int64_t *x = mem_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = case_integer(o, i, n, seed, 1);
    device_write(d, t->data, x, (size_t)n * sizeof *x);
    free(x);
}

/* ---- operands ---- */

static Tensor *header(const CaseOperand *o, DType storage, Tensor *t) {
    if (!o->ndim) return NULL;
    *t = case_tensor(o, storage);
    return t;
}

static void make_headers(Set *s, const KernelCase *c, DType storage) {
    for (int i = 0; i < CALL_IN; i++) s->call.in[i] = header(&c->in[i], storage, &s->in[i]);
    for (int i = 0; i < CALL_OUT; i++) s->call.out[i] = header(&c->out[i], storage, &s->out[i]);
}

/* Returns the size of a tensor, rounded up to the alignment of a Space. */
static size_t aligned(const Tensor *t) {
    return (tensor_extent(t) + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
}

/* Places the operands consecutively in memory, beginning at `at`, and returns the address after the last
 * operand. */
static char *place(Set *s, char *at) {
    for (int i = 0; i < CALL_IN + CALL_OUT; i++) {
        Tensor *t = i < CALL_IN ? s->call.in[i] : s->call.out[i - CALL_IN];
        if (t) t->data = at, at += aligned(t);
    }
    return at;
}

static size_t bytes_of_set(const Set *s) {
    size_t bytes = 0;
    for (int i = 0; i < CALL_IN; i++) bytes += s->call.in[i] ? aligned(s->call.in[i]) : 0;
    for (int i = 0; i < CALL_OUT; i++) bytes += s->call.out[i] ? aligned(s->call.out[i]) : 0;
    return bytes;
}

static void fill(Device *d, const CaseOperand *o, const Tensor *t, uint64_t seed) {
    if (!t) return;
    if (t->dtype == I64)
        fill_integers(d, o, t, seed);
    else
        fill_numbers(d, t, o->content == CONTENT_POSITIVE, seed);
}

/* Allocates the operand sets. The first set contains random numbers. The other sets are copies, because only
 * their addresses matter. */
static void take(BenchCalls *b, size_t bytes, const KernelCase *c) {
    b->bytes = bytes * (size_t)b->sets;
    b->block = device_alloc(b->device, b->bytes, "a benchmark's operands");
    char *at = b->block;
    for (int s = 0; s < b->sets; s++) at = place(&b->set[s], at);
    for (int i = 0; i < CALL_IN; i++) fill(b->device, &c->in[i], b->set[0].call.in[i], (uint64_t)i);
    for (int i = 0; i < CALL_OUT; i++)
        fill(b->device, &c->out[i], b->set[0].call.out[i], (uint64_t)(CALL_IN + i));
    for (int s = 1; s < b->sets; s++) device_copy(b->device, b->block + (size_t)s * bytes, b->block, bytes);
}

static void make_plans(BenchCalls *b) {
    Device *null = device_null_for(b->device);
    Call call = b->set[0].call;
    call.device = null;
    call_run(b->op, &call);
    device_reserve_scratch(b->device, null->scratch);
    device_free(null);
}

BenchCalls *bench_calls_new(Device *d, const KernelCase *c, DType storage) {
    BenchCalls *b = mem_zero(1, sizeof *b);
    b->device = d, b->op = &OPS[c->op];
    make_headers(&b->set[0], c, storage);
    const size_t bytes = bytes_of_set(&b->set[0]);
    const size_t sets = device_is_discrete(d) && bytes ? (ROTATION + bytes - 1) / bytes : 1;
    b->sets = sets < SETS_MAX ? (int)sets : SETS_MAX;
    for (int s = 0; s < b->sets; s++) {
        make_headers(&b->set[s], c, storage);
        b->set[s].call.attr = c->attr, b->set[s].call.device = d;
    }
    make_plans(b);
    take(b, bytes, c);
    return b;
}

void bench_calls_free(BenchCalls *b) {
    device_release(b->device, b->block, b->bytes);
    free(b);
}

const Call *bench_calls_shape(const BenchCalls *b) { return &b->set[0].call; }

/* ---- time ---- */

void bench_calls_run(BenchCalls *b) {
    call_run(b->op, &b->set[b->next].call);
    b->next = (b->next + 1) % b->sets;
}

static double round_of(BenchCalls *b, int64_t calls) {
    device_wait(b->device);
    const int64_t start = clock_ns();
    for (int64_t i = 0; i < calls; i++) bench_calls_run(b);
    device_wait(b->device);
    return (double)(clock_ns() - start) / (double)calls;
}

BenchTime bench_calls_time(BenchCalls *b, double seconds) {
    enum { LEAST = 3 };
    const double budget = seconds > 0 ? seconds * 1e9 : INFINITY;
    double one = round_of(b, b->sets), spent = one * b->sets; /* the first round accesses every set */
    for (; spent < (seconds > 0 ? budget / 2 : WARM_NS); spent += one) one = round_of(b, 1);
    const double wanted = fmin(ceil(ROUND_NS / one), CALLS_MAX), fit = floor(budget / (one * wanted));
    BenchTime t = {.rounds = (int)fmax(LEAST, fmin(fit, BENCH_ROUNDS)), .calls = (int64_t)wanted};
    for (int i = 0; i < t.rounds; i++) t.round_ns[i] = round_of(b, t.calls);
    t.ns = median_of(t.round_ns, t.rounds);
    return t;
}
