/* Compares cross-entropy and weighted sums with closed forms. */
#include "unit/cmocka_all.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "unit/expect_fault.h"

enum { COLUMNS = 8, VOCAB = 5 };

static double loss_of(Device *d, const float *row, int64_t label, float *dlogits) {
    float x[COLUMNS], loss, lse, dloss = 0.5f;
    memcpy(x, row, sizeof x);
    Tensor logits = tensor_make(x, F32, 3, (int64_t[]){1, 1, COLUMNS}),
           labels = tensor_make(&label, I64, 2, (int64_t[]){1, 1}),
           loss_t = tensor_make(&loss, F32, 2, (int64_t[]){1, 1}),
           lse_t = tensor_make(&lse, F32, 2, (int64_t[]){1, 1}),
           dloss_t = tensor_make(&dloss, F32, 2, (int64_t[]){1, 1});
    const LossAttr attr = {.vocab = VOCAB};
    call_run(&OPS[OP_cross_entropy],
             &(Call){.in = {&logits, &labels}, .out = {&loss_t, &lse_t}, .attr = &attr, .device = d});
    call_run(
        &OPS[OP_cross_entropy_grad],
        &(Call){.in = {&dloss_t, &logits, &labels, &lse_t}, .out = {&logits}, .attr = &attr, .device = d});
    if (dlogits) memcpy(dlogits, x, sizeof x);
    return loss;
}

static const double U = 0x1p-24;

TEST(equal_logits_cost_the_log_of_the_vocabulary) {
    const float row[COLUMNS] = {3, 3, 3, 3, 3, 80, 90}; /* two columns of padding */
    float dx[COLUMNS];
    assert_true(fabs(loss_of(*state, row, 2, dx) - log(VOCAB)) <= 2 * U * log(VOCAB));
    for (int i = 0; i < VOCAB; i++) assert_true(fabs(dx[i] - 0.5 * (0.2 - (i == 2))) <= 8 * U);
    for (int i = VOCAB; i < COLUMNS; i++) assert_true(dx[i] == 0);
}

/* The softmax of (0, log 2, log 4, log 8, -inf) is (1, 2, 4, 8, 0) / 15. */
TEST(gradient_is_softmax_minus_one_hot) {
    const float row[COLUMNS] = {0, logf(2), logf(4), logf(8), -INFINITY, NAN, NAN};
    const double softmax[COLUMNS] = {1 / 15.0, 2 / 15.0, 4 / 15.0, 8 / 15.0};
    float dx[COLUMNS];
    assert_true(fabs(loss_of(*state, row, 0, dx) - log(15)) <= 4 * U * log(15));
    for (int i = 0; i < COLUMNS; i++) assert_true(fabs(dx[i] - 0.5 * (softmax[i] - (i == 0))) <= 8 * U);
}

TEST(extreme_logits_stay_finite) {
    const float high[COLUMNS] = {3e38f, 0, 0, 0, -3e38f}, low[COLUMNS] = {-1e4f, -1e4f, -1e4f, -1e4f, -1e4f};
    float dx[COLUMNS];
    assert_true(loss_of(*state, high, 0, dx) == 0);
    assert_true(dx[0] == 0);
    assert_true(loss_of(*state, high, 1, NULL) == (double)3e38f);
    assert_true(fabs(loss_of(*state, low, 4, NULL) - log(VOCAB)) <= 2 * U * log(VOCAB));
}

TEST(a_logit_that_is_nan_shows) {
    const float row[COLUMNS] = {0, NAN, 0, 0, 0};
    assert_true(isnan(loss_of(*state, row, 0, NULL)));
}

TEST(a_wrong_label_is_named) {
    const float row[COLUMNS] = {0};
    EXPECT_FAULT("label 5 of token 0", loss_of(*state, row, VOCAB, NULL));
}

/* Shards of `width` columns each. */
static double correct(Device *device, const float row[COLUMNS], int64_t label, int64_t width) {
    float y = -1, parts[2 * COLUMNS];
    const int64_t shards = COLUMNS / width;
    Tensor of = tensor_make(&label, I64, 2, (int64_t[]){1, 1}),
           yt = tensor_make(&y, F32, 2, (int64_t[]){1, 1}),
           all = tensor_make(parts, F32, 4, (int64_t[]){shards, 2, 1, 1});
    for (int64_t i = 0; i < shards; i++) {
        const LossAttr attr = {.vocab = VOCAB, .first = i * width};
        Tensor x = tensor_make((float *)row + i * width, F32, 3, (int64_t[]){1, 1, width}),
               part = tensor_make(&parts[2 * i], F32, 3, (int64_t[]){2, 1, 1});
        call_run(&OPS[OP_correct_shard],
                 &(Call){.in = {&x, &of}, .out = {&part}, .attr = &attr, .device = device});
    }
    call_run(&OPS[OP_correct_join], &(Call){.in = {&all}, .out = {&yt}, .device = device});
    return (double)y;
}

/* As in torch.argmax, the first of equal logits counts. Padding columns never count. */
TEST(only_the_first_largest_logit_is_correct) {
    const float row[COLUMNS] = {1, 3, 2, 3, 0, [COLUMNS - 1] = 9}, late[COLUMNS] = {-2, -3, -2, -1, -1},
                bad[COLUMNS] = {0, NAN};
    for (int64_t label = 0; label < VOCAB; label++) {
        for (int64_t width = COLUMNS; width; width /= 2) {
            assert_true(correct(*state, row, label, width) == (label == 1));
            assert_true(correct(*state, late, label, width) == (label == 3));
        }
        assert_true(correct(*state, bad, label, COLUMNS) == 0);
    }
}

/* These sums are not exact in float. */
TEST(a_weighted_sum_is_double) {
    float x[6] = {16777216, 1, 1, 2, 3, 4}, weight[6] = {1, 1, 0, 0.5f, 0, 2};
    double sum = 0.5;
    Tensor xt = tensor_make(x, F32, 2, (int64_t[]){2, 3}),
           wt = tensor_make(weight, F32, 2, (int64_t[]){2, 3}),
           st = tensor_make(&sum, F64, 1, (int64_t[]){1});
    call_run(&OPS[OP_weighted_sum], &(Call){.in = {&xt, &wt}, .out = {&st}, .device = *state});
    assert_true(sum == 16777217 + 9);
    st.flags = TENSOR_ACCUM;
    call_run(&OPS[OP_weighted_sum], &(Call){.in = {&xt, &wt}, .out = {&st}, .device = *state});
    assert_true(sum == 2 * (16777217 + 9));
}

static int open_device(void **state) {
    *state = device_cpu(1);
    return 0;
}

static int close_device(void **state) {
    device_free(*state);
    return 0;
}

int main(void) { return run_all_tests(open_device, close_device); }
