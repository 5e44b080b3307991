/* Tests the engine on the CPU (engine_alone.h), and checks that pages are neither lost nor shared. */
#include "unit/infer/engine_alone.h"

#include "base/clock.h"
#include "infer/page_pool.h"
#include "run/model_run.h"

static Device *cpu(void) { return device_cpu(2); }

TEST(results_are_bitwise_those_of_a_request_alone) { assert_results_are_those_of_a_request_alone(cpu, 500); }

TEST(requests_share_pages_only_with_their_salt) {
    static Case c;
    static const char *const SALTS[] = {"", "a", "a", "", "b", "ab"};
    static const int64_t SHARED[] = {0, 0, PAGE, 2 * PAGE, 2 * PAGE, 2 * PAGE};
    case_init(&c, STYLES[0], cpu());
    Engine *e = engine_open(
        c.m,
        (EngineLimits){.page = PAGE, .pages = 10, .requests = 1, .tokens = LONGEST, .shares_prefixes = true});
    Request r = c.request[0];
    r.n = PAGE + 1, r.max_new_tokens = 1, r.prompt_logprobs = false;
    for (size_t i = 0; i < sizeof SALTS / sizeof *SALTS; i++) {
        r.salt = SALTS[i], r.n_salt = (int64_t)strlen(SALTS[i]);
        assert_ok(engine_add(e, &r));
        while (engine_step(e, take, c.got)) continue;
        assert_int_equal(engine_counts(e).shared, SHARED[i]);
        c.got[0].ended = c.got[0].n = 0;
    }
    engine_free(e);
    case_free(&c);
}

static void take_last(void *arg, const EngineEvent *e) { ((EngineEvent *)arg)[e->id] = *e; }

/* The second request waits until the first one has ended, and its first page is in the pool. Starting it again does not
 * change these facts. */
TEST(events_have_the_time_in_the_queue) {
    static Case c;
    EngineEvent last[2];
    case_init(&c, STYLES[0], cpu());
    Engine *e = engine_open(
        c.m,
        (EngineLimits){.page = PAGE, .pages = 10, .requests = 1, .tokens = LONGEST, .shares_prefixes = true});
    Request r = c.request[0];
    r.n = PAGE + 5, r.max_new_tokens = 4, r.prompt_logprobs = false, r.n_ends = 0;
    const int64_t before = clock_ns();
    for (r.id = 0; r.id < 2; r.id++) assert_ok(engine_add(e, &r));
    const int64_t added = clock_ns();
    assert_true(engine_step(e, take_last, last)); /* begins with the first request */
    const int64_t stepped = clock_ns();
    while (engine_counts(e).waiting + engine_counts(e).running == 2) engine_step(e, take_last, last);
    const int64_t ran = clock_ns() - added;
    assert_true(engine_step(e, take_last, last)); /* begins with the second request */
    const int64_t waited = last[1].waited_ns;
    engine_forget(e); /* the request begins again, without pages */
    while (engine_step(e, take_last, last)) continue;
    assert_in_range(last[0].waited_ns, 0, stepped - before);
    assert_in_range(waited, ran, clock_ns() - before);
    assert_int_equal(last[1].waited_ns, waited);
    assert_int_equal(last[0].cached, 0);
    assert_int_equal(last[1].cached, PAGE);
    engine_free(e);
    case_free(&c);
}

/* A draw depends on the position, so a prompt that already contains some of the new tokens is continued with the
 * rest. */
TEST(a_longer_prompt_has_the_rest_of_the_text) {
    enum { N = 20, FRESH = 12 };
    static Case c;
    case_init(&c, STYLES[0], cpu());
    int32_t prompt[N + FRESH];
    memcpy(prompt, c.prompt[0], sizeof prompt);
    for (int64_t cut = 0; cut < FRESH; cut++) {
        Engine *e = engine_open(c.m, (EngineLimits){.page = PAGE, .pages = 1, .requests = 1, .tokens = PAGE});
        Result *r = &c.got[cut];
        const Request request = {.id = 100 - cut,
                                 .prompt = prompt,
                                 .n = N + cut,
                                 .sampling.temperature = 1.3,
                                 .seed = 3,
                                 .max_new_tokens = FRESH - cut};
        assert_ok(engine_add(e, &request));
        while (engine_step(e, take, c.got)) continue;
        if (!cut) memcpy(prompt + N, r->tokens + N, FRESH * sizeof *prompt);
        assert_memory_equal(prompt + N + cut, r->tokens + N + cut, (size_t)(FRESH - cut) * sizeof *prompt);
        engine_free(e);
    }
    case_free(&c);
}

/* A pass chooses a token, and one more for each kept draft. An end token is chosen, and is not a kept draft. */
TEST(a_kept_draft_is_a_token_of_the_text) {
    enum { N = 10, FRESH = 30, VOCAB = 31 };
    static Case c;
    int64_t ended = 0, kept = 0, empty = 0;
    case_init(&c, STYLES[0], cpu());
    for (int64_t end = 0; end < VOCAB; end++) {
        const Speculation self = {4, c.m->model, &c.m->run};
        Engine *e = engine_open(
            c.m,
            (EngineLimits){.page = PAGE, .pages = 1, .requests = 1, .tokens = PAGE, .speculation = self});
        const Request r = {
            .id = 100, .prompt = c.prompt[0], .n = N, .max_new_tokens = FRESH, .ends = &end, .n_ends = 1};
        c.got[0] = (Result){0};
        assert_ok(engine_add(e, &r));
        while (engine_step(e, take, c.got)) continue;
        const EngineCounts counts = engine_counts(e);
        const int64_t fresh = c.got[0].n ? c.got[0].n - N : 0;
        assert_int_equal(fresh + (fresh < FRESH), counts.passes + counts.accepted);
        ended += fresh < FRESH, kept += counts.accepted, empty += !fresh;
        engine_free(e);
    }
    assert_true(ended && kept);
    assert_int_equal(empty, 1); /* one token is the first */
    case_free(&c);
}

/* A page has rows of drafts only if drafts were computed after the page was allocated. Here, requests without drafts
 * name pages that requests with drafts had before, and others share these pages. The model drafts for itself, so all
 * drafts are kept. */
TEST(drafts_read_shared_pages_that_have_none) {
    enum { N = PAGE + 10, FRESH = 20, RUNS = 12 };
    static Case c;
    case_init(&c, STYLES[0], cpu());
    const Speculation self = {4, c.m->model, &c.m->run};
    Engine *e = engine_open(c.m, (EngineLimits){.page = PAGE,
                                                .pages = 2,
                                                .requests = 1,
                                                .tokens = N,
                                                .shares_prefixes = true,
                                                .speculation = self});
    for (int64_t run = 0; run < RUNS; run++) {
        int32_t prompt[N];
        for (int64_t k = 0; k < N; k++)
            prompt[k] = (int32_t)(philox_u32(4, (uint64_t)(run / 3), (uint64_t)k) % 31);
        const Request r = {.id = 100, .prompt = prompt, .n = N, .max_new_tokens = run % 3 ? FRESH : 1};
        c.got[0] = (Result){0};
        assert_ok(engine_add(e, &r));
        while (engine_step(e, take, c.got)) continue;
    }
    const EngineCounts counts = engine_counts(e);
    assert_int_equal(counts.shared, RUNS * 2 / 3 * PAGE);
    assert_true(counts.drafts > RUNS * FRESH / 3);
    assert_int_equal(counts.accepted, counts.drafts);
    engine_free(e);
    case_free(&c);
}

/* The pools take exactly as many bytes as the check before their allocation expects. */
TEST(pools_take_the_bytes_that_are_checked) {
    for (int k = 0; k < STYLE_COUNT; k++)
        for (uint64_t round = 0; round < 6; round++) {
            static Case c;
            Dice d = {9, round, 0};
            Sight kept;
            case_models(&c, STYLES[k], cpu());
            const EngineLimits limits = draw_limits(&c, &d, &kept);
            const size_t before = c.m->device->allocated;
            Engine *e = engine_open(c.m, limits);
            assert_true((double)(c.m->device->allocated - before) ==
                        engine_cache_bytes(c.m->model, &c.m->run, &limits));
            engine_free(e);
            assert_int_equal(c.m->device->allocated, before);
            case_free(&c);
        }
}

static void open_on_rank(void *arg, Comm *comm) {
    static const EngineLimits LIMITS = {.page = PAGE, .pages = 3, .requests = 1, .tokens = 1};
    const Setup *s = arg;
    Device *device = device_cpu(1);
    ModelRun r;
    Engine *e;
    model_run_new(&r, &s->config, comm, device, MODEL_TRAINS);
    const size_t before = device->allocated;
    assert_ok(engine_new(r.model, &r.context, &LIMITS, &e));
    /* keys and values of a layer in fp64; there are two layers */
    const size_t layer = 3 * PAGE * 2 * 24 * 8;
    assert_int_equal(device->allocated - before, 2 * layer / (size_t)comm_world(comm));
    engine_free(e);
    model_run_free(&r);
    device_free(device);
}

TEST(pipeline_ranks_have_pools_of_their_layers) {
    for (int ranks = 1; ranks <= 2; ranks++) {
        Setup *s = setup_new("%s --ranks %d --pipeline-model-parallel-size %d", STYLES[0], ranks, ranks);
        comm_threads(ranks, NULL, open_on_rank, s);
        setup_free(s);
    }
}

/* A model of the pool. A page has a number of users, and a name if its tokens were named. There are few different
 * tokens, so that pages are shared and names have equal hashes. The unused pages are listed in the order of their
 * reuse. */
enum { PAGES = 37, WIDTH = 2, OWNERS = 8 };
typedef struct PoolModel {
    int64_t page[OWNERS][PAGES], n[OWNERS]; /* the pages of each owner */
    int64_t users[PAGES], unused[PAGES], n_unused;
    uint64_t number[PAGES], before[PAGES]; /* number: 0 if the page has no name */
    int32_t tokens[PAGES][WIDTH];
    int64_t salt[PAGES];
    int64_t found, renamed, evicted, forgotten;
} PoolModel;

static void model_release(PoolModel *m, int64_t page) {
    assert_true(m->users[page] > 0);
    if (--m->users[page]) return;
    const bool first = !m->number[page]; /* its rows are of no use */
    memmove(m->unused + first, m->unused, (size_t)m->n_unused * sizeof *m->unused);
    m->unused[first ? 0 : m->n_unused] = page;
    m->n_unused++;
}

static void model_remove_unused(PoolModel *m, int64_t page) {
    int64_t at = 0;
    while (m->unused[at] != page) at++;
    memmove(m->unused + at, m->unused + at + 1, (size_t)(--m->n_unused - at) * sizeof *m->unused);
}

static void check_take(PoolModel *m, PagePool *pool, int who, int64_t count) {
    int64_t *own = m->page[who] + m->n[who];
    if (m->n[who] + count > PAGES) return;
    const bool fits = count <= m->n_unused;
    assert_int_equal(page_pool_take(pool, count, own), fits);
    for (int64_t i = 0; fits && i < count; i++) {
        assert_int_equal(own[i], m->unused[0]);
        model_remove_unused(m, own[i]);
        m->evicted += m->number[own[i]] > 0;
        m->users[own[i]] = 1, m->number[own[i]] = 0;
    }
    if (fits) m->n[who] += count;
}

static int64_t model_find(const PoolModel *m, const PageName *name) {
    for (int64_t k = 0; k < PAGES; k++)
        if (m->number[k] && m->before[k] == name->before && m->salt[k] == name->n_salt &&
            !memcmp(m->tokens[k], name->tokens, sizeof m->tokens[k]))
            return k;
    return -1;
}

static void check_name(PoolModel *m, PagePool *pool, int who, const PageName *name) {
    if (!m->n[who] || (m->n[who] > 1 && !name->before)) return;
    const int64_t page = m->page[who][m->n[who] - 1], other = model_find(m, name);
    if (m->number[page]) return;
    const uint64_t number = page_pool_name(pool, page, name);
    if (other >= 0) {
        assert_int_equal(number, m->number[other]);
        m->renamed++;
        return;
    }
    for (int64_t k = 0; k < PAGES; k++) assert_true(m->number[k] != number);
    assert_true(number); /* 0 begins a sequence */
    m->number[page] = number, m->before[page] = name->before, m->salt[page] = name->n_salt;
    memcpy(m->tokens[page], name->tokens, sizeof m->tokens[page]);
}

static void check_find(PoolModel *m, PagePool *pool, int who, const PageName *name) {
    uint64_t before = 0;
    if (m->n[who] == PAGES) return;
    const int64_t page = page_pool_find(pool, name, &before);
    assert_int_equal(page, model_find(m, name));
    if (page < 0) return;
    assert_int_equal(before, m->number[page]);
    if (!m->users[page]++) model_remove_unused(m, page);
    m->page[who][m->n[who]++] = page, m->found++;
}

static void check_share(PoolModel *m, PagePool *pool, int who, int with) {
    if (m->n[with] || who == with) return;
    page_pool_share(pool, m->n[who], m->page[who]);
    memcpy(m->page[with], m->page[who], sizeof m->page[who]);
    m->n[with] = m->n[who];
    for (int64_t i = 0; i < m->n[who]; i++) m->users[m->page[who][i]]++;
}

static void check_forget(PoolModel *m, PagePool *pool) {
    page_pool_forget(pool);
    memset(m->number, 0, sizeof m->number);
    m->forgotten++;
}

/* Later pages are released first. */
static void check_release(PoolModel *m, PagePool *pool, int who) {
    page_pool_release(pool, m->n[who], m->page[who]);
    while (m->n[who]) model_release(m, m->page[who][--m->n[who]]);
}

/* With as many salts as pages, some salts share a hash bucket. */
TEST(salts_of_one_length_name_different_pages) {
    enum { SALTS = 26 };
    static const int32_t CONTENT[WIDTH] = {1, 2};
    char salt[SALTS];
    int64_t pages[SALTS];
    uint64_t before;
    PagePool *pool = page_pool_new(SALTS);
    assert_true(page_pool_take(pool, SALTS, pages));
    for (int i = 0; i < SALTS; i++) {
        salt[i] = (char)('a' + i);
        assert_true(page_pool_name(pool, pages[i], &(PageName){0, CONTENT, WIDTH, &salt[i], 1}));
    }
    for (int i = 0; i < SALTS; i++)
        assert_int_equal(page_pool_find(pool, &(PageName){0, CONTENT, WIDTH, &salt[i], 1}, &before),
                         pages[i]);
    page_pool_free(pool);
}

TEST(a_page_has_one_content) {
    enum { STEPS = 1000000 };
    PoolModel *m = mem_zero(1, sizeof *m);
    PagePool *pool = page_pool_new(PAGES);
    Dice d = {1, 0, 0};
    for (int64_t i = 0; i < PAGES; i++) m->unused[m->n_unused++] = i;
    for (int64_t i = 0; i < STEPS; i++) {
        const int who = (int)roll(&d, OWNERS);
        const int32_t content[WIDTH] = {(int32_t)roll(&d, 2), (int32_t)roll(&d, 3)};
        const int64_t *own = m->page[who], n = m->n[who];
        const int64_t salt = one_in(&d, 4); /* "" or "a" */
        const PageName last = {n > 1 ? m->number[own[n - 2]] : 0, content, WIDTH, "a", n > 1 ? 0 : salt},
                       next = {n ? m->number[own[n - 1]] : 0, content, WIDTH, "a", n ? 0 : salt};
        switch (roll(&d, 8)) {
        case 0:
        case 1:
            check_take(m, pool, who, 1 + roll(&d, 8));
            break;
        case 2:
        case 3:
            check_name(m, pool, who, &last);
            break;
        case 4:
        case 5:
            check_find(m, pool, who, &next);
            break;
        case 6:
            check_share(m, pool, who, (int)roll(&d, OWNERS));
            break;
        default:
            if (one_in(&d, 100)) check_forget(m, pool);
            check_release(m, pool, who);
        }
        assert_int_equal(page_pool_available(pool), m->n_unused);
    }
    assert_true(m->found > 500 && m->renamed > 500 && m->evicted > 500 && m->forgotten > 500);
    for (int who = 0; who < OWNERS; who++) check_release(m, pool, who);
    assert_int_equal(page_pool_available(pool), page_pool_size(pool));
    page_pool_free(pool);
    free(m);
}
