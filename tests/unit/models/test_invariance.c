/* Tests changes that must leave the model's results bitwise equal: later tokens, recomputation, a split
 * backward pass. */
#include <math.h>
#include <stdlib.h>

#include "unit/model_helper.h"

#include "param/bucket.h"
#include "unit/zero_grads.h"

#define ROPE_GQA                                                                                             \
    "--num-attention-heads 4 --hidden-size 32 --group-query-attention --num-query-groups 2 --swiglu "        \
    "--normalization RMSNorm "                                                                               \
    "--position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights "
/* The size of an expert's GEMMs is its number of tokens. So other tokens change the rounding, unless the
 * order of summation is fixed. */
#define EXPERTS                                                                                              \
    "--num-experts 6 --moe-router-topk 2 --moe-ffn-hidden-size 12 --moe-layer-freq [1,0,1] "                 \
    "--moe-shared-expert-intermediate-size 8 --moe-shared-expert-gate --batch-invariant-mode "               \
    "--moe-input-jitter-eps 0.1 --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.5 "     \
    "--moe-z-loss-coeff 0.25 "
static const char *const STYLES[] = {
    "--num-layers 3 ",
    "--num-layers 3 " ROPE_GQA,
    "--num-layers 3 " ROPE_GQA "--qk-layernorm --window-size 3,0 --window-attn-skip-freq 2 ",
    "--num-layers 3 --attention-backend unfused --squared-relu --norm-placement post ",
    "--num-layers 3 " ROPE_GQA EXPERTS,
    "--num-layers 3 " ROPE_GQA "--softmax-type learnable --window-size 3,0 ",
    "--num-layers 3 --attention-backend unfused --softmax-type learnable ",
};
static const char *const LANES[] = {"--fp64", "", "--bf16"};
enum { STYLE_COUNT = sizeof STYLES / sizeof *STYLES, LANE_COUNT = sizeof LANES / sizeof *LANES };

/* ---- the future ---- */

/* Returns the logits [s, b, padded vocabulary] of one forward pass. They are valid until the tape begins
 * again. */
static const Tensor *logits_of(TestModel *m, const Ids *x) {
    tape_begin(m->tape, &(MicrobatchContext){.recording = false});
    return model_forward(m->tape, m->model, &x->feed);
}

TEST(future_tokens_change_nothing_before_them) {
    enum { B = 2, S = 20 };
    for (int k = 0; k < STYLE_COUNT * LANE_COUNT; k++) {
        TestModel *m = test_model_new(
            setup_new("%s %s --seq-length %d", STYLES[k / LANE_COUNT], LANES[k % LANE_COUNT], S));
        Ids *x = ids_new(m, B, S, 1);
        const Tensor *y = logits_of(m, x);
        size_t position = (size_t)(B * y->dim[2]) * dtype_size((DType)y->dtype);
        char *before = mem_alloc(S * position);
        memcpy(before, y->data, S * position);
        for (int64_t cut = S - 1; cut > 0; cut -= 3) {
            int64_t *tokens = x->tokens.data;
            for (int64_t b = 0; b < B; b++)
                for (int64_t i = cut; i < S; i++) tokens[b * S + i] = (tokens[b * S + i] + 1) % 32;
            y = logits_of(m, x);
            assert_memory_equal(before, y->data, (size_t)cut * position);
            assert_memory_not_equal(before + (size_t)cut * position, (char *)y->data + (size_t)cut * position,
                                    position);
        }
        free(before);
        test_model_free(m);
    }
}

/* ---- sinks ---- */

static void set_sinks(TestModel *m, double value) {
    for (int i = 0; i < m->model->registry->n; i++) {
        Tensor *x = &m->model->registry->params[i]->value;
        if (!strstr(m->model->registry->params[i]->spec.name, "softmax_offset")) continue;
        for (int64_t e = 0; e < tensor_count(x); e++)
            dtype_convert((char *)x->data + (size_t)e * dtype_size((DType)x->dtype), (DType)x->dtype, &value,
                          F64, 1);
    }
}

/* A sink of 0 adds exp(0) = 1 to the denominator, as off-by-one does. A sink far below all scores has no
 * effect. */
TEST(off_by_one_has_sinks_of_zero) {
    for (int k = 0; k < 2 * LANE_COUNT; k++) {
        const char *words = k % 2 ? "--num-layers 2 --attention-backend unfused" : "--num-layers 2 " ROPE_GQA;
        TestModel *m[3];
        const Tensor *y[3];
        for (int i = 0; i < 3; i++) {
            m[i] = test_model_new(
                setup_new("%s %s --softmax-type %s", words, LANES[k / 2], SoftmaxType_spellings[i]));
            y[i] = logits_of(m[i], ids_new(m[i], 2, 8, 1));
        }
        const size_t bytes = tensor_bytes(y[SOFTMAX_LEARNABLE]);
        set_sinks(m[SOFTMAX_LEARNABLE], 0);
        y[SOFTMAX_LEARNABLE] = logits_of(m[SOFTMAX_LEARNABLE], ids_new(m[SOFTMAX_LEARNABLE], 2, 8, 1));
        assert_memory_equal(y[SOFTMAX_LEARNABLE]->data, y[SOFTMAX_OFF_BY_ONE]->data, bytes);
        assert_memory_not_equal(y[SOFTMAX_LEARNABLE]->data, y[SOFTMAX_VANILLA]->data, bytes);
        set_sinks(m[SOFTMAX_LEARNABLE], -1e4);
        y[SOFTMAX_LEARNABLE] = logits_of(m[SOFTMAX_LEARNABLE], ids_new(m[SOFTMAX_LEARNABLE], 2, 8, 1));
        assert_memory_equal(y[SOFTMAX_LEARNABLE]->data, y[SOFTMAX_VANILLA]->data, bytes);
        for (int i = 0; i < 3; i++) test_model_free(m[i]);
    }
}

/* BLAS chooses its order of summation by the sizes of matrices, so other sizes change the rounding. With
 * --batch-invariant-mode, the order is fixed, so sizes have no effect. */
static const char *order_of(const char *style, int which) {
    return strstr(style, "--batch-invariant-mode") || which ? "" : "--batch-invariant-mode";
}

/* Results of equal tokens that are followed by different ones must be bitwise equal if the order is fixed.
 * Otherwise they may differ by the rounding of the longest sum (the MLP's) in the four GEMMs of each
 * layer. */
TEST(appended_tokens_change_only_rounding) {
    enum { S = 24 };
    for (int k = 0; k < 4 * STYLE_COUNT; k++) {
        TestModel *m = test_model_new(setup_new("%s %s %s --seq-length %d", STYLES[k / 4], LANES[k % 2],
                                                order_of(STYLES[k / 4], k / 2 % 2), S));
        const Derived *d = &m->setup->config.derived;
        int64_t width = d->padded_vocab_size;
        double *whole = mem_alloc((size_t)(S * width) * sizeof *whole),
               *part = mem_alloc((size_t)width * sizeof *part), largest = 0;
        const Tensor *y = logits_of(m, ids_new(m, 1, S, 1));
        DType type = (DType)y->dtype;
        dtype_convert(whole, F64, y->data, type, (size_t)(S * width));
        for (int64_t i = 0; i < S * width; i++) largest = fmax(largest, fabs(whole[i]));
        double bound = m->run.batch_invariant
                           ? 0
                           : 4 * (double)(m->setup->config.num_layers * d->ffn_hidden_size) *
                                 dtype_roundoff(type) * largest;
        for (int64_t s = 1; s < S; s += 5) {
            y = logits_of(m, ids_new(m, 1, s, 1));
            for (int64_t i = 0; i < s; i++) {
                dtype_convert(part, F64, (char *)y->data + (size_t)(i * width) * dtype_size(type), type,
                              (size_t)width);
                for (int64_t v = 0; v < width; v++)
                    if (!(fabs(part[v] - whole[i * width + v]) <= bound))
                        fail_msg("%lld tokens: logit %lld of position %lld is off by %g, bound %g",
                                 (long long)s, (long long)v, (long long)i, part[v] - whole[i * width + v],
                                 bound);
            }
        }
        free(whole), free(part);
        test_model_free(m);
    }
}

/* ---- one step's loss and gradients ---- */

typedef struct Result {
    double loss[64]; /* loss of each token */
    char *grads;     /* all main gradients */
    size_t bytes;
} Result;

static Result result_of(Setup *s, bool two_sweeps) {
    enum { B = 3, S = 10 };
    TestModel *m = test_model_new(s);
    m->microbatch.first_sample = 5;
    m->microbatch.aux_scale = 0.5;
    Ids *x = ids_new(m, B, S, 7);
    zero_grads(m->model->registry);
    tape_begin(m->tape, &m->microbatch);
    Tensor *y = model_forward(m->tape, m->model, &x->labelled);
    Tensor *dy = tape_tensor(m->tape, (DType)y->dtype, 2, y->dim);
    for (int64_t i = 0; i < B * S; i++) {
        double weight = (double)(i % 4) / 8;
        dtype_convert((char *)dy->data + (size_t)i * dtype_size((DType)dy->dtype), (DType)dy->dtype, &weight,
                      F64, 1);
    }
    Result r = {.bytes = (size_t)m->model->registry->elements * dtype_size(m->model->registry->precise)};
    dtype_convert(r.loss, F64, y->data, (DType)y->dtype, B * S);
    if (two_sweeps) {
        tape_backward(m->tape, y, dy, NEED_DX);
        tape_backward(m->tape, y, NULL, NEED_DW);
    } else {
        tape_backward(m->tape, y, dy, NEED_ALL);
    }
    r.grads = mem_alloc(r.bytes);
    memcpy(r.grads, m->model->registry->grads, r.bytes);
    test_model_free(m);
    return r;
}

static void expect_same(const Result *a, Result b, const char *what) {
    assert_int_equal(a->bytes, b.bytes);
    if (memcmp(a->loss, b.loss, sizeof a->loss)) fail_msg("the loss differs: %s", what);
    if (memcmp(a->grads, b.grads, b.bytes)) fail_msg("a gradient differs: %s", what);
    free(b.grads);
}

static const char *const RECOMPUTES[] = {
    "--recompute-activations",
    "--recompute-granularity selective --recompute-modules mlp",
    "--recompute-granularity selective --recompute-modules core_attn mlp",
    "--recompute-granularity selective --recompute-modules moe",
    "--recompute-granularity selective --recompute-modules shared_experts",
    "--recompute-granularity selective --recompute-modules layernorm moe_act",
    "--recompute-granularity selective --recompute-modules layernorm core_attn mlp moe",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 3",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
};

TEST(recompute_and_split_sweeps_change_nothing) {
    for (int k = 0; k < STYLE_COUNT * LANE_COUNT; k++) {
        const char *style = STYLES[k / LANE_COUNT], *lane = LANES[k % LANE_COUNT];
        const char *dropout = "--hidden-dropout 0.2 --attention-dropout 0.3 --seq-length 10";
        Result plain = result_of(setup_new("%s %s %s", style, lane, dropout), false);
        double sum = 0;
        for (int i = 0; i < 30; i++) sum += plain.loss[i];
        assert_true(isfinite(sum) && sum > 0);
        Result none = result_of(
            setup_new("%s %s --hidden-dropout 0 --attention-dropout 0 --seq-length 10", style, lane), false);
        assert_memory_not_equal(plain.loss, none.loss, sizeof plain.loss); /* shows that dropout is active */
        free(none.grads);
        expect_same(&plain, result_of(setup_new("%s %s %s", style, lane, dropout), true), "two sweeps");
        for (size_t i = 0; i < sizeof RECOMPUTES / sizeof *RECOMPUTES; i++) {
            expect_same(&plain,
                        result_of(setup_new("%s %s %s %s", style, lane, dropout, RECOMPUTES[i]), false),
                        RECOMPUTES[i]);
            expect_same(&plain,
                        result_of(setup_new("%s %s %s %s", style, lane, dropout, RECOMPUTES[i]), true),
                        RECOMPUTES[i]);
        }
        free(plain.grads);
    }
}

TEST(recomputing_gated_norms_changes_nothing) {
    static const char *const DELTA = "--num-layers 4 --normalization RMSNorm "
                                     "--experimental-attention-variant gdn --linear-attention-freq 2 "
                                     "--linear-num-key-heads 2 --linear-num-value-heads 4 "
                                     "--linear-key-head-dim 8 --linear-value-head-dim 8 "
                                     "--seq-length 10";
    const char *again = "--recompute-granularity selective --recompute-modules gdn_norm_out layernorm";
    for (int k = 0; k < LANE_COUNT; k++) {
        Result plain = result_of(setup_new("%s %s", DELTA, LANES[k]), false);
        for (int two = 0; two < 2; two++)
            expect_same(&plain, result_of(setup_new("%s %s %s", DELTA, LANES[k], again), two), again);
        free(plain.grads);
    }
}

/* ---- vocabulary padding ---- */

static double grad_at(const Registry *r, const Result *x, const Param *p, int64_t i) {
    size_t at = (size_t)(p->offset + i) * dtype_size(r->precise);
    double g;
    dtype_convert(&g, F64, x->grads + at, r->precise, 1);
    return g;
}

static double largest_grad(const Registry *r, const Result *x) {
    double largest = 0;
    for (int p = 0; p < r->n; p++)
        for (int64_t i = 0; i < param_logical_count(r->params[p]); i++)
            largest = fmax(largest, fabs(grad_at(r, x, r->params[p], i)));
    return largest;
}

/* Padding columns must not be part of any softmax or sum, and padding rows must get no gradient. Results are
 * bitwise equal if the order is fixed. Otherwise they may differ by the rounding of the longest sum in the
 * four GEMMs of each layer, forward and backward. */
TEST(padded_vocabulary_changes_only_rounding) {
    for (int k = 0; k < 4 * STYLE_COUNT; k++) {
        const char *words = "%s %s %s --seq-length 10 --vocab-size 37 --make-vocab-size-divisible-by %d";
        const char *order = order_of(STYLES[k / 4], k / 2 % 2);
        Setup *setup[2];
        Model *m[2];
        Result r[2];
        for (int i = 0; i < 2; i++) {
            r[i] = result_of(setup_new(words, STYLES[k / 4], LANES[k % 2], order, i ? 128 : 1), false);
            setup[i] = setup_new(words, STYLES[k / 4], LANES[k % 2], order, i ? 128 : 1);
            m[i] = model_new(&setup[i]->config, NULL);
            m[i]->registry->precise = m[i]->registry->storage = k % 2 ? F32 : F64;
            buckets_lay(m[i]->registry); /* determines the positions of the parameters in the result */
        }
        const Registry *a = m[0]->registry, *b = m[1]->registry;
        double sums =
            setup[0]->config.batch_invariant_mode
                ? 0
                : 8 * (double)(setup[0]->config.num_layers * setup[0]->config.derived.ffn_hidden_size);
        double bound = sums * dtype_roundoff(a->precise) * largest_grad(a, &r[0]);
        for (int i = 0; i < 30; i++)
            assert_true(fabs(r[0].loss[i] - r[1].loss[i]) <=
                        sums * dtype_roundoff(a->precise) * r[0].loss[i]);
        for (int p = 0; p < a->n; p++) {
            int64_t n = param_logical_count(a->params[p]);
            for (int64_t i = 0; i < n; i++) {
                double off = grad_at(a, &r[0], a->params[p], i) - grad_at(b, &r[1], b->params[p], i);
                if (!(fabs(off) <= bound))
                    fail_msg("%s changes by %g, bound %g", a->params[p]->spec.name, off, bound);
            }
            for (int64_t i = n; i < b->params[p]->count; i++)
                assert_true(grad_at(b, &r[1], b->params[p], i) == 0);
        }
        for (int i = 0; i < 2; i++) model_free(m[i]), setup_free(setup[i]), free(r[i].grads);
    }
}
