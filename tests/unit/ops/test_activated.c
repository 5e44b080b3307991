/* Tests that op_linear_on_activated computes the gradient of the activation in its GEMM, bitwise equal to a
 * separate node, and only if no other op is between the two. */
#include "unit/cmocka_all.h"

#include "kernels/ops.h"
#include "unit/ops/case_table.h"
#include "unit/ops/compare.h"

/* The same with the activation as a separate node. */
static Tensor *build_apart(Tape *t, Tensor **in, const void *attr) {
    const Activated h = op_linear_activated(t, in[0], &(LinearLayer){.w_oi = in[1], .bias_o = in[2]},
                                            *(const ActivationAttr *)attr, false);
    activation_record(t, h.pre, h.act, h.kind, false);
    return op_linear(t, h.act, &(LinearLayer){.w_oi = in[3], .bias_o = in[4]});
}

#define MLP(act)                                                                                             \
    TAPE_ROW(act, mlp, ATTR(ActivationAttr, .kind = act), X(33, 3, 24), W(67, 24), P(67), W(40, 67), P(40))
static const OpCase CASES[] = {MLP(ACT_GELU_TANH) MLP(ACT_GELU_ERF) MLP(ACT_QUICK_GELU)
                                   MLP(ACT_SQUARED_RELU)};
enum { CASE_COUNT = sizeof CASES / sizeof CASES[0] };

/* ---- which kernels run ---- */

typedef struct Seen {
    int through,
        apart; /* numbers of activation gradients that a GEMM computes, and that a separate kernel computes */
} Seen;

static void count(void *arg, const OpDef *op, const Call *c) {
    Seen *seen = arg;
    seen->through += op->number == OP_linear_dgrad && c->in[2];
    seen->apart += op->number == OP_activation_grad;
}

static Seen seen_in(const OpCase *c, DType dtype, bool exact) {
    Seen seen = {0};
    run_traced(c, dtype, exact, count, &seen);
    return seen;
}

/* ---- tests ---- */

TEST(has_the_bits_of_two_ops) {
    for (DType dtype = F64; dtype <= F16; dtype++)
        for (int i = 0; i < CASE_COUNT; i++) {
            const OpCase apart = built_by(&CASES[i], build_apart);
            const OpLane lane = {.dtype = dtype, .coarse = true, .threads = 2};
            Result got = run_case(&CASES[i], lane), want = run_case(&apart, lane);
            same_all(&CASES[i], &got, &want, true);
            result_free(&got), result_free(&want);
        }
}

TEST(one_gemm_does_it) {
    const OpCase apart = built_by(&CASES[0], build_apart);
    const Seen one = seen_in(&CASES[0], F32, false), two = seen_in(&apart, F32, false);
    assert_true(one.through == 1 && one.apart == 0);
    assert_true(two.through == 0 && two.apart == 1);
}

/* In the exact lane, the activation's gradient must be a separate op, because it is rounded to the grid. */
TEST(exact_lane_keeps_them_apart) {
    const Seen seen = seen_in(&CASES[0], F64, true);
    assert_true(seen.through == 0 && seen.apart == 1);
}

TEST(in_place_is_apart) {
    enum { N = 1003 };
    for (Activation kind = ACT_GELU_TANH; kind < ACT_SWIGLU; kind++) {
        const ActivationAttr attr = {.kind = kind};
        float dy[N], x[N], dx[N];
        for (int i = 0; i < N; i++)
            dy[i] = (float)grid_value("dy", 0, i, GRID_FINE), x[i] = (float)grid_value("x", 0, i, GRID_FINE);
        Tensor in = tensor_make(dy, F32, 1, (int64_t[]){N}), pre = tensor_make(x, F32, 1, in.dim),
               out = tensor_make(dx, F32, 1, in.dim);
        Device *cpu = device_cpu(1);
        Call call = {.in = {&in, &pre}, .out = {&out}, .attr = &attr, .device = cpu};
        call_run(&OPS[OP_activation_grad], &call);
        call.out[0] = &in;
        call_run(&OPS[OP_activation_grad], &call);
        assert_memory_equal(dy, dx, sizeof dx);
        device_free(cpu);
    }
}
