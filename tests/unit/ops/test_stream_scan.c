/* Tests that Mamba-2's convolution and scan compute the same results for whole requests as for streams of tokens, in
 * passes over parts of several requests. Shapes and passes are random. The environment variable SCAN_SHAPES is the
 * number of shapes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit/cmocka_all.h"

#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tensor/device.h"

enum { MOST = 4 /* requests */, UNUSED = 2 /* slots */ };

typedef struct Shape {
    uint64_t number, draws;
    int64_t s, b, h, c, k; /* positions, requests, heads, channels, taps */
    ScanAttr a;
} Shape;

static int64_t draw(Shape *x, int64_t low, int64_t most) {
    return low + philox_u32(5, x->number, x->draws++) % (most - low + 1);
}

/* Every third shape has limits that clamp about half of the steps. */
static Shape shape_of(uint64_t number) {
    Shape x = {.number = number};
    x.s = draw(&x, 1, 40), x.b = draw(&x, 1, MOST), x.k = draw(&x, 2, CONV_TAPS);
    x.a = (ScanAttr){.groups = draw(&x, 1, 3),
                     .head_dim = draw(&x, 1, 9),
                     .state = draw(&x, 1, 9),
                     .chunk = draw(&x, 1, 50),
                     .least = number % 3 ? 0 : 0.5,
                     .most = number % 3 ? HUGE_VAL : 0.9};
    x.h = x.a.groups * draw(&x, 1, 3), x.c = x.h * x.a.head_dim + 2 * x.a.groups * x.a.state;
    return x;
}

/* Values in (-1, 1), or NaN. */
static Tensor values(int64_t a, int64_t b, int64_t c, uint64_t site) {
    const int64_t dim[] = {a, b, c};
    const int ndim = c ? 3 : b ? 2 : 1;
    Tensor t = tensor_make(NULL, F64, ndim, dim);
    double *x = t.data = mem_alloc(tensor_bytes(&t) + 1);
    for (int64_t i = 0; i < tensor_count(&t); i++)
        x[i] = site ? 2 * philox_uniform(3, site, (uint64_t)i) - 1 : NAN;
    return t;
}

/* The operands, the results for whole requests, and the states of the streams. */
typedef struct Run {
    Shape shape;
    Device *device;
    Tensor x, dt, w, bias, dt_bias, a_log, d, mixed, y, inputs, states;
    int64_t done[MOST];
} Run;

static void call(const Run *r, OpNumber op, Call c) {
    c.device = r->device;
    call_run(&OPS[op], &c);
}

static Run run_whole(Shape x, Device *d) {
    Run r = {.shape = x,
             .device = d,
             .x = values(x.s, x.b, x.c, 1),
             .dt = values(x.s, x.b, x.h, 2),
             .w = values(x.c, x.k, 0, 3),
             .bias = values(x.c, 0, 0, 4),
             .dt_bias = values(x.h, 0, 0, 5),
             .a_log = values(x.h, 0, 0, 6),
             .d = values(x.h, 0, 0, 7),
             .mixed = values(x.s, x.b, x.c, 0),
             .y = values(x.s, x.b, x.h * x.a.head_dim, 0),
             .inputs = values(MOST + UNUSED, x.k - 1, x.c, 0),
             .states = values(MOST + UNUSED, x.h, x.a.head_dim * x.a.state, 0)};
    call(&r, OP_causal_conv, (Call){.in = {&r.x, &r.w, &r.bias}, .out = {&r.mixed}});
    call(&r, OP_ssd_scan,
         (Call){.in = {&r.x, &r.dt, &r.dt_bias, &r.a_log, &r.d}, .out = {&r.y}, .attr = &r.shape.a});
    return r;
}

static void run_free(Run *r) {
    Tensor *all[] = {&r->x, &r->dt,    &r->w, &r->bias,   &r->dt_bias, &r->a_log,
                     &r->d, &r->mixed, &r->y, &r->inputs, &r->states};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
}

/* Copies row `from` of a tensor to row `to` of another. */
static void copy_row(Tensor *to, int64_t to_row, const Tensor *from, int64_t from_row) {
    const size_t bytes = (size_t)tensor_width(from) * sizeof(double);
    memcpy((char *)to->data + (size_t)to_row * bytes, (const char *)from->data + (size_t)from_row * bytes,
           bytes);
}

/* Returns the largest difference between rows of two tensors. */
static double apart(const Tensor *a, int64_t a_row, const Tensor *b, int64_t b_row) {
    const int64_t n = tensor_width(a);
    const double *x = (const double *)a->data + a_row * n, *y = (const double *)b->data + b_row * n;
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, isnan(x[i]) ? HUGE_VAL : fabs(x[i] - y[i]));
    return most;
}

/* Runs a pass over up to `most` further tokens of each request. A result of the scan is a sum of at most s n products
 * that are at most softplus(2); the recurrence multiplies a term by up to s decays, each of which is rounded. */
static void run_pass(Run *r, int64_t most) {
    Shape *x = &r->shape;
    int64_t row[MOST * 40], slot[MOST * 40], position[MOST * 40], n = 0;
    for (int64_t k = 0, first = draw(x, 0, x->b - 1); k < x->b; k++) {
        const int64_t request = (first + k) % x->b, rest = x->s - r->done[request];
        for (int64_t i = draw(x, 0, most < rest ? most : rest); i > 0; i--, n++) {
            row[n] = r->done[request] * x->b + request;
            slot[n] = MOST + UNUSED - 1 - request, position[n] = r->done[request]++;
        }
    }
    Tensor in = values(n, 1, x->c, 0), dt = values(n, 1, x->h, 0), mixed = values(n, 1, x->c, 0),
           y = values(n, 1, x->h * x->a.head_dim, 0), slots = tensor_make(slot, I64, 1, &n),
           positions = tensor_make(position, I64, 2, (int64_t[]){1, n});
    for (int64_t i = 0; i < n; i++) copy_row(&in, i, &r->x, row[i]), copy_row(&dt, i, &r->dt, row[i]);
    call(r, OP_stream_conv,
         (Call){.in = {&in, &r->w, &r->bias, &slots, &positions}, .out = {&mixed, &r->inputs}});
    call(r, OP_stream_scan,
         (Call){.in = {&in, &dt, &r->dt_bias, &r->a_log, &r->d, &slots, &positions},
                .out = {&y, &r->states},
                .attr = &x->a});
    const double terms = (double)(x->s * x->a.state), roundings = (double)(x->s + x->a.state + 8),
                 bound = log1p(exp(2)) * terms * roundings * dtype_roundoff(F64);
    for (int64_t i = 0; i < n; i++) {
        assert_true(apart(&mixed, i, &r->mixed, row[i]) == 0);
        if (apart(&y, i, &r->y, row[i]) > bound)
            fail_msg("shape %d: position %d differs by %g, more than %g", (int)x->number, (int)position[i],
                     apart(&y, i, &r->y, row[i]), bound);
    }
    free(in.data), free(dt.data), free(mixed.data), free(y.data);
}

TEST(streams_in_parts_are_whole_requests) {
    const char *shapes = getenv("SCAN_SHAPES");
    Device *d = device_cpu(2);
    for (int i = 0, n = shapes ? atoi(shapes) : 200; i < n; i++) {
        Run r = run_whole(shape_of((uint64_t)i), d);
        const int64_t most = draw(&r.shape, 1, r.shape.s);
        for (int64_t left = 1; left > 0;) {
            run_pass(&r, most);
            left = 0;
            for (int64_t k = 0; k < r.shape.b; k++) left += r.shape.s - r.done[k];
        }
        run_free(&r);
    }
    device_free(d);
}
