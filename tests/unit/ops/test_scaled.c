/* Tests that op_scaled_activation is bitwise equal to op_activation and op_scale_rows, keeps less memory, and runs the
 * two ops in the exact lane. */
#include "unit/cmocka_all.h"

#include "kernels/ops.h"
#include "unit/ops/case_table.h"
#include "unit/ops/compare.h"

static Tensor *build_two_ops(Tape *t, Tensor **in, const void *attr) {
    return op_scale_rows(t, op_activation(t, in[0], *(const ActivationAttr *)attr), in[1], false);
}

/* only_scale and only_x omit the gradient of the other input. */
static Tensor *only_scale(Tape *t, Tensor **in, const void *attr) {
    in[0]->flags &= (uint8_t)~TENSOR_NEEDS_GRAD;
    return build_activation(t, in, attr);
}

static Tensor *only_x(Tape *t, Tensor **in, const void *attr) {
    in[1]->flags &= (uint8_t)~TENSOR_NEEDS_GRAD;
    return build_activation(t, in, attr);
}

#define PLAIN(act) TAPE_ROW(act, activation, ATTR(ActivationAttr, .kind = act), X(33, 3, 523), X(33, 3, 1))
#define GATED(act, ...)                                                                                      \
    TAPE_ROW(act, activation, ATTR(ActivationAttr, .kind = act, __VA_ARGS__), X(33, 3, 1046), M(33, 3, 1))
static const OpCase CASES[] = {PLAIN(ACT_GELU_TANH) PLAIN(ACT_GELU_ERF) PLAIN(ACT_QUICK_GELU)
                                   PLAIN(ACT_SQUARED_RELU) PLAIN(ACT_RELU) PLAIN(ACT_TANH)
                                       GATED(ACT_SWIGLU, .limit = 0) GATED(ACT_SWIGLU, .limit = 0.7)
                                           GATED(ACT_GEGLU_TANH, .limit = 0) GATED(ACT_GEGLU_ERF, .limit = 0)
                                               GATED(ACT_QUICK_GEGLU, .limit = 0.7, .offset = 1)};
enum { CASE_COUNT = sizeof CASES / sizeof CASES[0] };

TEST(has_the_bits_of_two_ops) {
    for (DType dtype = F64; dtype <= F16; dtype++)
        for (int i = 0; i < CASE_COUNT; i++)
            for (unsigned before = 0; before < 4; before++) {
                const OpCase two = built_by(&CASES[i], build_two_ops);
                const OpLane lane = {.dtype = dtype, .threads = 2, .before = before};
                Result got = run_case(&CASES[i], lane), want = run_case(&two, lane);
                same_all(&CASES[i], &got, &want, true);
                result_free(&got), result_free(&want);
            }
}

/* The kernel must also round intermediate values if one of its outputs is missing. */
TEST(gradients_do_not_need_each_other) {
    static BuildFn *const ONLY[] = {only_x, only_scale};
    for (DType dtype = F64; dtype <= F16; dtype++)
        for (int i = 0; i < CASE_COUNT; i++)
            for (int k = 0; k < 2; k++) {
                const OpCase one = built_by(&CASES[i], ONLY[k]);
                Result got = run_case(&one, (OpLane){.dtype = dtype}),
                       want = run_case(&CASES[i], (OpLane){.dtype = dtype});
                same(&CASES[i], GRAD_NAMES[k], got.grad[k], want.grad[k]);
                assert_null(got.grad[1 - k].v);
                result_free(&got), result_free(&want);
            }
}

/* ---- which ops run, and the memory that they keep ---- */

typedef struct Seen {
    int scales; /* number of ops that only scale rows, forward or backward */
    size_t kept;
} Seen;

static void count(void *arg, const OpDef *op, const Call *c) {
    (void)c;
    ((Seen *)arg)->scales += op->number == OP_scale_rows || op->number == OP_scale_rows_grad;
}

static Seen seen_in(const OpCase *c, DType dtype, bool exact) {
    Seen seen = {0};
    seen.kept = run_traced(c, dtype, exact, count, &seen);
    return seen;
}

TEST(the_unscaled_activation_is_not_kept) {
    for (int i = 0; i < CASE_COUNT; i++) {
        const OpCase two = built_by(&CASES[i], build_two_ops);
        const Seen one = seen_in(&CASES[i], BF16, false), both = seen_in(&two, BF16, false);
        assert_int_equal(one.scales, 0);
        assert_int_equal(both.scales, 2);
        assert_int_equal(both.kept, 2 * one.kept);
    }
}

/* In the exact lane, the activation must be rounded to the grid before it is scaled, and so must its gradient. */
TEST(exact_lane_runs_two_ops) {
    for (int i = 0; i < CASE_COUNT; i++) assert_int_equal(seen_in(&CASES[i], F64, true).scales, 2);
}
