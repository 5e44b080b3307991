/* Tests which drafts are kept. engine_alone.h tests that drafts do not change results. */
#include "unit/err.h"
#include "unit/model_helper.h"

#include "infer/engine.h"

#define SIZES                                                                                                \
    "--num-layers 2 --hidden-size 24 --num-attention-heads 2 --max-position-embeddings 120 --seq-length "    \
    "120 "                                                                                                   \
    "--vocab-size 2 --position-embedding-type rope --init-method-std 0.8 "                                   \
    "--untie-embeddings-and-output-weights --fp64 "
enum { PROMPT = 70, NEW = 40, PAGE = 64 };

static void collect(void *arg, const EngineEvent *e) {
    if (e->kind == EVENT_TOKEN) ((int32_t *)arg)[e->index] = e->token;
}

static EngineCounts difference(EngineCounts a, EngineCounts b) {
    return (EngineCounts){
        .passes = a.passes - b.passes, .drafts = a.drafts - b.drafts, .accepted = a.accepted - b.accepted};
}

/* Runs a request alone, and returns its counts. */
static EngineCounts run(Engine *e, const Request *r, int32_t *tokens) {
    const EngineCounts before = engine_counts(e);
    assert_ok(engine_add(e, r));
    while (engine_step(e, collect, tokens)) continue;
    return difference(engine_counts(e), before);
}

static Engine *open_engine(const TestModel *m, Speculation speculation, int64_t tokens) {
    const EngineLimits limits = {.page = PAGE,
                                 .pages = 2, /* so each text takes the pages of the one before */
                                 .requests = 1,
                                 .tokens = tokens,
                                 .shares_prefixes = true,
                                 .speculation = speculation};
    Engine *e;
    assert_ok(engine_new(m->model, &m->run, &limits, &e));
    return e;
}

/* Generates three times in one engine, and returns the counts of the third time, which must be those of the second. */
static EngineCounts generate(const TestModel *m, Speculation speculation, double temperature,
                             int32_t *tokens) {
    int32_t other[PROMPT + NEW] = {0};
    Engine *e = open_engine(m, speculation, PROMPT + NEW);
    for (int i = 0; i < PROMPT; i++) tokens[i] = (int32_t)(philox_u32(3, 1, (uint64_t)i) % 2);
    Request r = {
        .prompt = other, .n = PROMPT, .sampling.temperature = temperature, .seed = 9, .max_new_tokens = NEW};
    run(e, &r, other);
    r.prompt = tokens, r.max_new_tokens = 1; /* computes a page of the prompt, but no drafts */
    assert_int_equal(run(e, &r, tokens).drafts, 0);
    r.max_new_tokens = NEW;
    const EngineCounts second = run(e, &r, tokens), third = run(e, &r, tokens);
    assert_int_equal(engine_counts(e).shared, 2 * PAGE);
    assert_memory_equal(&second, &third, sizeof third);
    engine_free(e);
    return third;
}

/* If the model drafts for itself with the same random number, the draft equals the token. */
TEST(all_drafts_of_the_same_model_are_kept) {
    static const double TEMPERATURES[] = {0, 0.7, 1.3};
    TestModel *m = test_model_new(setup_new(SIZES));
    int32_t tokens[PROMPT + NEW];
    for (int k = 1; k <= 4; k++)
        for (size_t i = 0; i < 3; i++) {
            const Speculation self = {k, m->model, &m->run};
            const EngineCounts c = generate(m, self, TEMPERATURES[i], tokens);
            assert_int_equal(c.accepted, c.drafts);
            /* the first token has no draft */
            assert_int_equal(c.passes, 1 + (NEW - 1 + k) / (k + 1));
            assert_int_equal(c.drafts, NEW - c.passes);
        }
    test_model_free(m);
}

/* If all probabilities are equal, a token depends only on its random number. */
TEST(drafts_of_layers_have_the_random_numbers_of_their_positions) {
    TestModel *m = test_model_new(setup_new(SIZES "--mtp-num-layers 3"));
    const Param *output = registry_find(m->model->registry, "output_layer.weight");
    int32_t tokens[PROMPT + NEW];
    memset(output->value.data, 0, (size_t)output->count * sizeof(double));
    const EngineCounts c = generate(m, (Speculation){.tokens = 3}, 1, tokens);
    assert_int_equal(c.accepted, c.drafts);
    assert_true(c.drafts > 0);
    test_model_free(m);
}

TEST(a_draft_model_with_few_positions_ends_earlier) {
    enum { POSITIONS = 90 };
    TestModel *m = test_model_new(setup_new(SIZES)), *draft = test_model_new(setup_new(SIZES));
    int32_t tokens[PROMPT + NEW];
    draft->model->plan.limit = POSITIONS;
    const EngineCounts c =
        generate(m, (Speculation){4, draft->model, &m->run}, 0, tokens); /* 71, 76, 81, 86, 90, 91, ... */
    assert_int_equal(c.accepted, 3 * 4 + 3);
    assert_int_equal(c.passes, 1 + 4 + PROMPT + NEW - POSITIONS);
    test_model_free(m), test_model_free(draft);
}

TEST(drafts_read_a_preempted_request_again) {
    TestModel *m = test_model_new(setup_new(SIZES));
    int32_t tokens[2][PAGE] = {{0}}, ignored[PAGE + NEW];
    const EngineLimits limits = {
        .page = PAGE, .pages = 3, .requests = 2, .tokens = 2 * PAGE, .speculation = {2, m->model, &m->run}};
    Engine *e;
    assert_ok(engine_new(m->model, &m->run, &limits, &e));
    for (int i = 0; i < PAGE; i++) tokens[1][i] = 1;
    for (int64_t id = 0; id < 2; id++)
        assert_ok(engine_add(
            e, &(Request){.id = id, .prompt = tokens[id], .n = PAGE - 9 + id, .max_new_tokens = NEW}));
    while (engine_step(e, collect, ignored)) continue;
    const EngineCounts c = engine_counts(e);
    assert_int_equal(c.preemptions, 1);
    assert_int_equal(c.accepted, c.drafts);
    engine_free(e);
    test_model_free(m);
}

/* correct[k-1][i]: whether the head of depth k predicts token i + k + 1 from tokens [0, i + k], in a forward of
 * training. */
static void predict(TestModel *m, const int32_t *tokens, int layers, bool correct[][PROMPT + NEW]) {
    enum { N = PROMPT + NEW };
    static int64_t ahead[N * MTP_LAYERS], labels_ahead[N * MTP_LAYERS];
    Ids *x = ids_new(m, 1, N, 1);
    for (int64_t i = 0; i < N; i++) {
        ((int64_t *)x->tokens.data)[i] = tokens[i];
        for (int64_t k = 1; k <= layers; k++) {
            ahead[i * layers + k - 1] = i + k < N ? tokens[i + k] : 0;
            labels_ahead[i * layers + k - 1] = i + k + 1 < N ? tokens[i + k + 1] : 0;
        }
    }
    const int64_t dim[] = {1, N, layers};
    Tensor a = tensor_make(ahead, I64, 3, dim), l = tensor_make(labels_ahead, I64, 3, dim);
    x->labelled.tokens_ahead = &a, x->labelled.labels_ahead = &l;
    tape_begin(m->tape, &(MicrobatchContext){.recording = true});
    const Flow out = model_stage(m->tape, m->model, 0, &x->labelled, (Flow){{NULL}});
    for (int k = 0; k < layers; k++) {
        const Tensor *c = out.at[m->model->plan.n_losses + k];
        double row[N];
        dtype_convert(row, F64, c->data, (DType)c->dtype, N);
        for (int i = 0; i < N; i++) correct[k][i] = row[i] != 0;
    }
}

/* The counts of a text whose first n tokens are known, with drafts from then on. */
static EngineCounts counts_of(bool correct[][PROMPT + NEW], int64_t depth, int64_t n) {
    EngineCounts c = {0};
    for (; n < PROMPT + NEW; c.passes++) {
        const int64_t most = PROMPT + NEW - n - 1, k = depth < most ? depth : most;
        int64_t right = 0;
        while (right < k && correct[right][n - 2]) right++;
        c.drafts += k, c.accepted += right, n += 1 + right;
    }
    return c;
}

/* The drafts of layers that predict further tokens are the predictions of training. */
TEST(kept_drafts_are_the_right_predictions_of_training) {
    static const char *const WORDS[] = {
        SIZES "--mtp-num-layers 3 ",
        SIZES "--mtp-num-layers 3 --mtp-use-repeated-layer --group-query-attention --num-query-groups 1 "
              "--normalization RMSNorm --swiglu ",
    };
    static bool correct[MTP_LAYERS][PROMPT + NEW];
    int32_t tokens[PROMPT + NEW];
    for (size_t w = 0; w < sizeof WORDS / sizeof *WORDS; w++) {
        TestModel *m = test_model_new(setup_new("%s", WORDS[w]));
        for (int depth = 1; depth <= 3; depth++) {
            const EngineCounts c = generate(m, (Speculation){.tokens = depth}, 0, tokens);
            predict(m, tokens, 3, correct);
            const EngineCounts want = counts_of(correct, depth, PROMPT + 1);
            assert_int_equal(c.passes, 1 + want.passes);
            assert_int_equal(c.drafts, want.drafts);
            assert_int_equal(c.accepted, want.accepted);
            assert_true(c.accepted > 0 && c.accepted < c.drafts);
        }
        test_model_free(m);
    }
}

/* The model reads the prompt in three passes. Its draft layers then read the prompt, while the model generates two
 * tokens. */
TEST(drafts_read_a_long_prompt_in_parts) {
    static bool correct[MTP_LAYERS][PROMPT + NEW], all[MTP_LAYERS][PROMPT + NEW];
    TestModel *m = test_model_new(setup_new(SIZES "--mtp-num-layers 3 "));
    int32_t tokens[PROMPT + NEW] = {0};
    const Request r = {.prompt = tokens, .n = PROMPT, .max_new_tokens = NEW};
    memset(all, true, sizeof all);
    for (int by_itself = 0; by_itself < 2; by_itself++) {
        const Speculation ahead = {.tokens = 3}, self = {3, m->model, &m->run};
        Engine *e = open_engine(m, by_itself ? self : ahead, 30);
        const EngineCounts c = run(e, &r, tokens);
        predict(m, tokens, 3, correct);
        const EngineCounts want = counts_of(by_itself ? all : correct, 3, PROMPT + 1 + 2);
        assert_int_equal(c.passes, 3 + 2 + want.passes);
        assert_int_equal(c.drafts, want.drafts);
        assert_int_equal(c.accepted, want.accepted);
        engine_free(e);
    }
    test_model_free(m);
}
