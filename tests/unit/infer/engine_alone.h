/* Tests that a request's tokens and log-probabilities are bitwise equal, whether it runs alone in a new engine or among
 * others. The driver draws requests and their arrivals, page, pool and pass sizes, shared prefixes, drafts, aborts and
 * copies. These environment variables control the test:
 *
 *   ENGINE_REQUESTS  number of requests to compare; nightly 10,000 (ci/run requests)
 *   ENGINE_SEED      another seed gives other requests
 *   ENGINE_ROUND     runs only this round, to repeat a failure */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "unit/err.h"
#include "unit/model_helper.h"

#include "base/hash.h"
#include "infer/engine_state.h"

#define RANGES                                                                                               \
    "--num-layers 2 --max-position-embeddings 200 --vocab-size 31 --init-method-std 0.3 "                    \
    "--batch-invariant-mode "
#define SIZES  RANGES "--hidden-size 24 --num-attention-heads 4 "
#define WIDE   RANGES "--hidden-size 64 --num-attention-heads 8 --kv-channels 16 "
#define ROPE   "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear "
#define GROUPS "--group-query-attention --num-query-groups 2 "
#define HYBRID                                                                                               \
    "--position-embedding-type none --normalization RMSNorm --disable-bias-linear --mamba-head-dim 6 "       \
    "--mamba-state-dim 5 --mamba-num-groups 2 "
#define DELTA                                                                                                \
    "--linear-key-head-dim 5 --linear-value-head-dim 3 --linear-num-key-heads 2 --linear-num-value-heads 4 "
#define MLA                                                                                                  \
    "--multi-latent-attention --kv-lora-rank 10 --q-lora-rank 12 --qk-head-dim 6 --qk-pos-emb-head-dim 4 "   \
    "--v-head-dim 5 "
#define DRAFT                                                                                                \
    "--num-layers 1 --hidden-size 16 --num-attention-heads 2 --max-position-embeddings 170 --vocab-size 31 "
static const char *const STYLES[] = {
    SIZES "--fp64 ",
    SIZES ROPE GROUPS "--swiglu --softmax-type learnable --window-size 70,0 --bf16 --mtp-num-layers 3 ",
    SIZES ROPE "--attn-logit-softcapping 5 --attention-chunk-size 66 ",
    SIZES "--position-embedding-type alibi ",
    SIZES ROPE MLA "--fp16 --mtp-num-layers 2 --mtp-use-repeated-layer ",
    SIZES ROPE MLA "--cache-mla-latents --mtp-num-layers 1 ",
    SIZES ROPE
    "--num-experts 6 --moe-router-topk 2 --moe-ffn-hidden-size 20 --moe-router-load-balancing-type none "
    "--moe-shared-expert-intermediate-size 8 --moe-latent-size 12 ",
    "--model t5 --seq-length 150 --decoder-seq-length 150 " SIZES
    "--position-embedding-type relative --relative-attention-num-buckets 8 --relative-attention-max-distance "
    "40 ",
    SIZES ROPE GROUPS
    "--qk-layernorm --norm-placement sandwich --softmax-type off-by-one --final-logit-softcapping 3 "
    "--window-size 40,0 "
    "--window-attn-skip-freq 2 --num-experts 4 --moe-router-topk 2 --moe-router-score-function "
    "sigmoid "
    "--moe-router-enable-expert-bias --moe-router-num-groups 2 --moe-router-group-topk 1 "
    "--moe-router-load-balancing-type none ",
    SIZES ROPE "--parallel-residual two-norms --mtp-num-layers 3 ",
    WIDE ROPE GROUPS "--swiglu --bf16 --mtp-num-layers 2 ",
    SIZES "--fp64 --quantization fp8 ",
    WIDE ROPE GROUPS "--swiglu --bf16 --quantization fp8 --mtp-num-layers 2 ",
    WIDE ROPE GROUPS "--swiglu --bf16 --quantization int8 ",
    SIZES HYBRID "--hybrid-layer-pattern M* --fp64 ",
    SIZES HYBRID "--hybrid-layer-pattern MM --bf16 ",
    SIZES ROPE GROUPS DELTA
    "--experimental-attention-variant gdn --linear-attention-freq 2 --attention-output-gate "
    "--qk-layernorm --fp64 ",
    SIZES ROPE DELTA "--hybrid-layer-pattern GG --bf16 ",
};
enum {
    STYLE_COUNT = sizeof STYLES / sizeof *STYLES,
    REQUESTS = 24,
    SLOTS = 2 * REQUESTS, /* requests and copies of requests */
    LONGEST = 110,
    NEW = 80,
    PAGE = 64,
    STEERED = 3 /* candidates of a steered request */
};

typedef struct Result {
    int32_t tokens[LONGEST + NEW];
    double logprobs[LONGEST + NEW];
    uint64_t likeliest; /* a hash of the likeliest tokens of all events */
    int64_t n, ended;
} Result;

typedef struct Case {
    TestModel *m;
    Setup *draft_setup;
    Model *draft; /* on the device of m */
    int32_t prompt[REQUESTS][LONGEST];
    Request request[REQUESTS];
    Result want[REQUESTS], got[SLOTS];
} Case;

/* ---- random requests ---- */

typedef struct Dice {
    uint64_t seed, round, rolls;
} Dice;

static int64_t roll(Dice *d, int64_t sides) {
    return philox_u32(d->seed, d->round, d->rolls++) % (uint32_t)sides;
}

static bool one_in(Dice *d, int64_t sides) { return !roll(d, sides); }

static Sampling draw_sampling(Dice *d) {
    static const TokenBias BIAS[] = {{7, 1.5}, {9, -100}};
    static const int32_t ALLOWED[] = {0, 1, 2, 4, 7, 8, 9, 12, 13, 20, 21, 22, 30},
                         BAD[] = {1, 8, 2, 7, 7, 3, 1, 2, 4};
    static const double TEMPERATURES[] = {0, 0.7, 1.3};
    return (Sampling){.temperature = TEMPERATURES[roll(d, 3)],
                      .top_k = one_in(d, 2) ? roll(d, 12) : 0,
                      .top_p = one_in(d, 3) ? 0.9 : 0,
                      .min_p = one_in(d, 5) ? 0.1 : 0,
                      .presence = one_in(d, 5) ? 0.5 : 0,
                      .frequency = one_in(d, 5) ? 0.25 : 0,
                      .repetition = one_in(d, 5) ? 1.2 : 0,
                      .bias = BIAS,
                      .n_bias = one_in(d, 5) ? 2 : 0,
                      .allowed = ALLOWED,
                      .n_allowed = one_in(d, 5) ? sizeof ALLOWED / sizeof *ALLOWED : 0,
                      .bad = BAD,
                      .n_bad = one_in(d, 5) ? sizeof BAD / sizeof *BAD : 0};
}

/* Some prompts have equal first pages. End tokens outside the vocabulary never end a request. */
static void draw_requests(Case *c, Dice *d) {
    enum { VOCAB = 31 };
    static const int64_t ENDS[] = {3, -1, 12, VOCAB + 100, 20, INT64_MAX};
    for (int i = 0; i < REQUESTS; i++) {
        const int64_t kind = roll(d, 3), family = roll(d, 4),
                      n = one_in(d, 6) ? PAGE
                          : kind == 0  ? 1 + roll(d, 20)
                          : kind == 1  ? 1 + roll(d, LONGEST)
                                       : LONGEST - roll(d, LONGEST - PAGE);
        for (int64_t k = 0; k < n; k++)
            c->prompt[i][k] =
                (int32_t)(k < PAGE && family < 3 ? (17 * k + k * k * (family + 5)) % VOCAB : roll(d, VOCAB));
        const bool steered = one_in(d, 6);
        c->request[i] = (Request){
            .id = 100 - i,
            .prompt = c->prompt[i],
            .n = n,
            .start = 5,
            .sampling = draw_sampling(d),
            .seed = 11 + (uint64_t)roll(d, 2),
            .stream = (uint64_t)i,
            .min_new_tokens = roll(d, 10),
            .max_new_tokens = one_in(d, 4) ? roll(d, NEW + 1) : roll(d, 25),
            .ends = ENDS,
            .n_ends = one_in(d, 2) ? 1 + roll(d, 6) : 0,
            .logprobs = roll(d, 3) > 0,
            .prompt_logprobs = one_in(d, 4),
            .salt = "s",
            .n_salt = one_in(d, 6),
            .steered = steered,
            .likeliest = steered        ? STEERED
                         : one_in(d, 4) ? roll(d, 6)
                                        : 0,
        };
    }
}

static void case_models(Case *c, const char *words, Device *device) {
    c->m = test_model_on(setup_new("%s", words), device);
    c->draft_setup = setup_new("%s", DRAFT);
    c->draft = model_new(&c->draft_setup->config, NULL);
    model_allocate(c->draft, device, c->m->run.dtype, 170, true);
    registry_init(c->draft->registry, 1);
}

/* A case of long texts. The engine chooses all of their tokens. */
static inline void case_init(Case *c, const char *words, Device *device) {
    Dice d = {4, 0, 0};
    case_models(c, words, device);
    draw_requests(c, &d);
    for (int i = 0; i < REQUESTS; i++)
        c->request[i].steered = false, c->request[i].max_new_tokens = roll(&d, NEW + 1);
}

static void case_free(Case *c) {
    model_free(c->draft);
    setup_free(c->draft_setup);
    test_model_free(c->m);
}

/* ---- results ---- */

static int slot_of(int64_t id) { return (int)(100 - id); }

/* The token that a steered request gets. */
static int32_t steer(const EngineEvent *e) { return e->likeliest[e->index % STEERED].id; }

static void take(void *arg, const EngineEvent *e) {
    Result *r = &((Result *)arg)[slot_of(e->id)];
    const bool choice = e->kind == EVENT_CHOICE;
    if (e->likeliest)
        r->likeliest =
            hash64(&e->likeliest->logprob, sizeof(double), r->likeliest + (uint64_t)e->likeliest->id);
    if (e->kind == EVENT_END) {
        r->ended++;
        assert_true(e->finish == FINISH_STOP || e->finish == FINISH_LENGTH);
        return;
    }
    assert_int_equal(r->ended, 0);
    assert_true(!r->n || e->index == r->n);
    r->tokens[e->index] = choice ? steer(e) : e->token;
    r->logprobs[e->index] = choice ? e->likeliest[e->index % STEERED].logprob : e->logprob;
    r->n = e->index + 1;
}

static void assert_same(const Result *got, const Result *want, const char *what) {
    if (!memcmp(got, want, sizeof *got)) return;
    int64_t at = 0;
    while (at < want->n && got->tokens[at] == want->tokens[at] &&
           !memcmp(&got->logprobs[at], &want->logprobs[at], sizeof(double)))
        at++;
    fail_msg("%s: of %lld tokens, %lld are those of the request alone; then there is %d with %.17g, alone %d "
             "with %.17g",
             what, (long long)got->n, (long long)at, got->tokens[at], got->logprobs[at], want->tokens[at],
             want->logprobs[at]);
}

/* ---- engines ---- */

static Engine *engine_open(const TestModel *m, EngineLimits limits) {
    Engine *e;
    assert_ok(engine_new(m->model, &m->run, &limits, &e));
    return e;
}

/* Events. A test must contain each of them. */
typedef enum Sight {
    PREEMPTION,
    SHARED_PAGE,
    PART_OF_A_PROMPT,
    COPY,
    STEERED_TOKEN,
    KEPT_DRAFT_OF_LAYERS,
    KEPT_DRAFT_OF_A_MODEL,
    KEPT_DRAFT_OF_THE_MODEL,
    REJECTED_DRAFT,
    ABORT_WAITING,
    ABORT_PREEMPTED,
    ABORT_READING,
    ABORT_GENERATING,
    ABORT_IN_A_STEP,
    REQUEST_AFTER_ABORT,
    SUSPENSION,
    OFFLOADED_REQUEST,
    OFFLOADED_ENCODER_PAGE,
    OFFLOADED_DRAFT,
    PERSISTING_REQUEST,
    END_TOKEN,
    LONG_PAGE,
    PASS_OF_ONE_TOKEN_EACH,
    SIGHTS
} Sight;
static const char *const SIGHT_NAMES[SIGHTS] = {"preemptions",
                                                "shared tokens",
                                                "parts of prompts",
                                                "copies",
                                                "steered tokens",
                                                "kept drafts of layers",
                                                "kept drafts of another model",
                                                "kept drafts of the model",
                                                "rejected drafts",
                                                "aborts of a waiting request",
                                                "aborts of a preempted request",
                                                "aborts of a prompt",
                                                "aborts of a text",
                                                "aborts in a step",
                                                "requests after their abort",
                                                "suspensions",
                                                "offloaded requests",
                                                "offloaded pages of an encoder",
                                                "offloaded rows of drafts",
                                                "persisting requests",
                                                "end tokens",
                                                "pages of two tiles",
                                                "passes with a token of each request"};

/* The requests of a case in an engine. */
typedef struct Session {
    Engine *e;
    Case *c;
    Result *result;               /* [SLOTS] */
    Dice *dice;                   /* NULL: no aborts during a step */
    int waits[SLOTS], n_waits;    /* steered requests that wait for a token */
    bool open[SLOTS], ran[SLOTS]; /* added and neither ended nor aborted; was admitted */
    int of[SLOTS], slots;         /* the request that a slot copies */
    int64_t most_passes;          /* the first request that runs gets a token in each pass */
    bool cut;                     /* a request was aborted or had an end token in this step */
    int64_t *seen;                /* [SIGHTS] */
} Session;

/* Counts the passes that a request may need from its beginning. */
static void count_passes(Session *s, int slot) {
    const Request *r = &s->c->request[s->of[slot]];
    s->most_passes += r->n + r->max_new_tokens + 1;
}

static void session_add(Session *s, int slot) {
    assert_ok(engine_add(s->e, &s->c->request[slot]));
    s->result[slot] = (Result){0};
    s->open[slot] = true, s->ran[slot] = false;
    count_passes(s, slot);
}

static Sight state_of(const Session *s, int slot) {
    for (int64_t i = 0; i < s->e->running.n; i++) {
        const Live *live = s->e->running.at[i];
        if (slot_of(live->request.id) == slot)
            return live->computed < live->n_first ? ABORT_READING : ABORT_GENERATING;
    }
    return s->ran[slot] ? ABORT_PREEMPTED : ABORT_WAITING;
}

/* The slot of a random request, which may have ended. Preempted requests, which are few, are preferred. */
static int draw_slot(const Session *s, Dice *d) {
    const LiveList *waiting = &s->e->waiting, *running = &s->e->running;
    const int first = waiting->n ? slot_of(waiting->at[0]->request.id) : -1;
    if (first >= 0 && (s->ran[first] || one_in(d, 4))) return first;
    if (running->n && one_in(d, 2)) return slot_of(running->at[roll(d, running->n)]->request.id);
    return (int)roll(d, s->slots);
}

static void session_abort(Session *s, Dice *d, bool in_step) {
    const int slot = draw_slot(s, d);
    const Sight state = state_of(s, slot);
    assert_int_equal(engine_abort(s->e, 100 - slot), s->open[slot]);
    if (s->open[slot]) s->seen[in_step ? ABORT_IN_A_STEP : state]++;
    s->open[slot] = false, s->cut = true;
}

static void session_take(void *arg, const EngineEvent *e) {
    Session *s = arg;
    const int slot = slot_of(e->id);
    assert_true(s->open[slot]);
    take(s->result, e);
    if (e->kind == EVENT_CHOICE) s->waits[s->n_waits++] = slot;
    const bool stops = e->kind == EVENT_END && e->finish == FINISH_STOP;
    if (e->kind == EVENT_END) s->open[slot] = false;
    s->seen[END_TOKEN] += stops, s->cut |= stops;
    if (s->dice && one_in(s->dice, 100)) session_abort(s, s->dice, true);
}

/* Copies a steered request that is running. */
static void session_fork(Session *s, Dice *d) {
    const Engine *e = s->e;
    if (s->slots == SLOTS || e->running.n == e->limits.requests || !page_pool_available(e->pages)) return;
    const Live *live = e->running.at[roll(d, e->running.n)];
    const int from = slot_of(live->request.id), slot = s->slots;
    if (!live->request.steered) return;
    for (int i = s->n_waits - 1; i >= 0; i--)
        if (s->waits[i] == from) s->waits[s->n_waits++] = slot;
    engine_fork(s->e, 100 - from, 100 - slot);
    s->of[slot] = s->of[from], s->result[slot] = s->result[from];
    count_passes(s, slot);
    s->open[slot] = s->ran[slot] = true;
    s->slots++, s->seen[COPY]++;
}

/* Sums over the running requests: rows, pages of encoders, and rows of drafts. */
typedef struct Kept {
    int64_t rows, encoder_pages, drafted;
} Kept;

static Kept kept(const Engine *e) {
    Kept k = {0};
    for (int64_t i = 0; i < e->running.n; i++) {
        const Live *live = e->running.at[i];
        k.rows += live->computed, k.encoder_pages += live->encoder_pages.n, k.drafted += live->drafted;
    }
    return k;
}

/* Fills the device's next pools with NaN. */
static void dirty_memory(const Session *s, size_t bytes) {
    Device *d = s->e->context->device;
    char *host = mem_alloc(bytes), *block = device_alloc(d, bytes, "dirty memory");
    memset(host, 0xFF, bytes);
    device_write(d, block, host, bytes);
    device_release(d, block, bytes);
    free(host);
}

/* Suspends and resumes the engine. Requests keep their rows. */
static void session_sleep(Session *s) {
    Engine *e = s->e;
    const bool persists = e->limits.suspended == KV_PERSIST;
    const size_t pools = e->cache.bytes, before = e->context->device->allocated;
    const Kept had = kept(e);
    s->seen[persists ? PERSISTING_REQUEST : OFFLOADED_REQUEST] += e->running.n;
    if (!persists)
        s->seen[OFFLOADED_ENCODER_PAGE] += had.encoder_pages, s->seen[OFFLOADED_DRAFT] += had.drafted;
    engine_suspend(e);
    assert_true(persists ? e->context->device->allocated == before
                         : e->context->device->allocated + pools <= before);
    if (!persists) dirty_memory(s, pools);
    engine_wake(e);
    const Kept has = kept(e);
    assert_memory_equal(&has, &had, sizeof has);
}

/* Releases all pages, unless the caller chooses tokens of a running request. */
static void session_suspend(Session *s, Dice *d) {
    const LiveList *running = &s->e->running;
    for (int64_t i = 0; i < running->n; i++)
        if (running->at[i]->request.steered) return;
    for (int i = 0; i < s->slots; i++)
        if (s->open[i]) count_passes(s, i);
    s->seen[SUSPENSION] += running->n > 0;
    one_in(d, 2) ? engine_forget(s->e) : engine_new_weights(s->e);
}

/* Waiting requests have no pages, and the preempted ones come first. Named pages are computed. */
static void check_lists(const Session *s) {
    const LiveList *waiting = &s->e->waiting, *running = &s->e->running;
    bool ran = true;
    for (int64_t i = 0; i < waiting->n; i++) {
        const Live *live = waiting->at[i];
        const int slot = slot_of(live->request.id);
        assert_int_equal(live->pages.n + live->encoder_pages.n + live->state.n + live->named + live->computed,
                         0);
        assert_int_equal(live->before, 0);
        assert_true(ran || !s->ran[slot]);
        ran = s->ran[slot];
    }
    for (int64_t i = 0; i < running->n; i++)
        assert_in_range(running->at[i]->named * s->e->limits.page, 0, running->at[i]->computed);
}

/* Runs a step, and continues the steered requests. */
static bool session_step(Session *s) {
    const Engine *e = s->e;
    const int64_t rejected = e->drafts - e->accepted;
    s->cut = false;
    const bool busy = engine_step(s->e, session_take, s);
    if (e->limits.speculation.model == e->model && !s->cut) /* its drafts are the tokens */
        assert_int_equal(e->drafts - e->accepted, rejected);
    for (int64_t i = 0; i < e->running.n; i++) {
        const Live *live = e->running.at[i];
        s->ran[slot_of(live->request.id)] = true;
        s->seen[PART_OF_A_PROMPT] += live->computed && live->computed < live->n_first;
    }
    check_lists(s);
    if (s->dice && e->running.n && one_in(s->dice, 3)) session_fork(s, s->dice);
    for (int i = 0; i < s->n_waits; i++) {
        const int slot = s->waits[i];
        const Result *r = &s->result[slot];
        if (!s->open[slot]) continue;
        engine_continue(s->e, 100 - slot, r->tokens[r->n - 1]);
        s->seen[STEERED_TOKEN]++;
    }
    s->n_waits = 0;
    return busy;
}

/* Half of the requests have a bias of 0 here, so the host chooses their tokens. When they run among others, op_choose
 * does. */
static void run_alone(Case *c) {
    static const TokenBias NOTHING = {0, 0};
    int64_t seen[SIGHTS];
    for (int i = 0; i < REQUESTS; i++) {
        const Sampling sampling = c->request[i].sampling;
        if (i % 2 && !sampling.n_bias)
            c->request[i].sampling.n_bias = 1, c->request[i].sampling.bias = &NOTHING;
        Session s = {.c = c, .result = c->want, .seen = seen, .slots = REQUESTS};
        s.e = engine_open(
            c->m,
            (EngineLimits){.page = PAGE, .pages = 3, .encoder_pages = 2, .requests = 1, .tokens = LONGEST});
        s.of[i] = i;
        session_add(&s, i);
        while (session_step(&s)) continue;
        engine_free(s.e);
        c->request[i].sampling = sampling;
        assert_int_equal(c->want[i].ended, 1);
    }
}

/* ---- requests among others ---- */

/* Drafts from the model's layers that predict further tokens, from another model, or from the model itself. */
static Speculation draw_speculation(const Case *c, Dice *d, Sight *kept) {
    const int64_t n = 1 + roll(d, 4), layers = c->m->setup->config.mtp_num_layers;
    if (c->m->model->plan.sample.encoder || cache_has_states(c->m->model) || one_in(d, 5))
        return (Speculation){0};
    if (layers && !one_in(d, 3)) return *kept = KEPT_DRAFT_OF_LAYERS, (Speculation){.tokens = layers};
    const bool other = one_in(d, 2);
    *kept = other ? KEPT_DRAFT_OF_A_MODEL : KEPT_DRAFT_OF_THE_MODEL;
    return (Speculation){n, other ? c->draft : c->m->model, &c->m->run};
}

static EngineLimits draw_limits(const Case *c, Dice *d, Sight *kept) {
    const int64_t page = one_in(d, 3) ? 2 * PAGE : PAGE, least = engine_pages(LONGEST + NEW, page),
                  pages = least + roll(d, 5), requests = 1 + roll(d, REQUESTS);
    return (EngineLimits){.page = page,
                          .pages = pages,
                          .encoder_pages = pages + 1 + roll(d, 8),
                          .requests = requests,
                          .tokens = requests + (one_in(d, 2) ? roll(d, 3) : roll(d, LONGEST)),
                          .shares_prefixes = !one_in(d, 3),
                          .no_graphs = one_in(d, 3),
                          .suspended = one_in(d, 6) ? KV_PERSIST : KV_OFFLOAD,
                          .speculation = draw_speculation(c, d, kept)};
}

static void count_seen(const Session *s, Sight kept) {
    const EngineCounts counts = engine_counts(s->e);
    s->seen[PREEMPTION] += counts.preemptions, s->seen[SHARED_PAGE] += counts.shared;
    s->seen[kept] += counts.accepted, s->seen[REJECTED_DRAFT] += counts.drafts - counts.accepted;
    s->seen[LONG_PAGE] += s->e->limits.page > PAGE;
    s->seen[PASS_OF_ONE_TOKEN_EACH] += s->e->limits.tokens == s->e->limits.requests;
    assert_in_range(counts.passes, 1, s->most_passes);
    assert_int_equal(counts.waiting + counts.running, 0);
    assert_int_equal(counts.free_pages, s->e->limits.pages);
    assert_int_equal(page_pool_available(s->e->encoder_pages), s->e->limits.encoder_pages);
    assert_int_equal(page_pool_available(s->e->states), page_pool_size(s->e->states));
}

/* Requests arrive in a random order. Some are aborted, and some of these are added again. Steered requests are copied.
 * Returns the number of requests and copies that ended. */
static int64_t run_together(Case *c, Dice *d, int64_t seen[SIGHTS]) {
    Sight kept = KEPT_DRAFT_OF_THE_MODEL;
    Session s = {.c = c, .result = c->got, .dice = d, .seen = seen, .slots = REQUESTS};
    s.e = engine_open(c->m, draw_limits(c, d, &kept));
    const int64_t first = roll(d, REQUESTS), most = 1 + roll(d, REQUESTS), aborts = 5 + roll(d, 40);
    int64_t arrived = 0, ended = 0;
    for (int i = 0; i < REQUESTS; i++) s.of[i] = i;
    for (bool busy = true; busy || arrived < REQUESTS;) {
        for (int64_t n = one_in(d, 4) ? roll(d, most + 1) : 0; n && arrived < REQUESTS; n--, arrived++)
            session_add(&s, (int)((first + 5 * arrived) % REQUESTS));
        if (one_in(d, aborts)) session_abort(&s, d, false);
        if (one_in(d, 30)) session_suspend(&s, d);
        if (one_in(d, 8)) session_sleep(&s);
        const int again = (int)roll(d, REQUESTS);
        if (s.ran[again] && !s.open[again] && !c->got[again].ended && one_in(d, 4))
            session_add(&s, again), seen[REQUEST_AFTER_ABORT]++;
        busy = session_step(&s);
        assert_in_range(engine_counts(s.e).running, 0, s.e->limits.requests);
    }
    for (int i = 0; i < s.slots; i++) {
        char what[40];
        assert_false(s.open[i]);
        if (!c->got[i].ended) continue; /* it was aborted */
        snprintf(what, sizeof what, "request %d", s.of[i]);
        assert_same(&c->got[i], &c->want[s.of[i]], what);
        ended++;
    }
    count_seen(&s, kept);
    engine_free(s.e);
    return ended;
}

static int64_t setting(const char *name, int64_t usual) {
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : usual;
}

/* open: returns a new device. requests: the number to compare by default. */
static inline void assert_results_are_those_of_a_request_alone(Device *(*open)(void), int64_t requests) {
    Case *c = mem_alloc(sizeof *c);
    const int64_t wanted = setting("ENGINE_REQUESTS", requests), seed = setting("ENGINE_SEED", 1),
                  only = setting("ENGINE_ROUND", -1);
    int64_t seen[SIGHTS] = {0}, compared = 0;
    for (int64_t k = 0; k < STYLE_COUNT; k++) {
        memset(c, 0, sizeof *c);
        case_models(c, STYLES[k], open());
        for (int64_t round = k; only < 0 ? compared * STYLE_COUNT < wanted * (k + 1) : round <= only;
             round += STYLE_COUNT) {
            Dice d = {(uint64_t)seed, (uint64_t)round, 0};
            if (only >= 0 && round != only) continue;
            printf("to repeat: ENGINE_SEED=%lld ENGINE_ROUND=%lld\n", (long long)seed, (long long)round);
            fflush(stdout);
            memset(c->want, 0, sizeof c->want), memset(c->got, 0, sizeof c->got);
            draw_requests(c, &d);
            run_alone(c);
            compared += run_together(c, &d, seen);
        }
        case_free(c);
    }
    printf("%lld requests are equal\n", (long long)compared);
    for (int i = 0; i < SIGHTS; i++) {
        printf("%s: %lld\n", SIGHT_NAMES[i], (long long)seen[i]);
        if (only < 0 && !seen[i]) fail_msg("there were no %s", SIGHT_NAMES[i]);
    }
    free(c);
}
