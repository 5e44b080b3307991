/* Masked-language modelling of a source of known entropy (see test_known_entropy.c). No model can predict
 * masked states better than the exact posterior. A bidirectional model can get below the entropy rate, which
 * is a bound for causal models.
 *
 * Each state is selected with probability 0.2. A selected state becomes [MASK] (80 %) or a random state (10
 * %), or is unchanged. The visible states are outputs of a hidden Markov model, so the forward and backward
 * recurrences (Rabiner, 1989) give p(state | visible). In an evaluation, one selected state of each sequence
 * counts. For a model that does not see it, P(A > log(1/delta)) < delta, with the advantage A of
 * test_known_entropy.c. */
#include <math.h>
#include <stdlib.h>

#include "unit/config_helper.h"

#include "train/trainer.h"
#include "unit/train/known_source.h"

enum { SEQ = 16, BATCH = 32, STEPS = 800, EVAL_BATCHES = 60, MASK = STATES, VOCAB };
static const double DELTA = 1e-9, SELECTED = 0.2;

static double is(int64_t a, int64_t b) { return a == b; }
static double selected(int64_t seen, int64_t state) {
    return seen == MASK ? 0.8 : 0.1 * is(seen, state) + 0.1 / STATES;
}
static double emission(int64_t seen, int64_t state) {
    return (1 - SELECTED) * is(seen, state) + SELECTED * selected(seen, state);
}

static double uniform(int64_t sequence, int64_t i) {
    return philox_uniform(6, (uint64_t)sequence, (uint64_t)i);
}

/* Makes sequence number n. Every selected state counts in training, but only one of them (`one`) in an
 * evaluation. */
static void sequence_of(const Source *s, int64_t n, bool one, bool leaky, Sample *out) {
    const int64_t counted = (int64_t)(uniform(n, 0) * SEQ);
    const double *from = s->pi;
    for (int64_t j = 0; j < SEQ; j++) {
        const int64_t state = draw(from, uniform(n, 4 * j + 1));
        const double how = uniform(n, 4 * j + 3);
        const bool chosen = uniform(n, 4 * j + 2) < SELECTED || (one && j == counted);
        int64_t seen = state;
        if (chosen && how < 0.8) seen = MASK;
        if (chosen && how >= 0.9) seen = (int64_t)(uniform(n, 4 * j + 4) * STATES);
        from = s->p[state];
        out->tokens[j] = leaky ? state : seen;
        out->labels[j] = state;
        out->position_ids[j] = j;
        out->loss_mask[j] = chosen && (!one || j == counted);
    }
    out->lengths[0] = SEQ;
}

static Batch batch_of(const Trainer *r, const Source *s, int64_t first, bool one, bool leaky) {
    Batch b = batch_new(BATCH, r->run.model->plan.sample);
    for (int64_t i = 0; i < BATCH; i++) {
        Sample row = batch_sample(&b, i);
        sequence_of(s, first + i, one, leaky, &row);
        b.indices[i] = first + i;
    }
    return b;
}

/* -log p(state at `at` | visible states), given that the state was selected. */
static double posterior_loss(const Source *s, const Sample *row, int64_t at) {
    double ahead[STATES], behind[STATES], next[STATES];
    memcpy(ahead, s->pi, sizeof ahead);
    for (int64_t j = 0; j < at; j++) {
        memset(next, 0, sizeof next);
        for (int x = 0; x < STATES; x++)
            for (int y = 0; y < STATES; y++) next[y] += ahead[x] * emission(row->tokens[j], x) * s->p[x][y];
        memcpy(ahead, next, sizeof ahead);
    }
    for (int x = 0; x < STATES; x++) behind[x] = 1;
    for (int64_t j = SEQ - 1; j > at; j--) {
        memset(next, 0, sizeof next);
        for (int x = 0; x < STATES; x++)
            for (int y = 0; y < STATES; y++) next[x] += s->p[x][y] * emission(row->tokens[j], y) * behind[y];
        memcpy(behind, next, sizeof behind);
    }
    double sum = 0;
    for (int x = 0; x < STATES; x++) sum += next[x] = ahead[x] * selected(row->tokens[at], x) * behind[x];
    return log(sum) - log(next[row->labels[at]]);
}

static Setup *setup(void) {
    return setup_new(
        "--model bert --bert-no-binary-head --num-layers 2 --hidden-size 32 --num-attention-heads 2 "
        "--seq-length %d --max-position-embeddings %d --vocab-size %d --make-vocab-size-divisible-by 1 "
        "--micro-batch-size %d --train-iters %d --init-method-std 0.15 --lr 0.01 --lr-warmup-iters 50 "
        "--weight-decay 0 --hidden-dropout 0 --attention-dropout 0 --cpu-threads 1",
        SEQ, SEQ, VOCAB, BATCH, STEPS);
}

static Trainer *trained(const Setup *setup, const Source *s, int steps, bool leaky) {
    Trainer *r = trainer_new(&setup->config, NULL, NULL, NULL);
    registry_init(r->run.model->registry, r->run.context.seed);
    for (int i = 0; i < steps; i++) {
        Batch b = batch_of(r, s, r->consumed_samples, false, leaky);
        StepReport report = trainer_begin_step(r);
        trainer_microbatch(r, &b, 1, &report);
        trainer_update(r, &report);
        batch_free(&b);
    }
    return r;
}

/* Computes the mean losses of the model and of the posterior on sequences that are not used in training. */
static void evaluate(Trainer *r, const Source *s, bool leaky, double *model, double *posterior) {
    LossSum all[MODEL_LOSSES] = {{0}};
    *posterior = 0;
    for (int64_t k = 0; k < EVAL_BATCHES; k++) {
        const int64_t first = (INT64_C(1) << 40) + k * BATCH;
        Batch truth = batch_of(r, s, first, true, false), b = batch_of(r, s, first, true, leaky);
        trainer_evaluate(r, &b, all);
        for (int64_t i = 0; i < BATCH; i++) {
            const Sample row = batch_sample(&truth, i);
            for (int64_t j = 0; j < SEQ; j++)
                if (row.loss_mask[j] > 0) *posterior += posterior_loss(s, &row, j);
        }
        batch_free(&truth), batch_free(&b);
    }
    assert_true(all[0].weight == EVAL_BATCHES * BATCH);
    *model = all[0].loss / all[0].weight, *posterior /= all[0].weight;
}

TEST(loss_lies_between_the_posterior_and_the_entropy_rate) {
    const Source s = source_new();
    Setup *c = setup();
    Trainer *r = trained(c, &s, STEPS, false);
    double model, posterior;
    evaluate(r, &s, false, &model, &posterior);
    print_message("posterior %.5f, model %.5f, entropy rate %.5f\n", posterior, model, s.entropy_rate);
    assert_true(model > posterior - log(1 / DELTA) / (EVAL_BATCHES * BATCH));
    assert_true(model < s.entropy_rate);
    trainer_free(r);
    setup_free(c);
}

TEST(visible_labels_are_flagged) {
    const Source s = source_new();
    Setup *c = setup();
    Trainer *r = trained(c, &s, STEPS / 5, true);
    double model, posterior;
    evaluate(r, &s, true, &model, &posterior);
    assert_true(model < posterior - log(1 / DELTA) / (EVAL_BATCHES * BATCH));
    trainer_free(r);
    setup_free(c);
}
