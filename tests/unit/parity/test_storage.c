/* Tests that values that a low-precision run stores too narrowly are counted, and that the first one is named. */
#include <string.h>

#include "unit/cmocka_all.h"

#include "kernels/ops.h"
#include "parity/storage.h"

static int64_t narrow(const Config *lane, OpNumber op, const Call *call, const char *first) {
    StorageLog log = {0};
    Storage s = {.log = &log, .lane = lane};
    storage_record(&s, &OPS[op], call);
    storage_record(&s, &OPS[op], call);
    assert_int_equal(log.n, 2);
    assert_string_equal(log.first_narrow, first);
    const int64_t n = log.narrow;
    storage_log_free(&log);
    return n;
}

TEST(what_is_always_f32_may_not_have_16_bits) {
    const Config lane = {.lane = LANE_BF16};
    Tensor wide = tensor_make(NULL, F32, 1, (int64_t[]){4}), x = tensor_make(NULL, BF16, 1, (int64_t[]){4});
    assert_int_equal(narrow(&lane, OP_route, &(Call){.in = {&wide}, .out = {&wide}}, ""), 0);
    assert_int_equal(narrow(&lane, OP_route, &(Call){.in = {&x}, .out = {&wide}}, "route, input 0 in BF16"),
                     2);
    assert_int_equal(narrow(&lane, OP_norm, &(Call){.in = {&x}, .out = {&x, &wide}}, ""), 0);
    assert_int_equal(
        narrow(&lane, OP_norm, &(Call){.in = {&x}, .out = {&x, &x, &x}}, "norm, output 1 in BF16"), 4);
    assert_int_equal(narrow(&lane, OP_cross_entropy, &(Call){.in = {&x}, .out = {&wide, &wide}}, ""), 0);
    assert_int_equal(narrow(&lane, OP_cross_entropy, &(Call){.in = {&x}, .out = {&x, &wide}},
                            "cross_entropy, output 0 in BF16"),
                     2);
}

TEST(main_gradients_have_16_bits_on_request) {
    const Config lane = {.lane = LANE_BF16}, reduced = {.lane = LANE_BF16, .grad_reduce_in_bf16 = true},
                 stored = {.lane = LANE_BF16, .main_grads_dtype = MAIN_GRADS_BF16};
    Tensor dw = tensor_make(NULL, BF16, 1, (int64_t[]){4});
    const Call call = {.out = {&dw}};
    assert_int_equal(narrow(&lane, OP_linear_wgrad, &call, ""), 0); /* dw is not a main gradient */
    dw.flags |= TENSOR_MAIN_GRAD;
    assert_int_equal(narrow(&lane, OP_linear_wgrad, &call, "linear_wgrad, main gradient 0 in BF16"), 2);
    assert_int_equal(narrow(&reduced, OP_linear_wgrad, &call, ""), 0);
    assert_int_equal(narrow(&stored, OP_linear_wgrad, &call, ""), 0);
}
