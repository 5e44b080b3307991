/* Tests that rows of kernels/cases.def run as benchmarks, and that the work of a call follows from its
 * operands. */
#include "unit/cmocka_all.h"

#include <string.h>

#include "bench/ops/cases.h"
#include "bench/ops/operands.h"
#include "bench/train/gemms.h"
#include "kernels/attr.h"
#include "measure/op_cost.h"
#include "measure/peaks.h"

static Call call_of(Tensor *a, Tensor *b, Tensor *out) { return (Call){.in = {a, b}, .out = {out}}; }

TEST(the_work_of_gemms) {
    Tensor x = tensor_make(NULL, BF16, 3, (int64_t[]){5, 2, 7}),
           w = tensor_make(NULL, BF16, 2, (int64_t[]){11, 7}),
           y = tensor_make(NULL, BF16, 3, (int64_t[]){5, 2, 11}),
           dw = tensor_make(NULL, F32, 2, (int64_t[]){11, 7});
    dw.flags = TENSOR_ACCUM;
    const Call forward = call_of(&x, &w, &y), dgrad = call_of(&y, &w, &x), wgrad = call_of(&y, &x, &dw);
    GemmShape p;
    assert_true(work_gemm(OP_linear, &forward, &p));
    assert_true(p.m == 10 && p.n == 11 && p.k == 7);
    assert_true(work_gemm(OP_linear_dgrad, &dgrad, &p));
    assert_true(p.m == 10 && p.n == 7 && p.k == 11);
    assert_true(work_gemm(OP_linear_wgrad, &wgrad, &p));
    assert_true(p.m == 11 && p.n == 7 && p.k == 10);
    assert_true(work_flops(OP_linear, &forward) == 2.0 * 10 * 11 * 7);
    assert_true(work_flops(OP_linear_wgrad, &wgrad) == 2.0 * 10 * 11 * 7);
    assert_true(work_bytes(OP_linear_wgrad, &wgrad) ==
                2 * (110 + 70) + 2 * 4 * 77); /* dw is read and written */
    const Call bias = {.in = {&y, &x}, .out = {NULL, &dw}};
    assert_false(work_gemm(OP_linear_wgrad, &bias, &p));
    assert_true(work_flops(OP_add, &forward) == 0);
}

/* Counts query-key pairs; a pair on the diagonal counts as half a pair. Each pair needs two operations per
 * column and GEMM. */
TEST(the_work_of_attention) {
    enum { POSITIONS = 6, HEADS = 2 * 3 * 4, WIDTH = 8 };
    Tensor q = tensor_make(NULL, BF16, 5, (int64_t[]){POSITIONS, 2, 3, 4, WIDTH});
    const AttentionAttr causal = {.window_left = WINDOW_OFF}, window = {.window_left = 1};
    const Call forward = {.in = {&q, &q, &q}, .attr = &causal},
               backward = {.in = {&q, &q, &q, &q}, .attr = &causal};
    double pairs = 0;
    for (int i = 0; i < POSITIONS; i++)
        for (int j = 0; j <= i; j++) pairs += i == j ? 0.5 : 1;
    const double gemm = pairs * HEADS * 2 * WIDTH;
    assert_true(work_flops(OP_attention, &forward) == 2 * gemm);
    assert_true(work_flops(OP_attention_unfused, &forward) == 2 * gemm);
    assert_true(work_flops(OP_attention_grad, &backward) == 5 * gemm);
    assert_true(work_flops(OP_attention_unfused_grad, &backward) == 4 * gemm);
    const Call narrow = {.in = {&q, &q, &q}, .attr = &window}; /* two keys per query count as two pairs */
    assert_true(work_flops(OP_attention, &narrow) == 2. * 2 * POSITIONS * HEADS * 2 * WIDTH);
}

/* Only the rows of the tokens are read from the table. In the gradient, these rows are read and written. */
TEST(the_work_of_embeddings) {
    Tensor id = tensor_make(NULL, I64, 2, (int64_t[]){2, 5}),
           table = tensor_make(NULL, BF16, 2, (int64_t[]){1000, 8}),
           y = tensor_make(NULL, BF16, 3, (int64_t[]){5, 2, 8}),
           dw = tensor_make(NULL, F32, 2, (int64_t[]){1000, 8});
    dw.flags = TENSOR_ACCUM;
    const Call forward = {.in = {&id, &table}, .out = {&y}}, backward = {.in = {&y, &id}, .out = {&dw}};
    assert_true(work_bytes(OP_embedding, &forward) == 10 * 8 + 2 * (10 * 8 * 2));
    assert_true(work_bytes(OP_embedding_grad, &backward) == 10 * 8 * 2 + 10 * 8 + 2 * (10 * 8 * 4));
}

/* Calls whose shapes, types or attributes differ count as different GEMMs, other calls as one GEMM. */
TEST(gemms_are_told_apart) {
    Tensor x = tensor_make(NULL, BF16, 3, (int64_t[]){5, 2, 8}),
           w = tensor_make(NULL, BF16, 2, (int64_t[]){16, 8}),
           y = tensor_make(NULL, BF16, 3, (int64_t[]){5, 2, 16}), bias = tensor_make(NULL, BF16, 1, w.dim),
           half = tensor_make(NULL, F16, 3, x.dim), added = y;
    const LinearAttr plain = {.fixed_order = false}, fixed = {.fixed_order = true};
    const Call call = {.in = {&x, &w}, .out = {&y}, .attr = &plain};
    Call other[] = {call, call, call, call};
    static StepGemms all;
    other[0].attr = &fixed, other[1].in[2] = &bias, other[2].in[0] = &half, other[3].out[0] = &added;
    added.flags = TENSOR_ACCUM;
    all.count = 0;
    for (int i = 0; i < 3; i++) gemms_count(&all, &OPS[OP_linear], &call);
    for (int i = 0; i < 4; i++) gemms_count(&all, &OPS[OP_linear], &other[i]);
    gemms_count(&all, &OPS[OP_add], &call);
    assert_int_equal(all.count, 5);
    assert_int_equal(all.at[0].calls, 3);
    assert_int_equal(gemms_find(&all, &OPS[OP_linear], &call), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(gemms_find(&all, &OPS[OP_linear], &other[i]), 1 + i);
    assert_int_equal(gemms_find(&all, &OPS[OP_linear_dgrad], &call), -1);
    assert_int_equal(gemms_find(&all, &OPS[OP_add], &call), -1);
    assert_int_equal(gemms_find(&all, &OPS[OP_all_reduce], &call), -1);
    assert_true(gemms_flops(&all) == (3 + 4) * 2.0 * 10 * 16 * 8);
}

/* Routing changes the number of rows of experts, but calls still count as one GEMM. */
TEST(gemms_of_experts_are_one) {
    static StepGemms all;
    const LinearAttr attr = {.fixed_order = false};
    const int64_t rows[] = {24, 7, 0};
    all.count = 0;
    for (int i = 0; i < 3; i++) {
        Tensor x = tensor_make(NULL, F32, 3, (int64_t[]){rows[i], 1, 4}),
               w = tensor_make(NULL, F32, 2, (int64_t[]){3 * 5, 4}),
               y = tensor_make(NULL, F32, 3, (int64_t[]){rows[i], 1, 5}),
               offset = tensor_make(NULL, I64, 1, (int64_t[]){4});
        const Call call = {.in = {&x, &w, &offset}, .out = {&y}, .attr = &attr};
        gemms_count(&all, &OPS[OP_grouped_linear], &call);
        assert_int_equal(gemms_find(&all, &OPS[OP_grouped_linear], &call), rows[i] ? 0 : -1);
    }
    assert_int_equal(all.count, 1);
    assert_int_equal(all.at[0].calls, 2);
    assert_true(gemms_flops(&all) == 2.0 * (24 + 7) * 5 * 4);
}

TEST(of_experts_all_rows_count) {
    Tensor x = tensor_make(NULL, F32, 3, (int64_t[]){24, 1, 4}),
           w = tensor_make(NULL, F32, 2, (int64_t[]){3 * 5, 4}),
           y = tensor_make(NULL, F32, 3, (int64_t[]){24, 1, 5}),
           offset = tensor_make(NULL, I64, 1, (int64_t[]){4});
    const Call c = {.in = {&x, &w, &offset}, .out = {&y}};
    GemmShape p;
    assert_true(work_gemm(OP_grouped_linear, &c, &p));
    assert_true(p.m == 24 && p.n == 5 && p.k == 4);
    Tensor bias = tensor_make(NULL, F32, 1, (int64_t[]){3 * 5});
    const Call grad = {.in = {&y, &bias, &offset}, .out = {&bias}};
    assert_false(work_gemm(OP_grouped_bias_grad, &grad, &p)); /* not a GEMM, and without its attributes */
}

TEST(the_work_of_a_gemm_of_each_head) {
    Tensor x = tensor_make(NULL, F32, 5, (int64_t[]){1, 6, 1, 3, 4}),
           w = tensor_make(NULL, F32, 3, (int64_t[]){3, 4, 7}),
           y = tensor_make(NULL, F32, 5, (int64_t[]){1, 6, 1, 3, 7});
    const Call c = call_of(&x, &w, &y);
    assert_true(work_flops(OP_linear_heads, &c) == 2.0 * 6 * 3 * 4 * 7);
}

TEST(peaks_are_of_the_longest_name) {
    assert_true(bench_peak("NVIDIA H200 (GPU 0, sm_90)", BF16) == 989);
    assert_true(bench_peak("NVIDIA H200 NVL (GPU 0, sm_90)", BF16) == 835);
    assert_true(bench_peak("NVIDIA H100 80GB HBM3 (GPU 0, sm_90)", F64) == 67);
    assert_true(bench_peak("CPU (2 threads)", BF16) == 0);
}

/* Every case must run at its small size, with integers that are valid for the op. */
TEST(cases_run) {
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
