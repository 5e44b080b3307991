/* Every op is measured, counted to a family, and known to move something; the work of a call is that of its
 * operands. */
#include "unit/cmocka_all.h"

#include <string.h>

#include "bench/ops/cases.h"
#include "bench/ops/operands.h"
#include "bench/roofs.h"
#include "bench/train/family.h"
#include "bench/work.h"
#include "kernels/attr.h"

static void every_op_has_a_case_and_a_family(void **state) {
    bool has[OP_COUNT] = {0};
    (void)state;
    for (int i = 0; i < bench_case_count(); i++) has[bench_case_op(i)] = true;
    for (int op = 0; op < OP_COUNT; op++) {
        if (!has[op]) fail_msg("bench/ops/cases.def has no case of %s", OPS[op].name);
        assert_in_range(family_of((OpNumber)op), 0, FAMILY_COUNT - 1);
    }
}

static Call call_of(Tensor *a, Tensor *b, Tensor *out) { return (Call){.in = {a, b}, .out = {out}}; }

static void the_work_of_products(void **state) {
    (void)state;
    Tensor x = tensor_make(NULL, BF16, 3, (int64_t[]){5, 2, 7}),
           w = tensor_make(NULL, BF16, 2, (int64_t[]){11, 7}),
           y = tensor_make(NULL, BF16, 3, (int64_t[]){5, 2, 11}),
           dw = tensor_make(NULL, F32, 2, (int64_t[]){11, 7});
    dw.flags = TENSOR_ACCUM;
    const Call forward = call_of(&x, &w, &y), dgrad = call_of(&y, &w, &x), wgrad = call_of(&y, &x, &dw);
    ProductShape p;
    assert_true(work_product(OP_linear, &forward, &p));
    assert_true(p.m == 10 && p.n == 11 && p.k == 7);
    assert_true(work_product(OP_linear_dgrad, &dgrad, &p));
    assert_true(p.m == 10 && p.n == 7 && p.k == 11);
    assert_true(work_product(OP_linear_wgrad, &wgrad, &p));
    assert_true(p.m == 11 && p.n == 7 && p.k == 10);
    assert_true(work_flops(OP_linear, &forward) == 2.0 * 10 * 11 * 7);
    assert_true(work_flops(OP_linear_wgrad, &wgrad) == 2.0 * 10 * 11 * 7);
    assert_true(work_bytes(OP_linear_wgrad, &wgrad) ==
                2 * (110 + 70) + 2 * 4 * 77); /* dw is read and written */
    const Call bias = {.in = {&y, &x}, .out = {NULL, &dw}};
    assert_false(work_product(OP_linear_wgrad, &bias, &p));
    assert_true(work_flops(OP_add, &forward) == 0);
}

static void of_experts_all_rows_count(void **state) {
    (void)state;
    Tensor x = tensor_make(NULL, F32, 3, (int64_t[]){24, 1, 4}),
           w = tensor_make(NULL, F32, 2, (int64_t[]){3 * 5, 4}),
           y = tensor_make(NULL, F32, 3, (int64_t[]){24, 1, 5}),
           offset = tensor_make(NULL, I64, 1, (int64_t[]){4});
    const Call c = {.in = {&x, &w, &offset}, .out = {&y}};
    ProductShape p;
    assert_true(work_product(OP_grouped_linear, &c, &p));
    assert_true(p.m == 24 && p.n == 5 && p.k == 4);
}

static void a_range_has_a_middle(void **state) {
    (void)state;
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
    assert_true(bench_range(odd, 3).median == 2);
    const Range r = bench_range(even, 4);
    assert_true(r.median == 2.5 && r.min == 1 && r.max == 4);
}

static void peaks_are_of_the_longest_name(void **state) {
    (void)state;
    assert_true(bench_peak("NVIDIA H200 (GPU 0, sm_90)", BF16) == 989);
    assert_true(bench_peak("NVIDIA H200 NVL (GPU 0, sm_90)", BF16) == 835);
    assert_true(bench_peak("NVIDIA H100 80GB HBM3 (GPU 0, sm_90)", F64) == 67);
    assert_true(bench_peak("CPU (2 threads)", BF16) == 0);
}

/* A case runs on its small size, and its integers are what the op takes. */
static void cases_run(void **state) {
    (void)state;
    Device *d = device_cpu(1);
    static const char *const SOME[] = {"attention_merge/middle",
                                       "attention_sink/middle",
                                       "attention_sink_grad/middle",
                                       "route/softmax",
                                       "dispatch/dropless",
                                       "dispatch/capacity",
                                       "drop",
                                       "arrival",
                                       "permute",
                                       "unpermute",
                                       "fp8_scale",
                                       "expert_count",
                                       "norm_grad/rms"};
    for (int i = 0; i < bench_case_count(); i++)
        for (size_t k = 0; k < sizeof SOME / sizeof *SOME; k++) {
            if (strcmp(bench_case_name(i), SOME[k])) continue;
            BenchCalls *b = bench_case_open(i, d, BF16);
            bench_calls_run(b);
            assert_true(work_bytes(bench_case_op(i), bench_calls_shape(b)) > 0);
            bench_calls_free(b);
        }
    device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_case_and_a_family), cmocka_unit_test(the_work_of_products),
        cmocka_unit_test(of_experts_all_rows_count),        cmocka_unit_test(a_range_has_a_middle),
        cmocka_unit_test(peaks_are_of_the_longest_name),    cmocka_unit_test(cases_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
