/* Tests for faults that were reported in other engines. The comments name the issues. This table says where each of
 * the 25 reports is tested: here, in another file of this folder, or in a functional test.
 *
 *    1  vLLM 5898, 9567, 966: a text at temperature 0 changes with the batch    engine
 *    2  vLLM 47069: batch-invariant attention varies                            a_thousand_runs_have_one_result; cuda_engine
 *    3  vLLM 16832, Megatron-LM 2584: preemption or suspension mixes texts      engine; fleet
 *    4  vLLM 29071, 3032, 37746: log-probabilities of a preempted prompt        engine, which bounds the number of passes
 *    5  vLLM 8268, 3251, 5344: log-probabilities of a prompt that is shared     engine
 *    6  vLLM 4761, kvcached 362: a page is reused with old rows                 engine (guarded_passes.c)
 *    7  Megatron-LM 4158: names of pages with equal hashes                      prompts_with_equal_hashes_share_nothing
 *    8  Megatron-LM 6047, 5995, 5822: counts of the users of pages              engine: a_page_has_one_content
 *    9  Megatron-LM 5950: tokens that fill a pass reach pages in use            layouts (guarded_passes.c)
 *   10  vLLM 21310, 6449, 11953: seeds that are ignored or depend on ranks      generate: draws_depend_on_...; layouts
 *   11  vLLM 16449: n = 2 differs from two requests                             functional/serve_fields
 *   12  vLLM 6521, Megatron-LM 5167: a prompt without new tokens                a_prompt_without_new_tokens_has_...
 *   13  vLLM 16529, 54195, SGLang 7670: ids outside the vocabulary              generate: what_cannot_be_generated_...
 *   14  vLLM 5846: log-probabilities that are off by one                        generate: cached_greedy_equals_...
 *   15  vLLM 34875, 27300: tokens that are parts of characters                  functional/serve_fields
 *   16  vLLM 19379: text_offset of such tokens                                  functional/serve_fields
 *   17  SGLang 11446, llama.cpp 9867: stop strings in a stream                  unit/server/text
 *   18  lucebox 641: characters that are divided over parts of a stream         unit/server/text
 *   19  llama.cpp 13262: a client that has left                                 an_abort_returns_all_pages; soak_serve.py
 *   20  vLLM 22545, 29928: gauges after aborts                                  the same
 *   21  llama.cpp 3817, 5246, vLLM 13067: prompts at the limit of the context   lengths_at_the_limit_are_...
 *   22  llama.cpp 18237, 6348: SIGTERM in a long prompt                         functional/serve_load
 *   23  SGLang 1764: logits that are not finite                                 logits_that_are_not_finite_end_...
 *   24  vLLM 5313, 29216, llama.cpp 25618: speculation that changes texts       engine; speculation
 *   25  Megatron-LM 6025, vLLM 8625: a lost engine; usage in streams            functional/serve_ranks, serve */
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

/* The tokens and log-probabilities of requests 0 and 1. */
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

static void see_first(void *arg, const EngineEvent *e) {
    if (!e->id) see(arg, e);
}

static Request request_of(const Case *c, int64_t id, int64_t n, int64_t fresh) {
    return (Request){.id = id, .prompt = c->prompt[0], .n = n, .max_new_tokens = fresh, .logprobs = true};
}

static void assert_empty(const Engine *e) {
    const EngineCounts counts = engine_counts(e);
    assert_int_equal(counts.waiting + counts.running, 0);
    assert_int_equal(counts.free_pages, PAGES);
}

/* SGLang 1764: only the request whose logits are not finite ends. Here, requests that reach position 40 have such
 * logits. */
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
 * end within STEPS steps: the second one waits, and both read their prompts in parts and generate. */
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

/* A request that can never fit in the pool is refused with a message that states the numbers, and all others are
 * computed. */
TEST(a_request_that_can_never_fit_is_refused) {
    static const struct {
        int64_t n, fresh, needs; /* needs: pages; 0: it fits in the 2 pages */
    } ROWS[] = {{2 * PAGE, 0, 0}, {2 * PAGE, 1, 3}, {PAGE, PAGE, 0}, {PAGE, PAGE + 1, 3}, {1, 3 * PAGE, 4}};
    static Case c;
    static int32_t prompt[2 * PAGE];
    case_open(&c);
    Engine *e = engine_open(c.m, (EngineLimits){.page = PAGE, .pages = 2, .requests = 2, .tokens = 16});
    int64_t events[EVENT_END + 1] = {0}, fit = 0;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char says[200];
        snprintf(says, sizeof says,
                 "a request of %d prompt tokens and %d new tokens needs %d pages of 64 tokens, but the KV "
                 "cache has only 2",
                 (int)ROWS[i].n, (int)ROWS[i].fresh, (int)ROWS[i].needs);
        const Err refused = engine_add(
            e,
            &(Request){.id = (int64_t)i, .prompt = prompt, .n = ROWS[i].n, .max_new_tokens = ROWS[i].fresh});
        assert_int_equal(refused.code, ROWS[i].needs ? ERR_USER : ERR_NONE);
        if (ROWS[i].needs && !strstr(refused.msg, says))
            fail_msg("'%s' does not say '%s'", refused.msg, says);
        fit += !ROWS[i].needs;
    }
    while (engine_step(e, count, events)) continue;
    assert_int_equal(events[EVENT_END], fit);
    engine_free(e);
    case_free(&c);
}

/* ---- pages ---- */

static _Thread_local bool collides;
uint64_t __real_hash64(const void *bytes, size_t n, uint64_t seed);
uint64_t __wrap_hash64(const void *bytes, size_t n, uint64_t seed);
uint64_t __wrap_hash64(const void *bytes, size_t n, uint64_t seed) {
    return collides ? 1 : __real_hash64(bytes, n, seed);
}

/* Megatron-LM 4158: pages of another prompt, pages with another salt, and pages after another page have the same
 * hash. */
TEST(prompts_with_equal_hashes_share_nothing) {
    enum { RUNS = 4, N = 2 * PAGE + 1 };
    static const struct {
        int32_t first, second;
        int64_t salt; /* the length of "s" */
        int64_t shared;
    } ROWS[RUNS] = {{4, 5, 0, 0}, {6, 5, 0, 0}, {4, 5, 1, 0}, {4, 5, 0, 2 * PAGE}};
    static Case c;
    case_open(&c);
    collides = true;
    Engine *e = engine_open(
        c.m,
        (EngineLimits){.page = PAGE, .pages = PAGES, .requests = 1, .tokens = 16, .shares_prefixes = true});
    int64_t before = 0;
    for (int i = 0; i < RUNS; i++) {
        int32_t prompt[N];
        for (int k = 0; k < N; k++) prompt[k] = k < PAGE ? ROWS[i].first : ROWS[i].second;
        const Request r = {
            .prompt = prompt, .n = N, .max_new_tokens = 1, .salt = "s", .n_salt = ROWS[i].salt};
        int64_t events[EVENT_END + 1] = {0};
        assert_ok(engine_add(e, &r));
        while (engine_step(e, count, events)) continue;
        assert_int_equal(engine_counts(e).shared - before, ROWS[i].shared);
        before = engine_counts(e).shared;
    }
    engine_free(e);
    collides = false;
    case_free(&c);
}

/* vLLM 47069: one request, each time with other requests before it, with it and after it. */
TEST(a_thousand_runs_have_one_result) {
    enum { RUNS = 1000, NEIGHBOURS = 3, FRESH = 4 };
    static Case c;
    case_open(&c);
    Engine *e = engine_open(
        c.m,
        (EngineLimits){
            .page = PAGE, .pages = PAGES, .requests = NEIGHBOURS + 1, .tokens = 24, .shares_prefixes = true});
    double first[FRESH] = {0};
    for (uint64_t run = 0; run < RUNS; run++) {
        Dice d = {5, run, 0};
        Seen seen = {0};
        const int64_t place = roll(&d, NEIGHBOURS + 1);
        for (int64_t i = 0; i <= NEIGHBOURS; i++) {
            const bool own = i == place;
            Request r = request_of(&c, own ? 0 : 1, own ? 9 : 1 + roll(&d, 20), own ? FRESH : roll(&d, 4));
            if (!own) r.id = 1 + i, r.prompt = c.prompt[1 + roll(&d, 3)], r.logprobs = false;
            assert_ok(engine_add(e, &r));
        }
        while (engine_step(e, see_first, &seen)) continue;
        if (!run) memcpy(first, seen.logprob[0], sizeof first);
        assert_int_equal(seen.n[0], FRESH);
        assert_memory_equal(seen.logprob[0], first, sizeof first);
    }
    assert_empty(e);
    engine_free(e);
    case_free(&c);
}
