#include <math.h>
#include <stdlib.h>

#include "unit/err.h"
#include "unit/model_helper.h"

#include "infer/generate.h"

#define SIZES "--num-layers 2 --max-position-embeddings 40 --vocab-size 61 "
#define LLAMA                                                                                                \
    "--num-attention-heads 4 --hidden-size 32 --swiglu --group-query-attention --num-query-groups 2 "        \
    "--position-embedding-type rope --normalization RMSNorm --qk-layernorm "                                 \
    "--untie-embeddings-and-output-weights --disable-bias-linear "
static const char *const STYLES[] = {
    SIZES,
    SIZES LLAMA,
    SIZES "--position-embedding-type rope --window-size 4,0 ",
    SIZES LLAMA "--softmax-type learnable --window-size 4,0 ",
    SIZES "--softmax-type off-by-one ",
};
enum { STYLE_COUNT = sizeof STYLES / sizeof *STYLES };

/* With a standard deviation of 0.3, logits differ so much that greedy choices do not depend on rounding. */
static TestModel *inference_model(const char *words) {
    TestModel *m = test_model_new(setup_new("%s --init-method-std 0.3", words));
    return m;
}

/* Two evaluations of the same logits may differ by the rounding of the longest sum in the four GEMMs of each
 * layer (docs/reference/numerics.md: an fp64 layout agrees to rounding). A log-probability is a logit minus
 * the logarithm of a sum over the vocabulary. */
static double logprob_bound(const TestModel *m, double largest_logit) {
    const Derived *d = &m->setup->config.derived;
    double sums = 4 * (double)(m->setup->config.num_layers * d->ffn_hidden_size) + 2 * (double)d->vocab_size;
    return 2 * sums * dtype_roundoff(m->run.dtype) * largest_logit;
}

/* Computes log-probabilities of tokens[1..n) and the largest logit in one plain forward pass. Returns the
 * greedy choice after the last token. */
static int64_t plain_forward(TestModel *m, const int32_t *tokens, int64_t n, double *logprobs,
                             double *largest) {
    Ids *x = ids_new(m, 1, n, 1);
    for (int64_t i = 0; i < n; i++) ((int64_t *)x->tokens.data)[i] = tokens[i];
    tape_begin(m->tape, &(MicrobatchContext){.recording = false});
    const Tensor *y = model_forward(m->tape, m->model, &x->feed);
    int64_t vocab = m->setup->config.derived.vocab_size, best = 0;
    double *row = mem_alloc((size_t)vocab * sizeof *row);
    *largest = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)(i * y->dim[2]) * dtype_size((DType)y->dtype);
        dtype_convert(row, F64, (char *)y->data + at, (DType)y->dtype, (size_t)vocab);
        double top = -INFINITY, sum = 0;
        for (int64_t v = 0; v < vocab; v++) {
            *largest = fmax(*largest, fabs(row[v]));
            if (row[v] > top) top = row[v], best = v;
        }
        for (int64_t v = 0; v < vocab; v++) sum += exp(row[v] - top);
        if (i + 1 < n) logprobs[i] = row[tokens[i + 1]] - top - log(sum);
    }
    free(row);
    return best;
}

TEST(cached_greedy_equals_plain_forwards) {
    enum { PROMPT = 5, NEW = 30 };
    static const int32_t PROMPT_TOKENS[PROMPT] = {3, 60, 0, 17, 3};
    for (int k = 0; k < STYLE_COUNT; k++) {
        char words[512];
        snprintf(words, sizeof words, "%s --fp64", STYLES[k]);
        TestModel *m = inference_model(words);
        const Prompt prompt = {PROMPT_TOKENS, PROMPT};
        const GenerateOptions o = {.max_new_tokens = NEW};
        Generated g;
        assert_ok(generate(m->model, &m->run, &prompt, 1, &o, &g));
        assert_int_equal(g.n, PROMPT + NEW);
        assert_int_equal(g.n_prompt, PROMPT);
        assert_false(g.stopped);
        double logprobs[PROMPT + NEW], largest;
        for (int64_t n = PROMPT; n < g.n; n++)
            assert_int_equal(plain_forward(m, g.tokens, n, logprobs, &largest), g.tokens[n]);
        plain_forward(m, g.tokens, g.n, logprobs, &largest);
        for (int64_t i = 0; i + 1 < g.n; i++)
            if (!(fabs(g.logprobs[i] - logprobs[i]) <= logprob_bound(m, largest)))
                fail_msg("style %d: log-probability %lld is %.17g, a plain forward says %.17g", k,
                         (long long)i, g.logprobs[i], logprobs[i]);
        generated_free(&g);
        test_model_free(m);
    }
}

TEST(batch_of_prompts_equals_one_by_one) {
    enum { N = 4, NEW = 12 };
    static const int32_t A[] = {1}, B[] = {5, 9, 33, 20, 7, 8, 2, 11}, C[] = {60, 59},
                         D[] = {5, 9, 33, 20, 7, 8, 2, 12};
    const Prompt prompts[N] = {{A, 1}, {B, 8}, {C, 2}, {D, 8}};
    for (int k = 0; k < STYLE_COUNT; k++) {
        char words[512];
        snprintf(words, sizeof words, "%s --fp64", STYLES[k]);
        TestModel *m = inference_model(words);
        const GenerateOptions o = {.max_new_tokens = NEW};
        Generated together[N], alone;
        assert_ok(generate(m->model, &m->run, prompts, N, &o, together));
        for (int b = 0; b < N; b++) {
            assert_ok(generate(m->model, &m->run, &prompts[b], 1, &o, &alone));
            assert_int_equal(together[b].n, alone.n);
            assert_memory_equal(together[b].tokens, alone.tokens, (size_t)alone.n * sizeof *alone.tokens);
            double logprobs[64], largest;
            plain_forward(m, alone.tokens, alone.n, logprobs, &largest);
            for (int64_t i = 0; i + 1 < alone.n; i++)
                assert_true(fabs(together[b].logprobs[i] - alone.logprobs[i]) <= logprob_bound(m, largest));
            generated_free(&alone), generated_free(&together[b]);
        }
        test_model_free(m);
    }
}

TEST(draws_depend_on_seed_sample_and_position) {
    enum { N = 3, NEW = 16 };
    static const int32_t TOKENS[] = {4, 5};
    const Prompt prompts[N] = {{TOKENS, 2}, {TOKENS, 2}, {TOKENS, 2}};
    TestModel *m = inference_model(STYLES[0]);
    GenerateOptions o = {.sampling = {.temperature = 1.5}, .max_new_tokens = NEW, .seed = 1};
    Generated a[N], b[N], c[N];
    assert_ok(generate(m->model, &m->run, prompts, N, &o, a));
    assert_ok(generate(m->model, &m->run, prompts, N, &o, b));
    o.seed = 2;
    assert_ok(generate(m->model, &m->run, prompts, N, &o, c));
    const size_t bytes = (2 + NEW) * sizeof(int32_t);
    for (int i = 0; i < N; i++) {
        assert_memory_equal(a[i].tokens, b[i].tokens, bytes);
        assert_memory_not_equal(a[i].tokens, c[i].tokens, bytes);
        if (i) assert_memory_not_equal(a[0].tokens, a[i].tokens, bytes);
    }
    for (int i = 0; i < N; i++) generated_free(&a[i]), generated_free(&b[i]), generated_free(&c[i]);
    test_model_free(m);
}

/* ---- ends ---- */

typedef struct StopAt {
    int64_t sample, n;
    int calls, ended;
} StopAt;

static bool stop_at(void *arg, int64_t sample, const Generated *g) {
    StopAt *s = arg;
    s->calls += !g->ended, s->ended += g->ended;
    return sample == s->sample && g->n == s->n;
}

TEST(a_sample_ends_by_callback_token_or_length) {
    static const int32_t A[] = {1, 2, 3}, B[] = {40};
    const Prompt prompts[] = {{A, 3}, {B, 1}};
    TestModel *m = inference_model(STYLES[1]);
    GenerateOptions o = {.max_new_tokens = 8};
    Generated full[2], g[2];
    assert_ok(generate(m->model, &m->run, prompts, 2, &o, full));

    StopAt stop = {.sample = 0, .n = 5};
    o.watch = stop_at, o.watch_arg = &stop;
    assert_ok(generate(m->model, &m->run, prompts, 2, &o, g));
    assert_true(g[0].stopped && !g[1].stopped);
    assert_int_equal(g[0].n, 5);
    assert_int_equal(g[1].n, 9);
    assert_int_equal(stop.calls, 2 + 8);
    assert_int_equal(stop.ended, 2);
    assert_memory_equal(g[1].tokens, full[1].tokens,
                        9 * sizeof(int32_t)); /* the end of the other sample has no effect */
    generated_free(&g[0]), generated_free(&g[1]);

    const int64_t end = full[1].tokens[4];
    o = (GenerateOptions){.max_new_tokens = 8, .ends = (int64_t[]){61, end}, .n_ends = 2};
    int64_t end0 = 3, end1 = 1;
    while (end0 < full[0].n && full[0].tokens[end0] != end) end0++;
    while (full[1].tokens[end1] != end) end1++;
    assert_ok(generate(m->model, &m->run, prompts, 2, &o, g));
    assert_int_equal(g[0].n, end0);
    assert_int_equal(g[1].n, end1); /* the end-of-document token is not part of the text */
    assert_true(g[1].stopped);
    generated_free(&g[0]), generated_free(&g[1]);

    o = (GenerateOptions){.max_new_tokens = 0};
    assert_ok(generate(m->model, &m->run, prompts, 2, &o, g));
    assert_int_equal(g[0].n, 3);
    assert_true(fabs(g[0].logprobs[1] - full[0].logprobs[1]) <= logprob_bound(m, 100));
    generated_free(&g[0]), generated_free(&g[1]);
    generated_free(&full[0]), generated_free(&full[1]);
    test_model_free(m);
}

TEST(what_cannot_be_generated_is_a_sentence) {
    TestModel *m = inference_model(STYLES[0]);
    int32_t tokens[41] = {0};
    const GenerateOptions o = {.max_new_tokens = 10};
    Generated g;
    const struct {
        Prompt prompt;
        int32_t first;
        const char *says;
    } CASES[] = {
        {{tokens, 31}, 0, "40 positions"},     {{tokens, 41}, 0, "40 positions"}, {{tokens, 0}, 0, "empty"},
        {{tokens, 3}, 61, "vocabulary of 61"}, /* the embedding's padding rows are not tokens */
        {{tokens, 3}, -1, "vocabulary of 61"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        tokens[0] = CASES[i].first;
        Err e = generate(m->model, &m->run, &CASES[i].prompt, 1, &o, &g);
        assert_int_equal(e.code, ERR_USER);
        if (!strstr(e.msg, CASES[i].says)) fail_msg("'%s' does not say '%s'", e.msg, CASES[i].says);
    }
    tokens[0] = 0;
    const Prompt longest = {tokens, 30};
    assert_ok(generate(m->model, &m->run, &longest, 1, &o, &g));
    assert_int_equal(g.n, 40);
    generated_free(&g);
    test_model_free(m);
}

TEST(logits_that_are_not_finite_are_an_error) {
    static const int32_t TOKENS[] = {4, 5};
    const Prompt prompts[] = {{TOKENS, 2}, {TOKENS, 1}};
    char words[512];
    snprintf(words, sizeof words, "%s --fp64", STYLES[0]);
    TestModel *m = inference_model(words);
    Generated g[2];
    *(double *)registry_find(m->model->registry, "decoder.final_layernorm.bias")->value.data = NAN;
    const Err e = generate(m->model, &m->run, prompts, 2, &(GenerateOptions){.max_new_tokens = 3}, g);
    assert_int_equal(e.code, ERR_USER);
    if (!strstr(e.msg, "not finite")) fail_msg("'%s'", e.msg);
    test_model_free(m);
}
