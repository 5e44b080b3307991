/* Tests beam search. tests/functional/test_generate_t5.py compares texts with those of transformers. */
#include <math.h>

#include "unit/err.h"
#include "unit/model_helper.h"

#include "infer/beam.h"

enum { VOCAB = 3, END = 2, PROMPT = 62, NEW = 4, TEXTS = 81 /* VOCAB to the power of NEW */, CHAIN = 8 };

typedef struct Best {
    int32_t tokens[NEW];
    int64_t n;
    double score;
} Best;

/* log p of each continuation of the prompt, from one forward without a cache. */
static double continuation(TestModel *m, const int32_t *tokens, int64_t n, int32_t next) {
    Ids *x = ids_new(m, 1, n, 1);
    for (int64_t i = 0; i < n; i++) ((int64_t *)x->tokens.data)[i] = tokens[i];
    tape_begin(m->tape, &(MicrobatchContext){.recording = false});
    const Tensor *y = model_forward(m->tape, m->model, &x->feed);
    return sampling_logprob((const double *)y->data + (n - 1) * y->dim[2], VOCAB, next);
}

/* Scores all texts that begin with these n tokens, `fresh` of which are new. */
static void score_all(TestModel *m, int32_t *tokens, int64_t fresh, double sum, double penalty, Best *best) {
    for (int32_t next = 0; next < VOCAB; next++) {
        const double total = sum + continuation(m, tokens, PROMPT + fresh, next),
                     score = total / pow((double)(fresh + 1), penalty);
        tokens[PROMPT + fresh] = next;
        if (next != END && fresh + 1 < NEW) {
            score_all(m, tokens, fresh + 1, total, penalty, best);
        } else if (score > best->score) {
            best->score = score, best->n = fresh + (next != END);
            memcpy(best->tokens, tokens + PROMPT, sizeof best->tokens);
        }
    }
}

/* If no text is dropped, the search finds the best text of all. Texts are copied at the end of a page of 64 rows. */
TEST(a_wide_search_finds_the_best_text) {
    static const char *const WORDS[] = {
        "--position-embedding-type rope",
        "--multi-latent-attention --kv-lora-rank 8 "
        "--qk-head-dim 6 --qk-pos-emb-head-dim 4 --v-head-dim 5 --cache-mla-latents "
        "--position-embedding-type rope"};
    static const double PENALTIES[] = {0, 1, 3};
    static const int64_t ENDS[] = {END};
    for (size_t w = 0; w < sizeof WORDS / sizeof *WORDS; w++) {
        TestModel *m = test_model_new(setup_new("--num-layers 2 --hidden-size 24 --num-attention-heads 4 "
                                                "--max-position-embeddings 70 --vocab-size 3 --fp64 "
                                                "--init-method-std 0.3 %s",
                                                WORDS[w]));
        int32_t tokens[PROMPT + NEW];
        for (int i = 0; i < PROMPT; i++) tokens[i] = (int32_t)(philox_u32(5, 1, (uint64_t)i) % VOCAB);
        for (size_t p = 0; p < 3; p++) {
            const Prompt prompts[] = {{tokens, PROMPT}, {tokens + 1, 3}};
            const GenerateOptions o = {.max_new_tokens = NEW, .ends = ENDS, .n_ends = 1};
            const BeamOptions beams = {TEXTS, PENALTIES[p]};
            Best best = {.score = -INFINITY};
            Generated out[2];
            score_all(m, tokens, 0, 0, PENALTIES[p], &best);
            assert_ok(beam_search(m->model, &m->run, prompts, 2, &o, &beams, out));
            assert_int_equal(out[0].n, PROMPT + best.n);
            assert_int_equal(out[0].n_prompt, PROMPT);
            assert_memory_equal(out[0].tokens + PROMPT, best.tokens, (size_t)best.n * sizeof *best.tokens);
            for (int64_t i = 0; i + 1 < out[0].n; i++) {
                const double want = continuation(m, out[0].tokens, i + 1, out[0].tokens[i + 1]);
                assert_true(fabs(out[0].logprobs[i] - want) < 1e-12);
            }
            generated_free(&out[0]), generated_free(&out[1]);
        }
        test_model_free(m);
    }
}

/* If texts are equally likely, those that continue the first text with the lowest tokens are kept. */
TEST(equally_likely_texts_are_in_order) {
    static const int32_t PROMPTED[] = {1}, FIRST[NEW] = {0};
    TestModel *m = test_model_new(setup_new("--num-layers 1 --hidden-size 8 --num-attention-heads 2 "
                                            "--max-position-embeddings 20 --vocab-size 3 --fp64"));
    const Registry *r = m->model->registry;
    for (int i = 0; i < r->n; i++) memset(r->params[i]->value.data, 0, tensor_bytes(&r->params[i]->value));
    const Prompt prompt = {PROMPTED, 1};
    const GenerateOptions o = {.max_new_tokens = NEW};
    Generated out;
    assert_ok(beam_search(m->model, &m->run, &prompt, 1, &o, &(BeamOptions){2, 1}, &out));
    assert_int_equal(out.n, 1 + NEW);
    assert_memory_equal(out.tokens + 1, FIRST, sizeof FIRST);
    generated_free(&out);
    test_model_free(m);
}

/* Makes the model a Markov chain: logit[t][u] is the logit of token u after token t. Its layers add nothing. */
static void set_chain(TestModel *m, const double logit[CHAIN][CHAIN]) {
    const Registry *r = m->model->registry;
    for (int i = 0; i < r->n; i++) memset(r->params[i]->value.data, 0, tensor_bytes(&r->params[i]->value));
    double *embedding = registry_find(r, "embedding.word_embeddings.weight")->value.data,
           *output = registry_find(r, "output_layer.weight")->value.data,
           *gain = registry_find(r, "decoder.final_layernorm.weight")->value.data;
    for (int t = 0; t < CHAIN; t++) {
        embedding[2 * CHAIN * t + t] = 1,
                                  embedding[2 * CHAIN * t + CHAIN + t] = -1; /* mean 0, variance 1 / CHAIN */
        gain[t] = 1 / sqrt(CHAIN);
        for (int u = 0; u < CHAIN; u++) output[2 * CHAIN * u + t] = logit[t][u];
    }
}

/* The likeliest tokens after token 0 are an end token, token 1 and another end token. The second end token is not among
 * the two likeliest results, so only one text has ended, and the search continues, although the open texts then have
 * worse scores. Tokens 4 to 7 repeat forever, and a long text has the best score. */
TEST(an_end_beyond_the_width_does_not_end_the_search) {
    static const int64_t ENDS[] = {2, 3};
    static const int32_t PROMPTED[] = {0}, WANT[] = {1, 4, 4, 4, 4, 4};
    enum { LENGTH = sizeof WANT / sizeof *WANT };
    double logit[CHAIN][CHAIN];
    for (int t = 0; t < CHAIN; t++)
        for (int u = 0; u < CHAIN; u++) logit[t][u] = t == 1 && u >= 4 ? 0 : t >= 4 && t == u ? 0 : -20;
    logit[0][2] = 0, logit[0][1] = -0.05, logit[0][3] = -0.1;
    TestModel *m = test_model_new(setup_new("--num-layers 1 --hidden-size 16 --num-attention-heads 2 "
                                            "--position-embedding-type none --max-position-embeddings 20 "
                                            "--untie-embeddings-and-output-weights --vocab-size 8 --fp64"));
    set_chain(m, (const double(*)[CHAIN])logit);
    const GenerateOptions o = {.max_new_tokens = LENGTH, .ends = ENDS, .n_ends = 2};
    Generated out;
    assert_ok(beam_search(m->model, &m->run, &(Prompt){PROMPTED, 1}, 1, &o, &(BeamOptions){2, 1}, &out));
    assert_int_equal(out.n, 1 + LENGTH);
    assert_memory_equal(out.tokens + 1, WANT, sizeof WANT);
    generated_free(&out);
    test_model_free(m);
}
