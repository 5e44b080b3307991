#include <float.h>
#include <math.h>

#include "unit/config_helper.h"

#include "optim/scaler.h"
#include "optim/schedule.h"

/* ---- learning rate and weight decay compared with tools/oracle/schedules.py ---- */

typedef struct Vector {
    const char *words; /* NULL for a further value of the schedule above */
    long long samples;
    double lr, decoupled, weight_decay;
} Vector;

static const Vector VECTORS[] = {
#define SCHEDULE(words)                          {words, 0, 0, 0, 0},
#define AT(samples, lr, decoupled, weight_decay) {NULL, samples, lr, decoupled, weight_decay},
#include "unit/optim/schedule_vectors.def"
#undef SCHEDULE
#undef AT
};

/* Both sides evaluate the formula in double. It has at most 8 operations, each with an error of at most an
 * ulp of the largest value. */
static void expect_near(const char *what, long long samples, double ours, double oracle, double largest) {
    if (!(fabs(ours - oracle) <= 8 * DBL_EPSILON * largest))
        fail_msg("%s after %lld samples is %.17g, expected %.17g", what, samples, ours, oracle);
}

TEST(schedules_match_the_oracle) {
    Setup *s = NULL;
    for (size_t i = 0; i < sizeof VECTORS / sizeof *VECTORS; i++) {
        const Vector *v = &VECTORS[i];
        if (v->words) {
            if (s) setup_free(s);
            s = setup_new("%s", v->words);
            continue;
        }
        const Config *c = &s->config;
        const Derived *d = &s->config.derived;
        double lr = schedule_lr(c, c->lr, c->min_lr, v->samples);
        double decoupled = schedule_lr(c, d->decoupled_lr, d->decoupled_min_lr, v->samples);
        expect_near("lr", v->samples, lr, v->lr, c->lr);
        expect_near("decoupled lr", v->samples, decoupled, v->decoupled, d->decoupled_lr);
        expect_near("weight decay", v->samples, schedule_weight_decay(c, v->samples), v->weight_decay,
                    d->end_weight_decay);
    }
    setup_free(s);
}

/* ---- batch size ---- */

/* A literal translation of Megatron-LM's RampupBatchsizeNumMicroBatchesCalculator. */
static int64_t upstream_rampup(int64_t start, int64_t increment, int64_t samples, int64_t global,
                               int64_t consumed) {
    if (consumed > samples) return global;
    double per_increment = (double)samples / (double)((global - start) / increment);
    int64_t size = start + (int64_t)((double)consumed / per_increment) * increment;
    return size < global ? size : global;
}

TEST(rampup_follows_upstream) {
    static const int64_t RAMPS[][4] = {
        {2, 2, 100, 8}, {4, 4, 37, 20}, {2, 3, 7, 32}, {1, 1, 3, 9}, {8, 4, 50, 8}};
    for (size_t i = 0; i < sizeof RAMPS / sizeof *RAMPS; i++) {
        const int64_t *r = RAMPS[i];
        Setup *s = setup_new("--train-samples 1000 --rampup-batch-size %d %d %d --global-batch-size %d",
                             (int)r[0], (int)r[1], (int)r[2], (int)r[3]);
        for (int64_t n = 0; n < 2 * r[2]; n++) {
            int64_t expected = r[0] == r[3] ? r[3] : upstream_rampup(r[0], r[1], r[2], r[3], n);
            assert_int_equal(config_batch_size(&s->config, n), expected);
        }
        setup_free(s);
    }
}

TEST(step_schedule_counts_tokens) {
    /* thresholds are numbers of tokens: 2K and 0.1M with 8 tokens per sample are 250 and 12,500 samples */
    Setup *s = setup_new("--train-samples 20000 --seq-length 8 --step-batch-size-schedule 0:2,2K:4,0.1M:12");
    static const int64_t EXPECTED[][2] = {
        {0, 2}, {249, 2}, {250, 4}, {251, 4}, {12499, 4}, {12500, 12}, {INT64_C(1) << 40, 12}};
    for (size_t i = 0; i < sizeof EXPECTED / sizeof *EXPECTED; i++)
        assert_int_equal(config_batch_size(&s->config, EXPECTED[i][0]), EXPECTED[i][1]);
    setup_free(s);
}

TEST(train_samples_are_whole_batches) {
    Setup *s = setup_new("--train-samples 402 --global-batch-size 4");
    assert_int_equal(s->config.derived.train_iters, 100);
    setup_free(s);
}

/* ---- loss scaler ---- */

TEST(scaler_follows_hysteresis) {
    Setup *s = setup_new(
        "--fp16 --initial-loss-scale 1024 --loss-scale-window 3 --hysteresis 2 --min-loss-scale 100");
    Scaler scaler = scaler_new(&s->config);
    assert_true(scaler.dynamic);
    assert_true(scaler.scale == 1024);
    /* Expected scales, derived by hand from megatron/core/optimizer/grad_scaler.py. '!' is a step with an
     * infinity, '.' a step without. */
    static const struct {
        char step;
        double scale;
    } SEQUENCE
        [] =
            {
                {'!', 1024}, /* forgiven */
                {'!', 512},  /* second */
                {'!', 256},  /* every further one also halves the scale */
                {'.', 256},  {'.', 256},
                {'!', 128}, /* clean steps do not reset the hysteresis; the window starts again */
                {'.', 128},  {'.', 128},
                {'.', 256}, /* three clean steps: the scale grows, and the hysteresis is reset */
                {'!', 256},  {'.', 256},
                {'.', 256}, /* one infinity is tolerated again */
                {'.', 512},  {'!', 512},
                {'!', 256},  {'!', 128}, /* the growth has reset the hysteresis again */
                {'!', 100},  {'!', 100}, /* the floor */
                {'.', 100},  {'.', 100},
                {'.', 200},  {'.', 200},
            };
    for (size_t i = 0; i < sizeof SEQUENCE / sizeof *SEQUENCE; i++) {
        scaler_update(&scaler, SEQUENCE[i].step == '!');
        if (scaler.scale != SEQUENCE[i].scale)
            fail_msg("after step %zu the scale is %g, expected %g", i, scaler.scale, SEQUENCE[i].scale);
    }
    setup_free(s);
}

TEST(scaler_is_constant_without_fp16_or_with_a_fixed_scale) {
    static const struct {
        const char *words;
        double scale;
    } CASES[] = {{"", 1}, {"--bf16", 1}, {"--fp64", 1}, {"--fp16 --loss-scale 128", 128}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Setup *s = setup_new("%s", CASES[i].words);
        Scaler scaler = scaler_new(&s->config);
        assert_false(scaler.dynamic);
        for (int step = 0; step < 3; step++) scaler_update(&scaler, true);
        assert_true(scaler.scale == CASES[i].scale);
        setup_free(s);
    }
    Setup *s = setup_new("--fp16");
    assert_true(scaler_new(&s->config).scale == 4294967296.0);
    setup_free(s);
}
