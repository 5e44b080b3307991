/* Tests the choice among the algorithms of a GEMM, without cuBLASLt or a GPU. */
#include "unit/ops/gemm_stand_in.cuh"

template <int N> static int choice(const Timing (&algos)[N]) {
    Run r = run_new();
    gpu.algos = algos, gpu.n = N;
    const int chosen = choose(&r, GEMM_TUNING_SAME_BITS);
    run_end(&r);
    return chosen;
}

template <int N> static void expect(const Timing (&algos)[N], int same_bits, int fastest) {
    Run r = run_new();
    gpu.algos = algos, gpu.n = N;
    assert_int_equal(choose(&r, GEMM_TUNING_SAME_BITS), same_bits);
    assert_true(gpu.ms > 0);
    assert_int_equal(choose(&r, GEMM_TUNING_FASTEST), fastest);
    assert_true(gpu.ms == 0); /* the choice was found in the store */
    GemmRecord kept;
    assert_true(is_kept(&r, &kept));
    assert_float_equal(kept.choice[GEMM_TUNING_SAME_BITS].us, 1e3 * algos[same_bits].sustained, 0.01);
    assert_float_equal(kept.choice[GEMM_TUNING_FASTEST].us, 1e3 * algos[fastest].sustained, 0.01);
    assert_float_equal(kept.first_us, 1e3 * algos[0].sustained, 0.01);
    run_end(&r);
}

/* ---- tests ---- */

TEST(what_wins_short_runs_loses_under_load) {
    const Timing algos[] = {{.70, .75}, {.66, .80}, {.72, .73}};
    expect(algos, 2, 2);
}

TEST(other_bits_are_for_fastest) {
    const Timing algos[] = {{.70, .75}, {.69, .73}, {.60, .65, true}, {.61, .63, true}};
    expect(algos, 1, 3);
}

/* Each of the two choices has finalists, so that many fast algorithms with different results do not displace
 * those that are bitwise equal. */
TEST(each_choice_has_finalists) {
    const Timing algos[] = {{1.0, 1.0},       {.50, .52, true}, {.51, .52, true}, {.52, .53, true},
                            {.53, .54, true}, {.54, .51, true}, {.95, .90}};
    expect(algos, 6, 5);
}

/* All algorithms that are not much slower in the short turns must be measured in long runs. */
TEST(last_in_turns_wins_under_load) {
    Timing algos[12];
    for (int i = 0; i < 12; i++) algos[i] = {.60 + .005 * i, .80 - .005 * i};
    expect(algos, 11, 11);
}

TEST(noise_changes_nothing) {
    const Timing algos[] = {{.70, .750}, {.69, .748}, {.69, .747, true}};
    const Timing more[] = {{.70, .750}, {.69, .7445}}, far_more[] = {{.70, .90}, {.60, .80}};
    expect(algos, 0, 0);
    expect(more, 1, 1);
    expect(far_more, 1, 1);
}

/* The criterion is the mean over all blocks, among the algorithms that remain at the end. */
TEST(one_block_decides_nothing) {
    const Timing lucky_first[] = {{.92, .95}, {.91, .88, false, {.96, .96, .96}}, {.93, .90}};
    const Timing lucky_last[] = {{.90, .90}, {.89, .807, false, {.807, .807, .784}}, {.88, .80}};
    const Timing second_until_last[] = {{.90, .90}, {.89, .80, false, {.80, .80, .83}}, {.88, .804}};
    const Timing out_early[] = {{1.0, 1.0}, {.99, .80, false, {.90, .90, .90}}, {.98, .87}};
    assert_int_equal(choice(lucky_first), 2);
    assert_int_equal(choice(lucky_last), 2);
    assert_int_equal(choice(second_until_last), 2);
    assert_int_equal(choice(out_early), 1);
}

TEST(what_stops_is_not_taken) {
    const Timing algos[] = {{.70, .75}, {.69, -1}}, later[] = {{.70, .75}, {.69, .60, false, {-1}}},
                 last[] = {{.70, .75}, {.69, .60, false, {.60, .60, -1}}}, first[] = {{.70, -1}, {.69, .60}};
    expect(algos, 0, 0);
    expect(later, 0, 0);
    expect(last, 0, 0);
    assert_int_equal(choice(first), 0);
}

TEST(hopeless_algorithms_cost_no_load) {
    const Timing algos[] = {{.70, .75}, {.82, .60}, {.90, .50}};
    expect(algos, 0, 0);
}

/* With the largest number of finalists on a hot GPU, the GEMMs of a model must take seconds, not minutes. */
TEST(takes_seconds) {
    Timing algos[GEMM_ALGOS];
    Run r = run_new();
    for (int i = 0; i < GEMM_ALGOS; i++) algos[i] = {.70 + 1e-4 * i, .70 + 1e-4 * i, i > 0 && i % 2};
    gpu.algos = algos, gpu.n = GEMM_ALGOS;
    choose(&r, GEMM_TUNING_SAME_BITS);
    const double cold = gpu.ms;
    r.key.m++;
    choose(&r, GEMM_TUNING_SAME_BITS);
    assert_true(gpu.ms < cold && gpu.ms < 5000);
    gpu.n = 4;
    r.key.m++;
    choose(&r, GEMM_TUNING_SAME_BITS);
    assert_true(gpu.ms < 1500);
    run_end(&r);
}
