/* Tests every tape of tapes.def and of kernels/cases.def in every mode; the modes are the functions below. An
 * argument is a filter of test names ("linear*"). The environment variable GRADCHECK_ELEMENTS is the number of elements
 * of each gradient to sample. A sanitizer needs only one, because a value does not change which memory is accessed. */
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"
#include "unit/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "unit/ops/case_table.h"
#include "unit/ops/compare.h"
#include "unit/ops/replay.h"

static const OpCase TAPES[] = {
#define TAPE TAPE_ROW
#include "unit/ops/tapes.def"
};
enum { TAPE_COUNT = sizeof TAPES / sizeof TAPES[0] };

/* ---- modes ---- */

/* Returns the sum of dy (y(x+h) - y(x-h)) / 2h for one element of x, and the bound on its rounding error. */
static double slope(const OpCase *c, int input, int64_t element, double h, double *rounding) {
    const OpLane lane = {.dtype = F64, .forward_only = true, .moved_input = input, .moved_element = element};
    OpLane up = lane, down = lane;
    up.move = h, down.move = -h;
    Result a = run_case(c, up), b = run_case(c, down);
    double sum = 0, error = 0;
    const double each = 4 * sqrt(most_terms(c)) * dtype_roundoff(F64) * (1 + largest(a.y));
    for (int64_t i = 0; i < a.y.n; i++) {
        const double difference = a.y.v[i] - b.y.v[i];
        sum += grid_value(c->name, CASE_INPUTS, i, GRID_FINE) * difference;
        error += difference != 0 ? each : 0;
    }
    result_free(&a), result_free(&b);
    *rounding = error / h;
    return sum / (2 * h);
}

/* Compares gradients with central differences in double. To leading order, the truncation error of step h is
 * a third of |D(2h) - D(h)|. The bound is the whole difference, plus the rounding errors of the elements of y
 * that changed. */
typedef struct GradCheck {
    const OpCase *c;
    char *fault; /* NULL: none so far */
    bool moved;  /* at least one difference was not 0 */
    double worst, worst_bound;
} GradCheck;

static void check_element(GradCheck *g, int i, int64_t e, double grad) {
    const double h = cbrt(2 * dtype_roundoff(F64));
    double rounding;
    const double d1 = slope(g->c, i, e, h, &rounding), error = fabs(d1 - grad);
    double bound = rounding;
    if (!(error <= bound)) { /* the truncation error matters */
        const double d2 = slope(g->c, i, e, 2 * h, &rounding);
        bound = fabs(d2 - d1) + 2 * rounding;
    }
    if (!(error <= bound) && !g->fault)
        g->fault = mem_printf("%s, gradient of input %d at %lld: %.12g, central difference %.12g, error %.3g "
                              "> |D(2h) - D(h)| + rounding = %.3g",
                              g->c->name, i, (long long)e, grad, d1, error, bound);
    if (error >= g->worst) g->worst = error, g->worst_bound = bound;
    g->moved |= d1 != 0;
}

/* Checks a sample of the elements, and the element with the largest gradient. */
static void check_input(GradCheck *g, int i, Values grad) {
    const char *sampled = getenv("GRADCHECK_ELEMENTS");
    const int64_t each = grad.n / (sampled ? strtoll(sampled, NULL, 10) : 16) + 1;
    int64_t most = 0;
    g->worst = g->worst_bound = 0;
    for (int64_t e = 0; e < grad.n; e++)
        if (fabs(grad.v[e]) > fabs(grad.v[most])) most = e;
    check_element(g, i, most, grad.v[most]);
    for (int64_t e = 0; e < grad.n && !g->fault; e += each) check_element(g, i, e, grad.v[e]);
    print_message("    %-20s error %.3g, bound %.3g\n", GRAD_NAMES[i], g->worst, g->worst_bound);
}

/* Whether the output of the case is constant, so that all gradients are 0. */
static bool is_constant(const OpCase *c) {
    static const char *const NAMES[] = {"dropout_all", "attention_lengths_none", "cross_entropy_one",
                                        "route_one"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strcmp(c->name, NAMES[i])) return true;
    return false;
}

/* Returns NULL if the gradients are correct and at least one was compared. Otherwise, returns a message,
 * which the caller must free. */
static char *gradient_fault(const OpCase *c) {
    GradCheck g = {.c = c};
    Result r = run_case(c, (OpLane){.dtype = F64});
    const int absent = input_without_gradient(c, &r);
    if (absent < CASE_INPUTS)
        g.fault = mem_printf("%s: the backward has no gradient of input %d", c->name, absent);
    for (int i = 0; i < CASE_INPUTS && !g.fault; i++)
        if (wants_gradient(&c->in[i])) check_input(&g, i, r.grad[i]);
    if (!g.fault && g.moved == is_constant(c))
        g.fault = mem_printf(g.moved ? "%s is listed as constant, and is not"
                                     : "%s: no gradient was compared, or all of them are 0",
                             c->name);
    result_free(&r);
    return g.fault;
}

static void gradcheck(void **state) {
    char *fault = gradient_fault(*state);
    if (fault) fail_msg("%s", fault);
}

static void float_is_near_double(void **state) {
    const OpCase *c = *state;
    Result want = run_case(c, (OpLane){.dtype = F64}), got = run_case(c, (OpLane){.dtype = F32});
    compare_all(c, &got, &want, dtype_roundoff(F32), 4);
    result_free(&want), result_free(&got);
}

/* With 16-bit storage, y, its gradient and intermediate values are rounded, each sum at most as often as it
 * has terms. */
static void half_is_near_float(void **state) {
    const OpCase *c = *state;
    Result want = run_case(c, (OpLane){.dtype = F32, .coarse = true});
    for (DType t = BF16; t <= F16; t++) {
        Result got = run_case(c, (OpLane){.dtype = t, .coarse = true});
        compare_all(c, &got, &want, dtype_roundoff(t), 4);
        result_free(&got);
    }
    result_free(&want);
}

static void kernels_stay_in_bounds_and_add(void **state) {
    const DType types[] = {F64, F32, BF16};
    for (int i = 0; i < 3; i++) {
        Result r = run_case(*state, (OpLane){.dtype = types[i], .trace = replay_check});
        result_free(&r);
    }
}

/* A backward function must add to a gradient that another reader of the input has produced. */
static void gradients_of_readers_add_up(void **state) {
    const OpCase *c = *state;
    Result want = run_case(c, (OpLane){.dtype = F64}),
           got = run_case(c, (OpLane){.dtype = F64, .before = want.joined});
    for (int i = 0; i < CASE_INPUTS; i++)
        for (int64_t e = 0; want.joined & 1u << i && e < want.grad[i].n; e++) want.grad[i].v[e] += 1;
    compare_all(c, &got, &want, dtype_roundoff(F64), 4);
    result_free(&want), result_free(&got);
}

static void split_backward_is_the_whole(void **state) {
    Result want = run_case(*state, (OpLane){.dtype = F32}),
           got = run_case(*state, (OpLane){.dtype = F32, .split = true});
    same_all(*state, &got, &want, true);
    result_free(&want), result_free(&got);
}

static void threads_change_nothing(void **state) {
    for (DType t = F64; t <= F32; t++) {
        Result want = run_case(*state, (OpLane){.dtype = t, .threads = 1});
        for (int threads = 2; threads <= 3; threads++) {
            Result got = run_case(*state, (OpLane){.dtype = t, .threads = threads});
            same_all(*state, &got, &want, true);
            result_free(&got);
        }
        result_free(&want);
    }
}

/* Whether the gradient of a parameter is summed in the canonical order of kernels/ops.def. Two kinds of gradients are
 * not: gradients of parameters that several ops use, because each op adds all samples of a microbatch, and gradients of
 * weights, which are one GEMM over all tokens. */
static bool sums_by_sample(const CaseOperand *in) { return in->parameter && !in->shared; }

/* The batch-invariant mode guarantees that gradients do not depend on how samples are grouped into microbatches.
 * Without it, OpenBLAS chooses the order of a GEMM's sums by its shape. */
static void samples_one_by_one_are_the_batch(void **state) {
    const OpCase *c = *state;
    const OpLane together = {.dtype = F32, .batch_invariant = true};
    OpLane one_by_one = together;
    one_by_one.sample_by_sample = true;
    Result want = run_case(c, together), got = run_case(c, one_by_one);
    expect_gradients(c, &want);
    for (int i = 0; i < CASE_INPUTS; i++)
        if (sums_by_sample(&c->in[i])) same(c, GRAD_NAMES[i], got.grad[i], want.grad[i]);
    result_free(&want), result_free(&got);
}

/* ---- the gradient check must fail if the backward is wrong ---- */

static void wrong_backward(Tape *t, const Node *n, Need need) {
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    const FactorAttr attr = {1.01 * ((const FactorAttr *)n->call.attr)->factor};
    if (dx) tape_call(t, n->op, (Call){.in = {tape_grad(t, n->call.out[0])}, .out = {dx}, .attr = &attr});
}

static Tensor *scale_with(Tape *t, Tensor *x, double factor, NodeBackward *backward) {
    const FactorAttr attr = {factor};
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_scale], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr, backward);
    return y;
}
static Tensor *build_without_backward(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return scale_with(t, in[0], 0.75, NULL);
}
static Tensor *build_with_wrong_backward(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return scale_with(t, in[0], 0.75, wrong_backward);
}
static Tensor *build_scaled_by_0(Tape *t, Tensor **in, const void *attr) {
    (void)attr;
    return op_scale(t, in[0], 0);
}

static void wrong_backwards_are_found(void **state) {
    (void)state;
    static const struct {
        OpCase c;
        const char *fault;
    } WRONG[] = {
        {{"no_backward", build_without_backward, NULL, {X(5, 3, 7)}}, "has no gradient of input 0"},
        {{"wrong_backward", build_with_wrong_backward, NULL, {X(5, 3, 7)}}, "central difference"},
        {{"no_slope", build_scaled_by_0, NULL, {X(5, 3, 7)}}, "all of them are 0"},
        {{"no_input", build_with_wrong_backward, NULL, {M(5, 7)}}, "no gradient was compared"},
    };
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        char *fault = gradient_fault(&WRONG[i].c);
        if (!fault || !strstr(fault, WRONG[i].fault))
            fail_msg("%s: '%s', not '%s'", WRONG[i].c.name, fault ? fault : "passes", WRONG[i].fault);
        free(fault);
    }
}

/* ---- main ---- */

static const struct {
    const char *name;
    CMUnitTestFunction run;
} MODES[] = {
    {"gradcheck", gradcheck},
    {"float_is_near_double", float_is_near_double},
    {"half_is_near_float", half_is_near_float},
    {"kernels_stay_in_bounds_and_add", kernels_stay_in_bounds_and_add},
    {"gradients_of_readers_add_up", gradients_of_readers_add_up},
    {"split_backward_is_the_whole", split_backward_is_the_whole},
    {"threads_change_nothing", threads_change_nothing},
    {"samples_one_by_one_are_the_batch", samples_one_by_one_are_the_batch},
};
enum { MODE_COUNT = sizeof MODES / sizeof MODES[0] };

typedef struct Tests {
    struct CMUnitTest *at;
    size_t n;
} Tests;

static bool has_sums_by_sample(const OpCase *c) {
    for (int i = 0; i < CASE_INPUTS; i++)
        if (sums_by_sample(&c->in[i])) return true;
    return false;
}

static void add(Tests *t, const OpCase *c) {
    for (int m = 0; m < MODE_COUNT; m++)
        if (MODES[m].run != samples_one_by_one_are_the_batch ||
            has_sums_by_sample(c)) /* otherwise the test would compare no gradient */
            t->at[t->n++] = (struct CMUnitTest){.name = mem_printf("%s %s", c->name, MODES[m].name),
                                                .test_func = MODES[m].run,
                                                .initial_state = (void *)c};
}

int main(int argc, char **argv) {
    const size_t most = (size_t)(TAPE_COUNT + kernel_case_count());
    Tests tests = {mem_alloc((most * MODE_COUNT + 1) * sizeof *tests.at), 0};
    OpCase *rows = mem_alloc((size_t)kernel_case_count() * sizeof *rows);
    for (int i = 0; i < TAPE_COUNT; i++) add(&tests, &TAPES[i]);
    for (int i = 0; i < kernel_case_count(); i++)
        if (case_on_tape(i, &rows[i])) add(&tests, &rows[i]);
    tests.at[tests.n++] = (struct CMUnitTest){.name = mem_printf("wrong backwards are found"),
                                              .test_func = wrong_backwards_are_found};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = _cmocka_run_group_tests("ops", tests.at, tests.n, NULL, NULL);
    for (size_t i = 0; i < tests.n; i++) free((char *)tests.at[i].name);
    free(tests.at), free(rows);
    return failed;
}
