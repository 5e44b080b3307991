/* Tests generation with an encoder-decoder: choices and logits are those of transformers, with and
 * without other prompts. */
#include <math.h>
#include <stdlib.h>

#include "unit/err.h"
#include "unit/model_helper.h"

#include "ckpt/hf/tensors.h"
#include "infer/generate.h"

#define SIZES                                                                                                \
    "--model t5 --num-layers 3 --decoder-num-layers 2 --hidden-size 24 --num-attention-heads 3 "             \
    "--ffn-hidden-size 20 --seq-length 24 --decoder-seq-length 24 --vocab-size 61 --fp64 "
#define RELATIVE "--position-embedding-type relative --kv-channels 5 --relative-attention-num-buckets 8 "
#define ORIGINAL                                                                                             \
    SIZES RELATIVE "--relative-attention-max-distance 12 --normalization RMSNorm --norm-epsilon 1e-6 "       \
                   "--disable-bias-linear --softmax-scale 1 "
#define WIDE "--init-method-std 0.3 "

/* ---- forwards ---- */

enum { POSITIONS = 64 };

/* The input tensors of one sample. */
typedef struct Inputs {
    int64_t tokens[POSITIONS], encoder[POSITIONS], positions[POSITIONS], length;
    Tensor tensor[5];
    Feed feed;
} Inputs;

/* Sets n decoder tokens, and the encoder's tokens. */
static void inputs_fill(Inputs *x, const Prompt *p, const int32_t *tokens, int64_t n) {
    *x = (Inputs){.length = p->n};
    for (int64_t i = 0; i < n; i++) x->tokens[i] = tokens[i];
    for (int64_t i = 0; i < p->n; i++) x->encoder[i] = p->tokens[i];
    for (int64_t i = 0; i < POSITIONS; i++) x->positions[i] = i;
    const int64_t own[] = {1, n}, other[] = {1, p->n}, one = 1;
    x->tensor[0] = tensor_make(x->tokens, I64, 2, own);
    x->tensor[1] = tensor_make(x->positions, I64, 2, own);
    x->tensor[2] = tensor_make(x->encoder, I64, 2, other);
    x->tensor[3] = tensor_make(x->positions, I64, 2, other);
    x->tensor[4] = tensor_make(&x->length, I64, 1, &one);
    x->feed = (Feed){.tokens = &x->tensor[0],
                     .position_ids = &x->tensor[1],
                     .encoder_tokens = &x->tensor[2],
                     .encoder_position_ids = &x->tensor[3],
                     .encoder_lengths = &x->tensor[4]};
}

static void forward(TestModel *m, const Inputs *x, double *logits) {
    tape_begin(m->tape, &(MicrobatchContext){.recording = false});
    const Tensor *y = model_forward(m->tape, m->model, &x->feed);
    const int64_t vocab = m->setup->config.derived.vocab_size;
    for (int64_t i = 0; i < y->dim[0]; i++)
        memcpy(logits + i * vocab, (double *)y->data + i * y->dim[2], (size_t)vocab * sizeof *logits);
}

/* Computes the logits [n, vocab] of all decoder tokens in one pass, without a cache. */
static void plain_logits(TestModel *m, const Prompt *p, const int32_t *tokens, int64_t n, double *logits) {
    Inputs x;
    inputs_fill(&x, p, tokens, n);
    forward(m, &x, logits);
}

#define LOGIT_ERROR 1e-12 /* bound for the error of a logit, relative to the largest logit */

/* The largest |a - b| relative to the largest |b|. */
static double distance(const double *a, const double *b, int64_t n) {
    double most = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(a[i] - b[i])), largest = fmax(largest, fabs(b[i]));
    return most / largest;
}

/* Asserts that the log-probabilities of tokens[1..n) follow from the logits [n, vocab]. A log-probability is the
 * difference between a logit and the logarithm of a sum of exponentials, so its error is at most twice that of a
 * logit. */
static void assert_logprobs(const Generated *g, const double *logits, int64_t vocab) {
    double largest = 0;
    for (int64_t i = 0; i < g->n * vocab; i++) largest = fmax(largest, fabs(logits[i]));
    for (int64_t i = 0; i + 1 < g->n; i++) {
        const double want = sampling_logprob(logits + i * vocab, vocab, g->tokens[i + 1]);
        if (!(fabs(g->logprobs[i] - want) <= 2 * LOGIT_ERROR * largest))
            fail_msg("log-probability %lld is %.17g, not %.17g", (long long)i, g->logprobs[i], want);
    }
}

/* ---- transformers ---- */

static void import_folder(const char *folder, Registry *r) {
    Safetensors *s;
    HfMap map;
    assert_ok(safetensors_open(folder, &s));
    assert_ok(hf_match(s, r, NULL, &map));
    assert_ok(hf_import(s, &map, r));
    hf_map_free(&map);
    safetensors_close(s);
}

/* Compares with the tokens that generate() of transformers chose greedily, and with its logits
 * (tools/oracle/hf_logits.py). */
static void equals_transformers(const char *folder, const char *words) {
    enum { MOST = 8, END = 1 };
    TestModel *m = test_model_new(setup_new("%s", words));
    char *path = mem_printf("%s/reference.safetensors", folder);
    Safetensors *file;
    import_folder(folder, m->model->registry);
    assert_ok(safetensors_open(path, &file));
    const Tensor *encoder = safetensors_find(file, "encoder_tokens"),
                 *tokens = safetensors_find(file, "tokens");
    const int64_t *lengths = safetensors_find(file, "encoder_lengths")->data, n = tokens->dim[0],
                  s = tokens->dim[1], vocab = m->setup->config.derived.vocab_size, end = END;
    const double *want = safetensors_find(file, "logits")->data;
    int32_t texts[MOST][POSITIONS], chosen[MOST][POSITIONS];
    double *logits = mem_zero((size_t)(s * vocab), sizeof *logits);
    Prompt prompts[MOST];
    Generated g[MOST];
    int64_t ended = 0;
    assert_in_range(n, 2, MOST);
    for (int64_t b = 0; b < n; b++) {
        for (int64_t i = 0; i < lengths[b]; i++)
            texts[b][i] = (int32_t)((int64_t *)encoder->data)[b * encoder->dim[1] + i];
        for (int64_t i = 0; i < s; i++) chosen[b][i] = (int32_t)((int64_t *)tokens->data)[b * s + i];
        prompts[b] = (Prompt){texts[b], lengths[b]};
        plain_logits(m, &prompts[b], chosen[b], s, logits);
        assert_true(distance(logits, want + b * s * vocab, s * vocab) <= LOGIT_ERROR);
    }
    const GenerateOptions o = {.max_new_tokens = s - 1, .ends = &end, .n_ends = 1, .start = chosen[0][0]};
    assert_ok(generate(m->model, &m->run, prompts, n, &o, g));
    for (int64_t b = 0; b < n; b++) {
        assert_memory_equal(g[b].tokens, chosen[b], (size_t)g[b].n * sizeof **chosen);
        assert_int_equal(g[b].n_prompt, 1);
        assert_true(g[b].n == s || chosen[b][g[b].n] == END);
        assert_int_equal(g[b].stopped, g[b].n < s);
        ended += g[b].stopped;
        assert_logprobs(&g[b], want + b * s * vocab, vocab);
        generated_free(&g[b]);
    }
    assert_in_range(ended, 1, n - 1);
    safetensors_close(file);
    free(path), free(logits);
    test_model_free(m);
}

TEST(choices_and_logits_equal_transformers) {
    equals_transformers("tests/data/hf/t5-original", ORIGINAL "--activation relu");
    equals_transformers("tests/data/hf/t5-v1_1",
                        ORIGINAL "--activation geglu-tanh --untie-embeddings-and-output-weights");
}

/* ---- batches ---- */

static const char *const STYLES[] = {
    SIZES WIDE, /* Megatron-LM's */
    SIZES WIDE "--position-embedding-type rope --swiglu",
    SIZES WIDE RELATIVE "--relative-attention-max-distance 5 --attention-backend unfused",
};
enum {
    STYLE_COUNT = sizeof STYLES / sizeof *STYLES,
    PROMPTS = 4,
    NEW = 5
}; /* fewer new tokens than B and D have */
static const int32_t A[] = {1}, B[] = {5, 9, 33, 20, 7, 8, 2, 11}, C[] = {60, 59},
                     D[] = {5, 9, 33, 20, 7, 8, 2, 12};
static const Prompt TEXTS[PROMPTS] = {{A, 1}, {B, 8}, {C, 2}, {D, 8}};

TEST(batches_change_nothing) {
    for (int k = 0; k < STYLE_COUNT; k++) {
        TestModel *m = test_model_new(setup_new("%s", STYLES[k]));
        const int64_t vocab = m->setup->config.derived.vocab_size;
        const GenerateOptions o = {.max_new_tokens = NEW, .start = 3};
        Generated together[PROMPTS], alone;
        assert_ok(generate(m->model, &m->run, TEXTS, PROMPTS, &o, together));
        for (int b = 0; b < PROMPTS; b++) {
            double plain[(NEW + 1) * 61];
            assert_ok(generate(m->model, &m->run, &TEXTS[b], 1, &o, &alone));
            assert_int_equal(together[b].n, 1 + NEW);
            assert_int_equal(together[b].tokens[0], 3);
            assert_memory_equal(together[b].tokens, alone.tokens, (1 + NEW) * sizeof *alone.tokens);
            plain_logits(m, &TEXTS[b], alone.tokens, alone.n, plain);
            assert_logprobs(&alone, plain, vocab);
            assert_logprobs(&together[b], plain, vocab);
            generated_free(&alone), generated_free(&together[b]);
        }
        test_model_free(m);
    }
}

/* ---- errors ---- */

static void assert_refused(TestModel *m, int64_t prompt, int64_t fresh, int64_t start, const char *says) {
    int32_t tokens[POSITIONS] = {0};
    const Prompt p = {tokens, prompt};
    Generated g;
    const Err e =
        generate(m->model, &m->run, &p, 1, &(GenerateOptions){.max_new_tokens = fresh, .start = start}, &g);
    if (!says) assert_ok(e);
    if (!says) generated_free(&g);
    if (!says) return;
    assert_int_equal(e.code, ERR_USER);
    if (!strstr(e.msg, says)) fail_msg("'%s' does not say '%s'", e.msg, says);
}

TEST(lengths_are_those_of_each_stack) {
    TestModel *m = test_model_new(setup_new(SIZES));
    assert_refused(m, 24, 23, 0, NULL);
    assert_refused(m, 25, 1, 0, "a prompt of 25 tokens exceeds the model's 24 positions");
    assert_refused(m, 1, 24, 0, "24 new tokens exceed the model's 24 positions");
    assert_refused(m, 1, 1, 61, "begins with token 61, which is outside the model's vocabulary of 61");
    assert_refused(m, 1, 1, -1, "begins with token -1");
    test_model_free(m);
    m = test_model_new(setup_new(ORIGINAL)); /* relative positions have no limit */
    assert_refused(m, 40, 40, 0, NULL);
    test_model_free(m);
}
