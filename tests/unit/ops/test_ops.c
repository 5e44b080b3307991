/* Every tape of tapes.def and of kernels/cases.def in every mode; see the functions below. An argument is a
 * filter of test names ("linear*"). */
#include "unit/cmocka_all.h"

#include <stdio.h>

#include "kernels/ops.h"
#include "unit/ops/compare.h"
#include "unit/ops/replay.h"
#include "unit/ops/case_table.h"

static const OpCase TAPES[] = {
#define TAPE TAPE_ROW
#include "unit/ops/tapes.def"
};
enum { TAPE_COUNT = sizeof TAPES / sizeof TAPES[0] };

/* ---- modes ---- */

/* sum of dy (y(x+h) - y(x-h)) / 2h for one moved element, and the bound on its rounding error. */
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

/* Central differences in double. The truncation error of step h is a third of |D(2h) - D(h)| to leading
 * order; the bound takes the whole difference, and adds the rounding errors of the elements of y that moved. */
static void gradcheck(void **state) {
    const OpCase *c = *state;
    enum { SAMPLED = 16 };
    const double h = cbrt(2 * dtype_roundoff(F64));
    Result r = run_case(c, (OpLane){.dtype = F64});
    for (int i = 0; i < CASE_INPUTS; i++) {
        const int64_t n = r.grad[i].n, step = n / SAMPLED + 1;
        double worst = 0, worst_bound = 0;
        for (int64_t e = 0; e < n; e += step) {
            double rounding;
            const double d1 = slope(c, i, e, h, &rounding), d2 = slope(c, i, e, 2 * h, &rounding);
            const double bound = fabs(d2 - d1) + 2 * rounding, error = fabs(d1 - r.grad[i].v[e]);
            if (!(error <= bound))
                fail_msg("%s, gradient of input %d at %lld: %.12g, central difference %.12g, error %.3g > "
                         "|D(2h) - D(h)| + rounding = %.3g",
                         c->name, i, (long long)e, r.grad[i].v[e], d1, error, bound);
            if (error >= worst) worst = error, worst_bound = bound;
        }
        if (n) print_message("    %-20s error %.3g, bound %.3g\n", GRAD_NAMES[i], worst, worst_bound);
    }
    result_free(&r);
}

static void float_is_near_double(void **state) {
    const OpCase *c = *state;
    Result want = run_case(c, (OpLane){.dtype = F64}), got = run_case(c, (OpLane){.dtype = F32});
    compare_all(c, &got, &want, dtype_roundoff(F32), 4);
    result_free(&want), result_free(&got);
}

/* Storage in 16 bits: y, its gradient and what lies between them are rounded, each sum on its way at most as
 * often as it has terms. */
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

/* The canonical order of kernels/ops.def: gradients of parameters do not depend on how samples are grouped
 * into microbatches. (Not so of a parameter that several ops use, where each adds all samples of a microbatch
 * in turn, nor of a weight, whose gradient is one GEMM over all tokens.) */
static void samples_one_by_one_are_the_batch(void **state) {
    const OpCase *c = *state;
    Result want = run_case(c, (OpLane){.dtype = F32});
    Result got = run_case(c, (OpLane){.dtype = F32, .sample_by_sample = true});
    for (int i = 0; i < CASE_INPUTS; i++)
        if (c->in[i].parameter && !c->in[i].shared) same(c, GRAD_NAMES[i], got.grad[i], want.grad[i]);
    result_free(&want), result_free(&got);
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
    {"split_backward_is_the_whole", split_backward_is_the_whole},
    {"threads_change_nothing", threads_change_nothing},
    {"samples_one_by_one_are_the_batch", samples_one_by_one_are_the_batch},
};
enum { MODE_COUNT = sizeof MODES / sizeof MODES[0] };

typedef struct Tests {
    struct CMUnitTest *at;
    size_t n;
} Tests;

static void add(Tests *t, const OpCase *c) {
    for (int m = 0; m < MODE_COUNT; m++)
        t->at[t->n++] = (struct CMUnitTest){.name = mem_printf("%s %s", c->name, MODES[m].name),
                                            .test_func = MODES[m].run,
                                            .initial_state = (void *)c};
}

int main(int argc, char **argv) {
    const size_t most = (size_t)(TAPE_COUNT + kernel_case_count());
    Tests tests = {mem_alloc(most * MODE_COUNT * sizeof *tests.at), 0};
    OpCase *rows = mem_alloc((size_t)kernel_case_count() * sizeof *rows);
    for (int i = 0; i < TAPE_COUNT; i++) add(&tests, &TAPES[i]);
    for (int i = 0; i < kernel_case_count(); i++)
        if (case_on_tape(i, &rows[i])) add(&tests, &rows[i]);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = _cmocka_run_group_tests("ops", tests.at, tests.n, NULL, NULL);
    for (size_t i = 0; i < tests.n; i++) free((char *)tests.at[i].name);
    free(tests.at), free(rows);
    return failed;
}
