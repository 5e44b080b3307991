/* Compares the gated norm and its gradients with the formulas, for random shapes, groups and views. The environment
 * variable SCAN_SHAPES is the number of shapes. */
#include "unit/cmocka_all.h"

#include "base/philox.h"
#include "kernels/case_rows.h"
#include "ops/state_space.h"
#include "unit/ops/case.h"
#include "unit/ops/compare.h"

enum { INPUT, GATE, GAIN };

/* The gate consists of the columns from `first` on of wider rows, like that of a Mamba-2 layer. */
typedef struct Shape {
    OpCase c;
    GatedNormAttr a;
    int64_t s, b, width, first, wide; /* width: number of columns of a group */
    char name[32];
} Shape;

static Tensor *build(Tape *t, Tensor **in, const void *attr) {
    const Shape *x = attr;
    Tensor *z = tape_view(t, in[GATE], x->first, 3, in[INPUT]->dim, in[GATE]->stride);
    return op_gated_norm(t, in[INPUT], z, in[GAIN], x->a);
}

static int64_t drawn(int shape, uint64_t index, int64_t low, int64_t most) {
    return low + philox_u32(9, (uint64_t)shape, index) % (most - low + 1);
}

static void draw_shape(Shape *x, int k) {
    const int64_t s = drawn(k, 0, 1, 20), b = drawn(k, 1, 1, 3), g = drawn(k, 2, 1, 6),
                  w = drawn(k, 3, 1, 70), first = drawn(k, 4, 0, 9), wide = first + g * w + drawn(k, 5, 0, 9);
    *x = (Shape){.a = {g, k % 2 ? 1e-5 : 0.3}, .s = s, .b = b, .width = w, .first = first, .wide = wide};
    snprintf(x->name, sizeof x->name, "gated norm %d", k);
    x->c = (OpCase){x->name, build, x, {X(s, b, g * w), X(s, b, wide), P(g * w)}};
}

static double input(const Shape *x, int i, int64_t e) { return grid_value(x->name, i, e, GRID_FINE); }

/* Computes the outputs and gradients of one group of one token. */
static void normalize(const Shape *x, int64_t token, int64_t group, Result *r) {
    const int64_t c = x->a.groups * x->width, column = group * x->width, at = token * c + column,
                  gate = token * x->wide + x->first + column;
    double squares = 0, along = 0;
    for (int64_t i = 0; i < x->width; i++) {
        const double z = input(x, GATE, gate + i), u = input(x, INPUT, at + i) * z / (1 + exp(-z));
        squares += u * u;
        along += u * input(x, GAIN, column + i) * input(x, CASE_INPUTS, at + i);
    }
    const double inverse = 1 / sqrt(squares / (double)x->width + x->a.eps);
    for (int64_t i = 0; i < x->width; i++) {
        const double z = input(x, GATE, gate + i), open = 1 / (1 + exp(-z)), silu = z * open,
                     in = input(x, INPUT, at + i), gain = input(x, GAIN, column + i),
                     dy = input(x, CASE_INPUTS, at + i),
                     du = inverse * (gain * dy - in * silu * inverse * inverse * along / (double)x->width);
        r->y.v[at + i] = in * silu * inverse * gain;
        r->grad[INPUT].v[at + i] = du * silu;
        r->grad[GATE].v[gate + i] = du * in * (open + silu * (1 - open));
        r->grad[GAIN].v[column + i] += dy * in * silu * inverse;
    }
}

static Values zeros(int64_t n) { return (Values){mem_zero((size_t)n + 1, sizeof(double)), n}; }

static Result formulas(const Shape *x) {
    Result r = {.y = zeros(input_count(&x->c.in[INPUT]))};
    for (int i = INPUT; i <= GAIN; i++) r.grad[i] = zeros(input_count(&x->c.in[i]));
    for (int64_t token = 0; token < x->s * x->b; token++)
        for (int64_t group = 0; group < x->a.groups; group++) normalize(x, token, group, &r);
    return r;
}

/* A result is a quotient of sums of products of at most 6 factors. */
TEST(norms_agree_with_the_formulas) {
    const char *shapes = getenv("SCAN_SHAPES");
    for (int i = 0, n = shapes ? atoi(shapes) : 60; i < n; i++) {
        Shape x;
        draw_shape(&x, i);
        Result want = formulas(&x), got = run_case(&x.c, (OpLane){.dtype = F64});
        compare_all(&x.c, &got, &want, dtype_roundoff(F64), 16);
        result_free(&want), result_free(&got);
    }
}
