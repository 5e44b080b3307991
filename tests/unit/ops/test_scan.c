/* Compares the chunked scan of Mamba-2 and its gradients with the recurrences, one position at a time, for random
 * shapes, chunks and documents. The environment variable SCAN_SHAPES is the number of shapes. */
#include "unit/cmocka_all.h"

#include "base/philox.h"
#include "kernels/case_rows.h"
#include "unit/ops/builders.h"
#include "unit/ops/compare.h"

enum { INPUT, STEP, DT_BIAS, A_LOG, D, START };

typedef struct Shape {
    OpCase c;
    ScanAttr a;
    int64_t s, b, h, width;
    char name[32];
} Shape;

static int64_t drawn(uint64_t shape, uint64_t index, int64_t low, int64_t most) {
    return low + philox_u32(7, shape, index) % (most - low + 1);
}

/* Every third shape has limits that clamp about half of the steps. */
static void draw_shape(Shape *x, int number) {
    const uint64_t k = (uint64_t)number;
    const int64_t s = drawn(k, 0, 1, 60), b = drawn(k, 1, 1, 3), g = drawn(k, 2, 1, 3),
                  h = g * drawn(k, 3, 1, 3), p = drawn(k, 4, 1, 9), n = drawn(k, 5, 1, 9),
                  width = h * p + 2 * g * n;
    *x = (Shape){.a = {g, p, n, drawn(k, 6, 1, 70), number % 3 ? 0 : 0.5, number % 3 ? HUGE_VAL : 0.9},
                 .s = s,
                 .b = b,
                 .h = h,
                 .width = width};
    snprintf(x->name, sizeof x->name, "scan %d", number);
    x->c = (OpCase){x->name, build_ssd_scan, &x->a, {X(s, b, width), X(s, b, h), P(h), P(h), P(h)}};
    if (number % 2) x->c.in[START] = (CaseOperand)DOCUMENTS((uint32_t)drawn(k, 7, 1, s), b, s);
}

static double input(const Shape *x, int i, int64_t e) { return grid_value(x->name, i, e, GRID_FINE); }

/* One head of one sample: the operands at each position, the states after each position, and the gradients. */
typedef struct Naive {
    const Shape *x;
    int64_t sample, head;
    double *states; /* [s,p,n] */
    Values y, *grad;
} Naive;

static int64_t row_of(const Naive *o, int64_t t) { return (t * o->x->b + o->sample) * o->x->width; }
static int64_t at_x(const Naive *o, int64_t t) { return row_of(o, t) + o->head * o->x->a.head_dim; }
static int64_t at_b(const Naive *o, int64_t t) {
    const ScanAttr *a = &o->x->a;
    return row_of(o, t) + o->x->h * a->head_dim + o->head / (o->x->h / a->groups) * a->state;
}
static int64_t at_c(const Naive *o, int64_t t) { return at_b(o, t) + o->x->a.groups * o->x->a.state; }
static int64_t at_y(const Naive *o, int64_t t) {
    return ((t * o->x->b + o->sample) * o->x->h + o->head) * o->x->a.head_dim;
}
static bool begins(const Naive *o, int64_t t) {
    const CaseOperand *start = &o->x->c.in[START];
    return t == 0 || (start->ndim && t % start->range == 0);
}

static double raw(const Naive *o, int64_t t) {
    return input(o->x, STEP, (t * o->x->b + o->sample) * o->x->h + o->head) + input(o->x, DT_BIAS, o->head);
}
static double delta(const Naive *o, int64_t t) {
    return fmin(fmax(log1p(exp(raw(o, t))), o->x->a.least), o->x->a.most);
}
static double keep(const Naive *o, int64_t t) {
    return begins(o, t) ? 0 : exp(-exp(input(o->x, A_LOG, o->head)) * delta(o, t));
}

static void forward(Naive *o) {
    const int64_t p = o->x->a.head_dim, n = o->x->a.state;
    for (int64_t t = 0; t < o->x->s; t++)
        for (int64_t i = 0; i < p; i++) {
            double *state = o->states + (t * p + i) * n;
            const double in = input(o->x, INPUT, at_x(o, t) + i);
            double y = input(o->x, D, o->head) * in;
            for (int64_t k = 0; k < n; k++) {
                const double before = t ? state[k - p * n] : 0;
                state[k] = keep(o, t) * before + delta(o, t) * in * input(o->x, INPUT, at_b(o, t) + k);
                y += state[k] * input(o->x, INPUT, at_c(o, t) + k);
            }
            o->y.v[at_y(o, t) + i] = y;
        }
}

/* `z` [p,n] is the gradient of the state after position t. */
static void backward_at(Naive *o, int64_t t, double *z) {
    const int64_t p = o->x->a.head_dim, n = o->x->a.state;
    const double step = delta(o, t), rate = -exp(input(o->x, A_LOG, o->head)), skip = input(o->x, D, o->head);
    double dstep = 0, da = 0;
    for (int64_t i = 0; i < p; i++) {
        const double dy = grid_value(o->x->name, CASE_INPUTS, at_y(o, t) + i, GRID_FINE),
                     in = input(o->x, INPUT, at_x(o, t) + i);
        double along = 0;
        for (int64_t k = 0; k < n; k++) {
            const double *state = o->states + (t * p + i) * n + k, b = input(o->x, INPUT, at_b(o, t) + k);
            double *to = z + i * n + k;
            *to += dy * input(o->x, INPUT, at_c(o, t) + k);
            along += *to * b;
            o->grad[INPUT].v[at_b(o, t) + k] += step * in * *to;
            o->grad[INPUT].v[at_c(o, t) + k] += dy * *state;
            if (!begins(o, t)) da += keep(o, t) * *to * state[-p * n];
            *to *= keep(o, t);
        }
        o->grad[INPUT].v[at_x(o, t) + i] += step * along + skip * dy;
        o->grad[D].v[o->head] += dy * in;
        dstep += in * along;
    }
    const double draw =
        step > o->x->a.least && step < o->x->a.most ? (dstep + rate * da) / (1 + exp(-raw(o, t))) : 0;
    o->grad[STEP].v[(t * o->x->b + o->sample) * o->x->h + o->head] = draw;
    o->grad[DT_BIAS].v[o->head] += draw;
    o->grad[A_LOG].v[o->head] += da * rate * step;
}

static Result recurrence(const Shape *x) {
    const int64_t p = x->a.head_dim, n = x->a.state, elements = x->s * x->b * x->h * p;
    Result r = {.y = {mem_zero((size_t)elements + 1, sizeof(double)), elements}};
    Naive o = {
        .x = x, .states = mem_alloc((size_t)(x->s * p * n) * sizeof(double)), .y = r.y, .grad = r.grad};
    for (int i = INPUT; i < START; i++)
        r.grad[i] = (Values){mem_zero((size_t)input_count(&x->c.in[i]) + 1, sizeof(double)),
                             input_count(&x->c.in[i])};
    for (o.sample = 0; o.sample < x->b; o.sample++)
        for (o.head = 0; o.head < x->h; o.head++) {
            double *z = mem_zero((size_t)(p * n), sizeof(double));
            forward(&o);
            for (int64_t t = x->s - 1; t >= 0; t--) backward_at(&o, t, z);
            free(z);
        }
    free(o.states);
    return r;
}

/* A result is a sum, over positions and over a state's elements, of products of at most 5 factors. compare() counts the
 * positions. The recurrence multiplies a term by up to s decays, each of which is rounded, and the chunked scan by
 * one. */
static void chunks_agree_with_recurrences(void **state) {
    (void)state;
    const char *shapes = getenv("SCAN_SHAPES");
    for (int i = 0, n = shapes ? atoi(shapes) : 60; i < n; i++) {
        Shape x;
        draw_shape(&x, i);
        Result want = recurrence(&x), got = run_case(&x.c, (OpLane){.dtype = F64});
        compare_all(&x.c, &got, &want, dtype_roundoff(F64), 8 * sqrt((double)(x.a.head_dim * x.a.state)));
        result_free(&want), result_free(&got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_agree_with_recurrences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
