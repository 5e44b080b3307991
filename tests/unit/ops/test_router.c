/* Tests properties of routing that a comparison with PyTorch does not show: ties, groups, drops, the range of
 * jitter. */
#include "unit/cmocka_all.h"
#include "unit/recording.h"

#include <math.h>

#include "unit/ops/moe_builders.h"

typedef struct Bench {
    RunContext run;
    Space *slot, *transient;
    Tape *tape;
} Bench;

static Bench bench_new(void) {
    Bench b = {.run = {.device = device_cpu(2), .dtype = F64, .seed = 1234}};
    b.slot = space_new(b.run.device, "slot", SPACE_UNPLANNED);
    b.transient = space_new(b.run.device, "transient", SPACE_UNPLANNED);
    return b;
}

static void bench_begin_at(Bench *b, MicrobatchContext microbatch) {
    b->tape = tape_new(&b->run, b->slot, b->transient);
    tape_begin(b->tape, &microbatch);
}

static void bench_begin(Bench *b) { bench_begin_at(b, RECORDING); }

static void bench_free(Bench *b) {
    tape_free(b->tape);
    space_free(b->slot), space_free(b->transient);
    device_free(b->run.device);
}

static Tensor *values(Bench *b, int64_t s, int64_t n, const double *x) {
    Tensor *t = tape_tensor(b->tape, F64, 3, (int64_t[]){s, 1, n});
    memcpy(t->data, x, (size_t)(s * n) * sizeof *x);
    return t;
}

static void expect_ids(const Tensor *t, const int64_t *want) {
    for (int64_t i = 0; i < tensor_count(t); i++)
        if (((int64_t *)t->data)[i] != want[i])
            fail_msg("element %lld is %lld, not %lld", (long long)i, (long long)((int64_t *)t->data)[i],
                     (long long)want[i]);
}

TEST(equal_scores_go_to_the_smaller_number) {
    Bench b = bench_new();
    bench_begin(&b);
    const double logits[] = {1, 1, 1, 1, 1, 2, 1, 2, 0, 3, 3, 3};
    const Routing r = op_route(b.tape, values(&b, 3, 4, logits), NULL, NULL, 2, (RouteAttr){.scaling = 1});
    expect_ids(r.expert, (int64_t[]){0, 1, 1, 3, 1, 2});
    /* The sums of groups {0, 1} and {2, 3} are first equal, then the second is better. */
    const RouteAttr groups = {
        .score = ROUTER_SOFTMAX, .groups = 2, .group_topk = 1, .group_scores = 2, .scaling = 1};
    expect_ids(op_route(b.tape, values(&b, 3, 4, logits), NULL, NULL, 2, groups).expert,
               (int64_t[]){0, 1, 0, 1, 2, 3});
    bench_free(&b);
}

/* The bias affects the choice, but not the probabilities. */
TEST(bias_chooses_but_does_not_weigh) {
    Bench b = bench_new();
    bench_begin(&b);
    const double logits[] = {0, 0, 0}, bias[] = {0.1, 0.3, 0.2};
    Tensor *offset = values(&b, 1, 3, bias);
    const RouteAttr attr = {.score = ROUTER_SIGMOID, .scaling = 3};
    const Routing r = op_route(b.tape, values(&b, 1, 3, logits), NULL, offset, 2, attr);
    expect_ids(r.expert, (int64_t[]){1, 2});
    for (int i = 0; i < 2; i++) assert_true(((double *)r.probs->data)[i] == 1.5);
    /* Softmaxes of 1/2, 1/3 and 1/6 are compared, so the last bias suffices for a choice although no logits are
     * close. */
    const double logs[] = {log(3), log(2), 0}, small[] = {0, 0, 0.2};
    offset = values(&b, 1, 3, small);
    const Routing s = op_route(b.tape, values(&b, 1, 3, logs), NULL, offset, 2,
                               (RouteAttr){.scaling = 1, .order = ORDER_SOFTMAX});
    expect_ids(s.expert, (int64_t[]){0, 2});
    assert_true(fabs(((double *)s.probs->data)[0] - 0.75) < 1e-15);
    bench_free(&b);
}

TEST(sinkhorn_gives_equal_shares) {
    enum { T = 40, E = 5 };
    Bench b = bench_new();
    bench_begin(&b);
    double logits[T * E];
    for (int i = 0; i < T * E; i++) logits[i] = 2 * philox_normal(1, 2, (uint64_t)i);
    const double *share = op_sinkhorn(b.tape, values(&b, T, E, logits))->data;
    double by_expert[E] = {0};
    for (int t = 0; t < T; t++) {
        double row = 0;
        for (int e = 0; e < E; e++) row += share[t * E + e], by_expert[e] += share[t * E + e];
        /* Columns were scaled last, so row sums have the error of the last scaling. The iteration ends when
         * d1, which is about 1, changes by less than 1e-4 on average. */
        assert_true(fabs(row * T - 1) < 1e-2);
    }
    for (int e = 0; e < E; e++)
        assert_true(fabs(by_expert[e] * E - 1) < 1e-6); /* each sum includes an epsilon of 1e-8 */
    bench_free(&b);
}

/* Four tokens are routed to expert 0 and one to expert 2; the capacity is two. */
TEST(rows_are_grouped_kept_and_padded) {
    Bench b = bench_new();
    bench_begin(&b);
    const double probs[] = {0.2, 0.5, 0.5, 0.3, 0.9};
    Routing r = {values(&b, 5, 1, probs), tape_tensor(b.tape, I64, 3, (int64_t[]){5, 1, 1})};
    memcpy(r.expert->data, (int64_t[]){0, 0, 2, 0, 0}, 5 * sizeof(int64_t));
    Dispatch d = op_dispatch(b.tape, &r, 3, (DispatchAttr){0});
    expect_ids(d.row, (int64_t[]){0, 1, 4, 2, 3}), expect_ids(d.offset, (int64_t[]){0, 4, 4, 5});
    d = op_dispatch(b.tape, &r, 3, (DispatchAttr){.capacity = 2});
    expect_ids(d.row, (int64_t[]){-1, 0, 2, -1, 1}), expect_ids(d.offset, (int64_t[]){0, 2, 2, 3});
    d = op_dispatch(b.tape, &r, 3, (DispatchAttr){.capacity = 2, .by_position = true});
    expect_ids(d.row, (int64_t[]){0, 1, 2, -1, -1}), expect_ids(d.copy, (int64_t[]){0, 1, 2, -1, -1});
    d = op_dispatch(b.tape, &r, 3, (DispatchAttr){.capacity = 2, .pad = true});
    expect_ids(d.row, (int64_t[]){-1, 0, 4, -1, 1}), expect_ids(d.offset, (int64_t[]){0, 2, 4, 6});
    expect_ids(d.copy, (int64_t[]){1, 4, -1, -1, 2, -1});
    bench_free(&b);
}

/* Jitter must be uniform in (1 - rate, 1 + rate), must not depend on the grouping of samples, and must be
 * absent outside of training. */
TEST(jitter_is_uniform) {
    enum { N = 30000 };
    const double rate = 0.25;
    Bench b = bench_new();
    bench_begin(&b);
    Tensor *ones = tape_tensor(b.tape, F64, 3, (int64_t[]){N / 10, 2, 5});
    double mean = 0, square = 0, low = 2, high = 0;
    for (int i = 0; i < N; i++) ((double *)ones->data)[i] = 1;
    const double *y = op_jitter(b.tape, ones, rate, 7)->data;
    for (int i = 0; i < N; i++) {
        mean += y[i] / N, square += (y[i] - 1) * (y[i] - 1) / N;
        low = fmin(low, y[i]), high = fmax(high, y[i]);
    }
    assert_true(low > 1 - rate && low < 1 - 0.999 * rate && high < 1 + rate && high > 1 + 0.999 * rate);
    assert_true(fabs(mean - 1) < 5 * rate / sqrt(3.0 * N)); /* 5 standard errors, */
    assert_true(fabs(square - rate * rate / 3) <
                5 * rate * rate * sqrt(4 / 45.0 / N)); /* and those of the mean of squares */
    Bench other = bench_new(), evaluation = bench_new();
    bench_begin_at(&other, (MicrobatchContext){.training = true, .first_sample = 1});
    bench_begin_at(&evaluation, (MicrobatchContext){.training = false});
    Tensor *one = tape_tensor(other.tape, F64, 3, (int64_t[]){N / 10, 1, 5});
    for (int i = 0; i < N / 2; i++) ((double *)one->data)[i] = 1;
    const double *z = op_jitter(other.tape, one, rate, 7)->data;
    for (int i = 0; i < N / 2; i++) assert_true(z[i] == y[i / 5 * 10 + 5 + i % 5]);
    assert_ptr_equal(op_jitter(evaluation.tape, ones, rate, 7), ones);
    bench_free(&other);
    bench_free(&evaluation);
    bench_free(&b);
}
