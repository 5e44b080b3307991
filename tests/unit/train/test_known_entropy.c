/* Trains on a source of known entropy: no model can predict it better than its entropy rate, and a good model
 * comes close. On text, a leak of labels into inputs would only look like a very good model; this test
 * detects the leak.
 *
 * The source is a Markov chain over 16 states with transition probabilities p(y|x) and stationary
 * distribution pi; its entropy rate is H = -sum_x pi(x) sum_y p(y|x) log p(y|x) (Shannon, 1948). Let q be the
 * model's prediction and A = sum over M evaluated tokens of log q(y|x..) - log p(y|x). A prediction that does
 * not depend on its label is normalized, so E[exp(A)] = 1. By Markov's inequality, P(A > log(1/delta)) <
 * delta for any model and any M. */
#include <math.h>
#include <stdlib.h>

#include "unit/config_helper.h"

#include "train/trainer.h"
#include "unit/train/known_source.h"

enum { SEQ = 32, BATCH = 16, STEPS = 1000, EVAL_BATCHES = 100 };
enum { TOKENS_PER_STEP = SEQ * BATCH };
static const double DELTA = 1e-9;

/* Returns a batch of consecutive sequences of the source, beginning with number `first`. Each begins with a draw
 * from the stationary distribution. */
static Batch batch_of(const Source *s, int64_t first, bool leaky) {
    Batch b = batch_new(BATCH, (SampleShape){.positions = SEQ, .fields = GPT_FIELDS});
    for (int64_t i = 0; i < BATCH; i++) {
        int64_t x = draw(s->pi, philox_uniform(5, (uint64_t)(first + i), SEQ));
        for (int64_t j = 0; j < SEQ; j++) {
            int64_t y = draw(s->p[x], philox_uniform(5, (uint64_t)(first + i), (uint64_t)j)),
                    at = i * SEQ + j;
            b.tokens[at] = leaky ? y : x;
            b.labels[at] = y;
            b.position_ids[at] = j;
            b.loss_mask[at] = 1;
            x = y;
        }
    }
    return b;
}

static Trainer *trained(const Setup *setup, const Source *s, int steps, bool leaky) {
    Trainer *r = trainer_new(&setup->config, NULL, NULL, NULL);
    registry_init(r->run.model->registry, r->run.context.seed);
    for (int i = 0; i < steps; i++) {
        Batch b = batch_of(s, r->consumed_samples, leaky);
        StepReport report = trainer_begin_step(r);
        trainer_microbatch(r, &b, 1, &report);
        trainer_update(r, &report);
        batch_free(&b);
    }
    return r;
}

typedef struct Verdict {
    double loss;      /* mean of -log q, in nats per token */
    double source;    /* mean of -log p over the same tokens */
    double error;     /* standard error of `source` (sequences are independent) */
    double advantage; /* the A above, in nats */
} Verdict;

/* Evaluates on sequences that are not used in training. */
static Verdict evaluate(Trainer *r, const Source *s, bool leaky) {
    enum { N = EVAL_BATCHES * BATCH };
    Verdict v = {0};
    LossSum all[MODEL_LOSSES] = {{0}};
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < EVAL_BATCHES; k++) {
        const int64_t first = (INT64_C(1) << 40) + k * BATCH;
        Batch truth = batch_of(s, first, false), b = batch_of(s, first, leaky);
        trainer_evaluate(r, &b, all);
        for (int64_t i = 0; i < BATCH; i++) {
            double sequence = 0;
            for (int64_t j = 0; j < SEQ; j++)
                sequence -= log(s->p[truth.tokens[i * SEQ + j]][truth.labels[i * SEQ + j]]);
            sum += sequence, squares += sequence * sequence;
        }
        batch_free(&truth), batch_free(&b);
    }
    const double tokens = all[0].weight;
    assert_true(tokens == (double)N * SEQ);
    v.loss = all[0].loss / tokens;
    v.source = sum / tokens;
    v.error = sqrt((squares / N - sum / N * (sum / N)) / N) / SEQ;
    v.advantage = sum - all[0].loss;
    return v;
}

static bool leaks(const Verdict *v) { return v->advantage > log(1 / DELTA); }

static Setup *setup(void) {
    return setup_new("--num-layers 1 --hidden-size 32 --num-attention-heads 2 --seq-length %d --vocab-size "
                     "%d --micro-batch-size %d --train-iters %d --lr 0.01 --lr-warmup-iters 20 "
                     "--weight-decay 0 --hidden-dropout 0 --attention-dropout 0 --cpu-threads 1",
                     SEQ, STATES, BATCH, STEPS);
}

TEST(loss_converges_to_the_entropy_rate_and_not_below) {
    const Source s = source_new();
    Setup *c = setup();
    Trainer *r = trained(c, &s, STEPS, false);
    const Verdict v = evaluate(r, &s, false);
    print_message("entropy rate %.5f, source %.5f +- %.5f, model %.5f, advantage %.1f nats\n", s.entropy_rate,
                  v.source, v.error, v.loss, v.advantage);
    /* the drawn tokens must be typical of the source, within five standard errors */
    assert_true(fabs(v.source - s.entropy_rate) < 5 * v.error);
    assert_false(leaks(&v));
    /* Estimating k parameters from n tokens costs k / 2n nats per token (Akaike, 1973). */
    double margin = 0;
    for (int i = 0; i < r->run.model->registry->n; i++)
        margin += (double)param_logical_count(r->run.model->registry->params[i]);
    margin /= 2.0 * STEPS * TOKENS_PER_STEP;
    if (!(v.loss < v.source + margin))
        fail_msg("the model is %g nats above the source, the margin is %g", v.loss - v.source, margin);
    assert_true(v.loss < s.entropy_rate + margin + 5 * v.error);
    assert_true(v.loss > s.entropy_rate - 5 * v.error - log(1 / DELTA) / (EVAL_BATCHES * TOKENS_PER_STEP));
    trainer_free(r);
    setup_free(c);
}

/* If inputs are labels, then after a few steps the model must predict better than is otherwise possible. */
TEST(visible_labels_are_flagged) {
    const Source s = source_new();
    Setup *c = setup();
    Trainer *r = trained(c, &s, STEPS / 10, true);
    const Verdict v = evaluate(r, &s, true);
    assert_true(leaks(&v));
    assert_true(v.loss < s.entropy_rate / 2);
    trainer_free(r);
    setup_free(c);
}
