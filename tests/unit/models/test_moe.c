/* Tests MoE layers in a model: the gradients of their losses, their counts, and the effects of a capacity.
 * tests/unit/ops compares the ops with PyTorch; golden/ compares whole models. */
#include <math.h>

#include "unit/model_helper.h"
#include "unit/zero_grads.h"

#define EXPERTS                                                                                              \
    "--fp64 --num-layers 3 --hidden-size 16 --disable-bias-linear --swiglu --ffn-hidden-size 24 "            \
    "--moe-ffn-hidden-size 12 --num-experts 6 --moe-router-topk 2 --moe-layer-freq [1,0,1] "
#define LOSSES                                                                                               \
    "--moe-router-load-balancing-type aux_loss seq_aux_loss global_aux_loss "                                \
    "--moe-aux-loss-coeff 0.5 0.25 0.125 --moe-z-loss-coeff 0.0625 "
enum {
    B = 2,
    S = 8,
    LAYERS = 2,
    EACH = B * S * 2
}; /* number of routed copies in a microbatch, per MoE layer */

/* Runs a microbatch forward and backward. The language model's loss is multiplied by `weight`. */
static double pass(TestModel *m, Ids *x, double weight) {
    double sum = 0;
    tape_begin(m->tape, &m->microbatch);
    Tensor *y = model_forward(m->tape, m->model, &x->labelled);
    Tensor *dy = tape_tensor(m->tape, F64, 2, y->dim);
    for (int64_t i = 0; i < x->b * x->s; i++) {
        sum += ((double *)y->data)[i];
        ((double *)dy->data)[i] = weight;
    }
    tape_backward(m->tape, y, dy, NEED_ALL);
    tape_end(m->tape);
    return sum;
}

static void restart(TestModel *m) {
    zero_grads(m->model->registry);
    states_begin_step(m->model->registry);
}

static double losses(const TestModel *m) {
    double sum = 0;
    for (int i = 0; i < ROUTER_LOSSES; i++)
        sum += model_router_loss_coeff(m->model, i) *
               model_router_loss(m->model, states_counters(m->model->registry, COMM_SUM)->data, i, NULL) *
               LAYERS;
    return sum;
}

/* Runs two different microbatches. The global loss of the second depends on both. */
static double two_passes(TestModel *m) {
    restart(m);
    pass(m, ids_new(m, B, S, 1), 0);
    pass(m, ids_new(m, B, S, 5), 0);
    return losses(m);
}

/* If the weight of the language model's loss is 0, the gradient comes only from the losses of the routers. It
 * is compared with central differences as in tests/unit/ops/test_ops.c. */
static void gradient_is_that_of_the_losses(const char *more) {
    static const char *const NAMES[] = {"decoder.layers.0.mlp.router.weight",
                                        "decoder.layers.2.mlp.router.weight",
                                        "decoder.layers.0.mlp.experts.linear_fc2.weight",
                                        "decoder.layers.1.self_attention.linear_qkv.weight"};
    TestModel *m = test_model_new(setup_new(EXPERTS LOSSES "%s", more));
    const double h = cbrt(2 * dtype_roundoff(F64)), scale = 3;
    m->microbatch.aux_scale = scale;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        Param *p = registry_find(m->model->registry, NAMES[i]);
        assert_non_null(p);
        for (int64_t e = 0; e < p->count; e += p->count / 5) {
            const double rounding = 64 * dtype_roundoff(F64) * fabs(two_passes(m)) / h,
                         got = ((double *)p->main_grad.data)[e] / scale;
            double *w = (double *)p->value.data + e, at = *w, slope[2];
            for (int k = 0; k < 2; k++) {
                *w = at + (k + 1) * h;
                const double up = two_passes(m);
                *w = at - (k + 1) * h;
                slope[k] = (up - two_passes(m)) / (2 * (k + 1) * h);
            }
            *w = at;
            if (!(fabs(got - slope[0]) <= fabs(slope[1] - slope[0]) + rounding))
                fail_msg("%s[%lld]: gradient %.12g, central difference %.12g", NAMES[i], (long long)e, got,
                         slope[0]);
            if (i < 2) assert_true(fabs(got) > rounding); /* the compared gradients must not all be zero */
        }
    }
    test_model_free(m);
}

TEST(losses_reach_the_gradient) {
    gradient_is_that_of_the_losses("");
    gradient_is_that_of_the_losses("--recompute-granularity full --recompute-method uniform "
                                   "--recompute-num-layers 3");
    gradient_is_that_of_the_losses("--recompute-granularity selective --recompute-modules moe");
}

/* With a single microbatch, the global loss covers only that microbatch. If it has one sample, it is a single
 * sequence. */
TEST(losses_differ_in_what_they_count) {
    TestModel *m = test_model_new(setup_new(EXPERTS LOSSES));
    double value[3][ROUTER_LOSSES];
    const int64_t samples[] = {B, 1, B};
    for (int k = 0; k < 3; k++) {
        restart(m);
        pass(m, ids_new(m, samples[k], S, 1), 1);
        if (k == 2) pass(m, ids_new(m, samples[k], S, 5), 1);
        for (int i = 0; i < ROUTER_LOSSES; i++)
            value[k][i] =
                model_router_loss(m->model, states_counters(m->model->registry, COMM_SUM)->data, i, NULL);
    }
    const double near = 64 * dtype_roundoff(F64);
    assert_true(fabs(value[0][ROUTER_LOSS_GLOBAL_AUX] - value[0][ROUTER_LOSS_AUX]) < near);
    assert_true(fabs(value[0][ROUTER_LOSS_SEQ_AUX] - value[0][ROUTER_LOSS_AUX]) > 1e-6);
    assert_true(fabs(value[1][ROUTER_LOSS_SEQ_AUX] - value[1][ROUTER_LOSS_AUX]) < near);
    assert_true(fabs(value[2][ROUTER_LOSS_GLOBAL_AUX] - value[2][ROUTER_LOSS_AUX]) > 1e-6);
    test_model_free(m);
}

/* ---- counts ---- */

static double counted(const TestModel *m, int64_t layer) {
    const double *count = m->model->stack[0].counters[layer * LAYER_BRANCHES + 1]->data;
    double sum = 0;
    for (int64_t e = 0; e < m->setup->config.num_experts; e++) sum += count[e];
    return sum;
}

/* The choices of recomputed blocks must be counted once, those of evaluations not at all. */
TEST(every_choice_counts_once) {
    static const char *const WAYS[] = {
        "", "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "--recompute-granularity selective --recompute-modules moe",
        "--moe-expert-capacity-factor 0.5" /* dropped tokens are also counted */};
    for (size_t i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
        TestModel *m = test_model_new(setup_new(
            EXPERTS "--moe-router-score-function sigmoid --moe-router-enable-expert-bias %s", WAYS[i]));
        Ids *x = ids_new(m, B, S, 1);
        restart(m);
        for (int n = 1; n <= 2; n++) {
            pass(m, x, 1);
            assert_true(counted(m, 0) == n * EACH && counted(m, 2) == n * EACH);
        }
        tape_begin(m->tape, &(MicrobatchContext){.recording = false});
        model_forward(m->tape, m->model, &x->labelled);
        assert_true(counted(m, 0) == 2 * EACH);
        test_model_free(m);
    }
}

static const Router *router_of(const TestModel *m, int64_t layer) {
    return &((const Moe *)m->model->stack[0].layer[layer].branch[1].self)->router;
}

/* The bias of an expert rises if its count is below the mean, and falls if it is above. Biases have no
 * gradient and no optimizer update, and do not count in norms. */
TEST(biases_move_towards_balance) {
    TestModel *m = test_model_new(
        setup_new(EXPERTS "--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
                          "--moe-router-bias-update-rate 0.125"));
    static const double COUNTS[6] = {4, 0, 9, 4, 3, 4}, WANT[6] = {0, 0.125, -0.125, 0, 0.125, 0};
    const Router *r = router_of(m, 2);
    states_begin_step(m->model->registry);
    memcpy(r->counters->data, COUNTS, sizeof COUNTS);
    states_end_step(m->model->registry, &(StateContext){.device = m->device});
    for (int e = 0; e < 6; e++) {
        assert_true(((double *)r->bias->master.data)[e] == WANT[e]);
        assert_true(((double *)router_of(m, 0)->bias->master.data)[e] == 0);
    }
    assert_null(r->bias->value.grad);
    assert_string_equal(r->bias->spec.name, "decoder.layers.2.mlp.router.expert_bias");
    test_model_free(m);
}

/* ---- capacity ---- */

/* A capacity for all tokens is equivalent to no capacity, and padding rows have no effect. A small capacity
 * changes results. */
TEST(only_dropped_tokens_miss_anything) {
    static const char *const WAYS[] = {"",
                                       "--moe-expert-capacity-factor 3",
                                       "--moe-expert-capacity-factor 3 --moe-pad-expert-input-to-capacity",
                                       "--moe-expert-capacity-factor 0.6",
                                       "--moe-expert-capacity-factor 0.6 --moe-pad-expert-input-to-capacity",
                                       "--moe-expert-capacity-factor 0.6 --moe-token-drop-policy position"};
    enum { N = sizeof WAYS / sizeof *WAYS };
    double sum[N], grad[N];
    for (int i = 0; i < N; i++) {
        TestModel *m = test_model_new(setup_new(EXPERTS "%s", WAYS[i]));
        const Param *p = registry_find(m->model->registry, "decoder.layers.0.mlp.router.weight");
        zero_grads(m->model->registry);
        sum[i] = pass(m, ids_new(m, B, S, 1), 1);
        grad[i] = 0;
        for (int64_t e = 0; e < p->count; e++) grad[i] += fabs(((double *)p->main_grad.data)[e]);
        test_model_free(m);
    }
    const double near = 1024 * dtype_roundoff(F64) * sum[0];
    const int SAME[][2] = {{0, 1}, {0, 2}, {3, 4}}, OTHER[][2] = {{0, 3}, {3, 5}};
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(sum[SAME[i][0]] - sum[SAME[i][1]]) <= near);
        assert_true(fabs(grad[SAME[i][0]] - grad[SAME[i][1]]) <= near);
    }
    for (int i = 0; i < 2; i++) assert_true(fabs(sum[OTHER[i][0]] - sum[OTHER[i][1]]) > 1e6 * near);
}

/* Experts are chosen by the balanced scores in training, and by the plain scores otherwise. */
TEST(sinkhorn_balances_only_training) {
    static const char *const TYPES[] = {"sinkhorn", "none"};
    double sum[2][2];
    for (int i = 0; i < 2; i++) {
        TestModel *m = test_model_new(setup_new(EXPERTS "--init-method-std 0.5 --moe-router-pre-softmax "
                                                        "--hidden-dropout 0 --attention-dropout 0 "
                                                        "--moe-router-load-balancing-type %s",
                                                TYPES[i]));
        Ids *x = ids_new(m, B, S, 1);
        for (int training = 0; training < 2; training++) {
            m->microbatch.training = training;
            sum[i][training] = pass(m, x, 1);
        }
        test_model_free(m);
    }
    assert_true(sum[0][false] == sum[1][false] && sum[1][false] == sum[1][true]);
    assert_true(fabs(sum[0][true] - sum[1][true]) > 1e-3);
}
