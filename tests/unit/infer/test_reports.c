/* Tests of faults that were reported in other engines. The numbers in comments are those of the issues. Other tests
 * cover more of these reports:
 *
 *   vLLM 5898, 9567 and 16832, Megatron-LM 2584: texts that change with the   engine: results_are_bitwise_those_of_...
 *     batch or with preemption
 *   vLLM 29071 and 8268: prompt log-probabilities with preemption or a        the same
 *     shared prefix
 *   vLLM 4761: a page that is reused has old rows                             the same
 *   Megatron-LM 6047, 5995 and 5822: counts of the users of pages             engine: a_page_has_one_content
 *   vLLM 21310, 6449 and 11953: seeds that are ignored or depend on ranks     generate: draws_depend_on_...; layouts
 *   vLLM 16529: ids outside the vocabulary                                    generate: what_cannot_be_generated_...
 *   vLLM 5846: log-probabilities that are off by one                          generate: cached_greedy_equals_...
 *   vLLM 5313 and 29216: speculation that changes tokens                      speculation */
#include "unit/infer/engine_alone.h"

#include <math.h>

enum { PAGES = 8 };

static Engine *engine_of(const Case *c) {
    return engine_open(c->m, (EngineLimits){.page = PAGE, .pages = PAGES, .requests = 4, .tokens = 16});
}

static void case_open(Case *c) {
    memset(c, 0, sizeof *c);
    case_init(c, STYLES[0], device_cpu(1));
}

/* The tokens and log-probabilities of the requests 0 and 1. */
typedef struct Seen {
    double logprob[2][LONGEST + NEW];
    int64_t n[2], ended[2];
    Finish finish[2];
} Seen;

static void see(void *arg, const EngineEvent *e) {
    Seen *s = arg;
    if (e->kind == EVENT_END)
        s->ended[e->id]++, s->finish[e->id] = e->finish;
    else
        s->logprob[e->id][s->n[e->id]++] = e->logprob + e->token;
}

static Request request_of(const Case *c, int64_t id, int64_t n, int64_t fresh) {
    return (Request){.id = id, .prompt = c->prompt[0], .n = n, .max_new_tokens = fresh, .logprobs = true};
}

static void assert_empty(const Engine *e) {
    const EngineCounts counts = engine_counts(e);
    assert_int_equal(counts.waiting + counts.running, 0);
    assert_int_equal(counts.free_pages, PAGES);
}

/* SGLang 1764: only the request whose logits are not finite ends. Here, these are all that reach position 40. */
TEST(logits_that_are_not_finite_end_only_their_request) {
    static Case c;
    static Seen want, got;
    case_open(&c);
    const Request healthy = request_of(&c, 0, 20, 15), ill = request_of(&c, 1, 35, 20);
    for (int with = 0; with < 2; with++) {
        Engine *e = engine_of(&c);
        if (with) {
            double *table =
                registry_find(c.m->model->registry, "embedding.position_embeddings.weight")->value.data;
            table[40 * 24] = NAN;
            assert_ok(engine_add(e, &ill));
        }
        assert_ok(engine_add(e, &healthy));
        while (engine_step(e, see, with ? &got : &want)) continue;
        assert_empty(e);
        engine_free(e);
    }
    assert_memory_equal(got.logprob[0], want.logprob[0], sizeof want.logprob[0]);
    assert_int_equal(got.finish[0], FINISH_LENGTH);
    assert_int_equal(got.finish[1], FINISH_NAN);
    assert_int_equal(got.n[1], 41 - 35); /* those that the positions before 40 predict */
    case_free(&c);
}

/* vLLM 6521, Megatron-LM 5167: the log-probabilities of a prompt do not need a new token. */
TEST(a_prompt_without_new_tokens_has_log_probabilities) {
    static Case c;
    static Seen seen[2];
    enum { N = 30 };
    case_open(&c);
    for (int64_t fresh = 0; fresh < 2; fresh++) {
        Engine *e = engine_of(&c);
        Request r = request_of(&c, 0, N, fresh);
        r.prompt_logprobs = true;
        assert_ok(engine_add(e, &r));
        while (engine_step(e, see, &seen[fresh])) continue;
        assert_int_equal(seen[fresh].n[0], N - 1 + fresh);
        assert_int_equal(seen[fresh].ended[0], 1);
        assert_empty(e);
        engine_free(e);
    }
    assert_memory_equal(seen[0].logprob[0], seen[1].logprob[0], (N - 1) * sizeof(double));
    case_free(&c);
}

/* llama.cpp 13262, vLLM 22545: an abort at any time returns all pages in one step, and the counts are 0. The requests
 * end within STEPS steps: the second waits, both read their prompts in parts, and generate. */
TEST(an_abort_returns_all_pages) {
    enum { STEPS = 25 };
    static Case c;
    static Seen seen;
    case_open(&c);
    for (int64_t at = 0; at <= STEPS; at++) {
        Engine *e = engine_of(&c);
        memset(&seen, 0, sizeof seen);
        const Request first = request_of(&c, 0, 90, 10), second = request_of(&c, 1, 70, 5);
        assert_ok(engine_add(e, &first));
        assert_ok(engine_add(e, &second));
        for (int64_t i = 0; i < at; i++) engine_step(e, see, &seen);
        for (int64_t id = 0; id < 2; id++) assert_int_equal(engine_abort(e, id), !seen.ended[id]);
        const int64_t tokens = seen.n[0] + seen.n[1];
        assert_false(engine_step(e, see, &seen));
        assert_int_equal(seen.n[0] + seen.n[1], tokens);
        assert_empty(e);
        engine_free(e);
    }
    assert_true(seen.ended[0] && seen.ended[1]);
    case_free(&c);
}

static void count(void *arg, const EngineEvent *e) { ((int64_t *)arg)[e->kind]++; }

/* llama.cpp 3817 and 5246, vLLM 13067: prompts at the limit of the context. */
TEST(lengths_at_the_limit_are_computed_or_refused) {
    static Case c;
    enum { LIMIT = 200 };
    static const struct {
        int64_t n, fresh;
        bool fits;
    } ROWS[] = {{0, 1, false},     {1, 0, true},         {LIMIT - 1, 1, true},  {LIMIT - 1, 2, false},
                {LIMIT, 0, true},  {LIMIT, 1, false},    {LIMIT + 1, 0, false}, {1, LIMIT - 1, true},
                {1, LIMIT, false}, {1, INT64_MAX, false}};
    static int32_t prompt[LIMIT + 1];
    case_open(&c);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        Engine *e = engine_of(&c);
        Request r = request_of(&c, 0, ROWS[i].n, ROWS[i].fresh);
        r.prompt = prompt, r.logprobs = false;
        const Err refused = engine_add(e, &r);
        assert_int_equal(refused.code, ROWS[i].fits ? ERR_NONE : ERR_USER);
        int64_t events[EVENT_END + 1] = {0};
        while (engine_step(e, count, events)) continue;
        assert_int_equal(events[EVENT_TOKEN], ROWS[i].fits ? ROWS[i].fresh : 0);
        assert_int_equal(events[EVENT_END], ROWS[i].fits);
        assert_empty(e);
        engine_free(e);
    }
    case_free(&c);
}
