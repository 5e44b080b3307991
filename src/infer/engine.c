#include "infer/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/fault.h"
#include "comm/agree.h"
#include "infer/engine_state.h"
#include "run/launch.h"

/* ---- lists ---- */

static void list_insert(LiveList *l, int64_t at, Live *live) {
    l->at = mem_grow(l->at, (size_t)l->n + 1, sizeof(Live *));
    memmove(l->at + at + 1, l->at + at, (size_t)(l->n - at) * sizeof(Live *));
    l->at[at] = live;
    l->n++;
}

static Live *list_remove(LiveList *l, int64_t at) {
    Live *live = l->at[at];
    memmove(l->at + at, l->at + at + 1, (size_t)(--l->n - at) * sizeof(Live *));
    return live;
}

static int64_t list_find(const LiveList *l, int64_t id) {
    for (int64_t i = 0; i < l->n; i++)
        if (l->at[i]->request.id == id && !l->at[i]->ended) return i;
    return -1;
}

/* ---- pages ---- */

static void pages_release(PagePool *pool, PageList *l) {
    page_pool_release(pool, l->n, l->page);
    l->n = 0;
}

/* Extends a list so that its pages hold `rows` rows. If too few pages are free, returns false and changes nothing. */
static bool pages_extend(PagePool *pool, PageList *l, int64_t rows, int64_t page) {
    const int64_t more = engine_pages(rows, page) - l->n;
    if (more <= 0) return true;
    if (more > page_pool_available(pool)) return false;
    l->page = mem_grow(l->page, (size_t)(l->n + more), sizeof *l->page);
    CHECK(page_pool_take(pool, more, l->page + l->n), "only %lld pages are available",
          (long long)page_pool_available(pool));
    l->n += more;
    return true;
}

/* Reserves a state for the request if the model has states. The pool has one for each request that can run. */
static void take_state(Engine *e, Live *live) {
    const bool taken = pages_extend(e->states, &live->state, page_pool_size(e->states) > 0, 1);
    CHECK(taken, "none of %lld states is available", (long long)page_pool_size(e->states));
}

/* Extends the list of a request's pages. New pages do not contain any draft rows yet. */
static bool extend(Engine *e, Live *live, int64_t rows) {
    const int64_t before = live->pages.n;
    if (!pages_extend(e->pages, &live->pages, rows, e->limits.page)) return false;
    for (int64_t i = before; e->drafter.drafted && i < live->pages.n; i++)
        e->drafter.drafted[live->pages.page[i]] = false;
    return true;
}

/* ---- requests ---- */

void request_copy(Request *r) {
    r->prompt = mem_copy(r->prompt, (size_t)r->n * sizeof *r->prompt);
    r->ends = mem_copy(r->ends, (size_t)r->n_ends * sizeof *r->ends);
    sampling_copy(&r->sampling);
    r->salt = mem_copy(r->salt, (size_t)r->n_salt);
    r->grammar = mem_copy(r->grammar, (size_t)r->n_grammar * sizeof *r->grammar);
}

void request_free(Request *r) {
    sampling_free(&r->sampling);
    free((void *)r->prompt), free((void *)r->ends), free((void *)r->salt), free((void *)r->grammar);
}

static void live_free(Engine *e, Live *live) {
    pages_release(e->pages, &live->pages);
    pages_release(e->encoder_pages, &live->encoder_pages);
    pages_release(e->states, &live->state);
    free(live->pages.page), free(live->encoder_pages.page), free(live->state.page);
    request_free(&live->request);
    grammar_free(live->grammar);
    free(live->tokens), free(live);
}

static Err check_tokens(const Engine *e, const Request *r) {
    const int64_t vocab = e->model->plan.vocab;
    if (r->n < 1) return err_user("the prompt is empty; it must contain at least one token");
    for (int64_t i = 0; i < r->n; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= vocab)
            return err_user("token %d of the prompt is outside the model's vocabulary of %lld tokens; use "
                            "the model's tokenizer",
                            r->prompt[i], (long long)vocab);
    if (has_encoder(e) && (r->start < 0 || r->start >= vocab))
        return err_user("the decoder begins with token %d, which is outside the model's vocabulary of %lld "
                        "tokens; use the model's tokenizer",
                        r->start, (long long)vocab);
    return ERR_OK;
}

static Err check_length(const Engine *e, const Request *r) {
    const int64_t limit = e->model->plan.limit;
    const long long n = r->n, fresh = r->max_new_tokens;
    if (has_encoder(e) && r->n > limit)
        return err_user("a prompt of %lld tokens exceeds the model's %lld positions; shorten the prompt", n,
                        (long long)limit);
    if (has_encoder(e) && r->max_new_tokens > limit - 1)
        return err_user("the start token and %lld new tokens exceed the model's %lld positions; lower "
                        "--tokens-to-generate",
                        fresh, (long long)limit);
    if (!has_encoder(e) && (r->n > limit || r->max_new_tokens > limit - r->n))
        return err_user(
            "%lld prompt tokens and %lld new tokens exceed the model's %lld positions; shorten the "
            "prompt or lower --tokens-to-generate",
            n, fresh, (long long)limit);
    return ERR_OK;
}

static Err check_room(const Engine *e, const Request *r) {
    const int64_t page = e->limits.page, first = has_encoder(e) ? 1 : r->n,
                  need = engine_pages(first + r->max_new_tokens, page),
                  encoder = has_encoder(e) ? engine_pages(r->n, page) : 0;
    if (need <= page_pool_size(e->pages) && encoder <= page_pool_size(e->encoder_pages)) return ERR_OK;
    return err_user(
        "a request of %lld prompt tokens and %lld new tokens needs %lld pages of %lld tokens, but the KV "
        "cache has only %lld pages; shorten the prompt or lower the number of new tokens",
        (long long)r->n, (long long)r->max_new_tokens, (long long)(need + encoder), (long long)page,
        (long long)(page_pool_size(e->pages) + page_pool_size(e->encoder_pages)));
}

Err engine_check(const Engine *e, const Request *r) {
    ERR_RETURN(check_tokens(e, r));
    ERR_RETURN(check_length(e, r));
    return check_room(e, r);
}

Err engine_add(Engine *e, const Request *r) {
    ERR_RETURN(engine_check(e, r));
    Live *live = mem_zero(1, sizeof *live);
    *live = (Live){.request = *r, .n = has_encoder(e) ? 1 : r->n, .added_ns = clock_ns(), .waited_ns = -1};
    live->n_first = live->n;
    request_copy(&live->request);
    CHECK(!r->n_grammar || (e->limits.vocabulary && !r->min_new_tokens && !r->steered),
          "request %lld cannot have a grammar", (long long)r->id);
    if (r->n_grammar) live->grammar = grammar_new(r->grammar, r->n_grammar, e->limits.vocabulary);
    live->tokens = mem_zero((size_t)(live->n + r->max_new_tokens + 1), sizeof *live->tokens);
    memcpy(live->tokens, has_encoder(e) ? &r->start : r->prompt, (size_t)live->n * sizeof *live->tokens);
    list_insert(&e->waiting, e->waiting.n, live);
    return ERR_OK;
}

bool engine_abort(Engine *e, int64_t id) {
    int64_t i = list_find(&e->waiting, id);
    if (i >= 0) {
        live_free(e, list_remove(&e->waiting, i));
        return true;
    }
    i = list_find(&e->running, id);
    if (i >= 0) e->running.at[i]->ended = true; /* removed after the pass, which may still use the request */
    return i >= 0;
}

static void remove_ended(Engine *e) {
    for (int64_t i = e->running.n - 1; i >= 0; i--)
        if (e->running.at[i]->ended) live_free(e, list_remove(&e->running, i));
}

/* ---- which tokens to compute ---- */

static void forget_rows(Engine *e, Live *live) {
    pages_release(e->pages, &live->pages);
    pages_release(e->encoder_pages, &live->encoder_pages);
    pages_release(e->states, &live->state);
    live->computed = live->named = live->drafted = 0, live->before = 0, live->encoded = false;
}

/* Releases all pages of the request that was admitted last, and moves this request to the front of the queue. */
static void preempt_last(Engine *e) {
    Live *live = list_remove(&e->running, e->running.n - 1);
    forget_rows(e, live);
    list_insert(&e->waiting, 0, live);
    e->preemptions++;
}

void engine_forget(Engine *e) {
    remove_ended(e);
    while (e->running.n) preempt_last(e);
    page_pool_forget(e->pages);
    kept_pages_free(e);
}

void engine_new_weights(Engine *e) {
    engine_forget(e);
    e->weights++;
}

static void add_share(Engine *e, Live *live, int64_t n, int64_t drafts) {
    live->drafts = drafts;
    e->share[e->n_shares++] = (Share){live, live->computed, n + drafts, live->n - 1};
}

/* Returns the number of drafts for a request: as many as it can use, or 0 if they do not all fit. */
static int64_t drafts_of(Engine *e, Live *live, int64_t rest) {
    const int64_t n = speculation_most(e, live);
    return n <= rest && extend(e, live, live->n + n) ? n : 0;
}

/* Adds the running requests' next tokens and drafts to the pass. Each request gets at least one token unless it waits
 * for engine_continue. *rest is the number of additional tokens that fit in the pass. */
static void share_running(Engine *e, int64_t *rest) {
    for (int64_t i = 0; i < e->running.n; i++) {
        Live *live = e->running.at[i];
        if (live->computed == live->n) continue; /* the request waits for engine_continue */
        const int64_t n = smaller(live->n - live->computed, 1 + *rest);
        while (!extend(e, live, live->computed + n)) {
            preempt_last(e);
            if (i >= e->running.n) return; /* the last request was preempted */
        }
        const int64_t drafts = live->computed + 1 == live->n ? drafts_of(e, live, *rest) : 0;
        add_share(e, live, n, drafts);
        *rest -= n - 1 + drafts;
    }
}

static PageName next_name(const Engine *e, const Live *live) {
    return page_name(&e->limits, &live->request, live->tokens, live->named, live->before);
}

/* Lets the request share existing pages that contain its first tokens. The last token is always computed, because its
 * logits are needed. */
static void find_prefix(Engine *e, Live *live) {
    if (!e->limits.shares_prefixes || has_encoder(e) || reports(e, live, live->known)) return;
    while ((live->named + 1) * e->limits.page < live->n) {
        const PageName name = next_name(e, live);
        const int64_t page = page_pool_find(e->pages, &name, &live->before);
        if (page < 0) return;
        live->pages.page = mem_grow(live->pages.page, (size_t)live->pages.n + 1, sizeof *live->pages.page);
        live->pages.page[live->pages.n++] = page;
        speculation_share(e, live, page);
        live->computed += e->limits.page, live->named++;
    }
}

static void name_pages(Engine *e, Live *live) {
    if (!e->limits.shares_prefixes || has_encoder(e)) return;
    while ((live->named + 1) * e->limits.page <= live->computed) {
        const PageName name = next_name(e, live);
        live->before = page_pool_name(e->pages, live->pages.page[live->named++], &name);
    }
}

/* Admits the first waiting request if its next tokens fit. */
static bool admit(Engine *e, int64_t *rest) {
    if (!e->waiting.n || e->running.n == e->limits.requests || *rest < 1) return false;
    Live *live = e->waiting.at[0];
    find_prefix(e, live);
    const int64_t n = smaller(live->n - live->computed, *rest);
    if (!extend(e, live, live->computed + n) ||
        (has_encoder(e) &&
         !pages_extend(e->encoder_pages, &live->encoder_pages, live->request.n, e->limits.page))) {
        forget_rows(e, live);
        return false;
    }
    take_state(e, live);
    e->shared += live->computed;
    if (live->waited_ns < 0) live->waited_ns = clock_ns() - live->added_ns, live->cached = live->computed;
    list_insert(&e->running, e->running.n, list_remove(&e->waiting, 0));
    add_share(e, live, n, 0);
    *rest -= n;
    return true;
}

/* Plans the next pass. The encoder reads one prompt at a time, so in an encoder-decoder model, a request's first pass
 * contains no other request. */
static void plan_pass(Engine *e) {
    const int64_t preemptions = e->preemptions;
    int64_t rest = e->limits.tokens;
    e->n_shares = 0;
    remove_ended(e);
    if (has_encoder(e) && admit(e, &rest)) return;
    rest = e->limits.tokens - e->running.n;
    share_running(e, &rest);
    while (!has_encoder(e) && e->preemptions == preemptions && admit(e, &rest)) continue;
}

/* ---- results ---- */

static void stamp(const Engine *e, const Live *live, EngineEvent *event) {
    event->id = live->request.id, event->weights = e->weights;
    event->cached = live->cached, event->waited_ns = live->waited_ns;
}

/* Reports a token. e->row contains the token's logits if the report needs them. */
static void report(Engine *e, const Live *live, EngineEvent event, const Chosen *made, EngineSink *sink,
                   void *arg) {
    const int64_t vocab = e->model->plan.vocab, k = live->request.likeliest;
    stamp(e, live, &event);
    if (live->request.logprobs || event.kind == EVENT_PROMPT)
        event.logprob = choice_logprob_of(e, made, event.token);
    if (k > 0) {
        e->likeliest = mem_grow(e->likeliest, (size_t)k, sizeof *e->likeliest);
        sampling_likeliest(e->row, vocab, k, e->likeliest);
        event.likeliest = e->likeliest, event.n_likeliest = k;
    }
    sink(arg, &event);
}

static void finish(const Engine *e, Live *live, Finish why, EngineSink *sink, void *arg) {
    EngineEvent event = {.kind = EVENT_END, .index = live->n, .token = -1, .finish = why};
    stamp(e, live, &event);
    live->ended = true;
    sink(arg, &event);
}

/* Chooses a request's next token, and appends it. */
static void append(Engine *e, Live *live, const Chosen *made, EngineSink *sink, void *arg) {
    const Request *r = &live->request;
    if (r->steered && live->n - live->n_first < r->max_new_tokens) {
        report(e, live, (EngineEvent){.kind = EVENT_CHOICE, .index = live->n}, made, sink, arg);
        return;
    }
    if (live->n - live->n_first < r->max_new_tokens) {
        const int32_t token = choice_token(e, live, live->n, made);
        if (token < 0) {
            finish(e, live, choice_finish(live), sink, arg);
            return;
        }
        EngineEvent event = {.kind = EVENT_TOKEN, .index = live->n, .token = token};
        if (engine_ends(r->ends, r->n_ends, token)) {
            live->ended = true;
            event.kind = EVENT_END, event.finish = FINISH_STOP;
            report(e, live, event, made, sink, arg);
            return;
        }
        live->tokens[live->n++] = token;
        report(e, live, event, made, sink, arg);
    }
    if (!live->ended && live->n - live->n_first >= r->max_new_tokens)
        finish(e, live, FINISH_LENGTH, sink, arg);
}

/* Returns whether the host needs the logits for token `at` of a request. */
static bool needs_row(const Live *live, int64_t at) {
    const Request *r = &live->request;
    return r->likeliest || (at >= live->n_first && (r->steered || !choice_is_made(live, at)));
}

static void take_results(Engine *e, Tensor logits, EngineSink *sink, void *arg) {
    int64_t at = 0;
    for (const Share *s = e->share; s < e->share + e->n_shares; s++) {
        Live *live = s->live;
        int64_t end = s->first + s->n; /* end of the rows whose tokens are kept */
        for (int64_t i = s->first; i < s->first + s->n; i++) {
            const bool prompt = reports(e, live, i);
            if (i < s->wanted && !prompt) continue;
            const int64_t row = at++;
            if (live->ended || i >= end) continue;
            if (needs_row(live, i + 1)) choice_read_row(e, &logits, row);
            const Chosen *made = &e->choice[row];
            if (made->token < 0) {
                finish(e, live, FINISH_NAN, sink, arg);
            } else if (prompt) {
                live->known = i + 1;
                report(e, live,
                       (EngineEvent){.kind = EVENT_PROMPT, .index = i + 1, .token = live->tokens[i + 1]},
                       made, sink, arg);
            } else {
                const int32_t draft = live->tokens[i + 1];
                append(e, live, made, sink, arg);
                if (live->tokens[i + 1] != draft) end = i + 1;
                e->accepted += i + 1 < end && !live->ended;
            }
        }
        if (live->computed < live->n_first) e->prompt_tokens += smaller(end, live->n_first) - live->computed;
        live->computed = end, live->encoded = true;
        name_pages(e, live);
    }
}

/* Returns whether this replica, or any replica if they share experts, has anything to compute. */
static bool has_work(const Engine *e) {
    int64_t shares = e->n_shares;
    if (pass_joins(e->model, e->context))
        comm_all_reduce(e->context->comm, mesh_group(&e->context->layout->mesh, 1u << AXIS_DP), "replicas",
                        COMM_MAX, I64, &shares, 1);
    return shares > 0;
}

/* ---- steered requests ---- */

static CacheShape cache_shape(const Model *m, const RunContext *c, const EngineLimits *l) {
    return (CacheShape){.dtype = c->dtype,
                        .page = l->page,
                        .pages = l->pages + pass_spare_pages(m, c, l->page),
                        .encoder_pages = l->encoder_pages,
                        .requests = l->requests + 1, /* the last row is for padding tokens */
                        .outputs = l->speculation.tokens && !l->speculation.model};
}

static Live *running(Engine *e, int64_t id) {
    const int64_t i = list_find(&e->running, id);
    CHECK(i >= 0 && e->running.at[i]->request.steered, "request %lld is not steered", (long long)id);
    return e->running.at[i];
}

void engine_continue(Engine *e, int64_t id, int32_t token) {
    Live *live = running(e, id);
    CHECK(live->computed == live->n && live->n - live->n_first < live->request.max_new_tokens,
          "request %lld does not wait for a token", (long long)id);
    live->tokens[live->n++] = token;
}

/* Returns a list of the first n pages of `l`, which both lists then share. */
static PageList shared_pages(PagePool *pool, const PageList *l, int64_t n) {
    page_pool_share(pool, n, l->page);
    return (PageList){mem_copy(l->page, (size_t)n * sizeof *l->page), n};
}

void engine_fork(Engine *e, int64_t id, int64_t copy) {
    remove_ended(e);
    const Live *from = running(e, id);
    const int64_t full = from->computed / e->limits.page;
    Live *live = mem_copy(from, sizeof *from);
    live->request.id = copy;
    request_copy(&live->request);
    live->tokens = mem_copy(from->tokens, (size_t)(from->n_first + from->request.max_new_tokens + 1) *
                                              sizeof *from->tokens);
    live->encoder_pages = shared_pages(e->encoder_pages, &from->encoder_pages, from->encoder_pages.n);
    live->pages = shared_pages(e->pages, &from->pages, full);
    CHECK(e->running.n < e->limits.requests && extend(e, live, live->computed),
          "there is no room for a copy of the request");
    const CacheShape shape = cache_shape(e->model, e->context, &e->limits);
    if (live->pages.n > full)
        cache_copy_page(e->model, &shape, &e->cache, EXTENT_POSITIONS, from->pages.page[full],
                        live->pages.page[full]);
    live->state = (PageList){NULL, 0};
    take_state(e, live);
    if (live->state.n)
        cache_copy_page(e->model, &shape, &e->cache, EXTENT_SAMPLES, *from->state.page, *live->state.page);
    list_insert(&e->running, e->running.n, live);
}

/* ---- memory of the pools ---- */

void engine_suspend(Engine *e) {
    const CacheShape shape = cache_shape(e->model, e->context, &e->limits);
    if (e->limits.suspended == KV_PERSIST) return;
    if (e->limits.suspended == KV_OFFLOAD)
        kept_pages_save(e, &shape);
    else
        engine_forget(e);
    pass_close(e); /* graphs contain the pools' addresses */
    speculation_release(e);
    cache_free(e->model, &e->cache);
}

void engine_wake(Engine *e) {
    const CacheShape shape = cache_shape(e->model, e->context, &e->limits);
    if (e->limits.suspended == KV_PERSIST) return;
    e->cache = cache_new(e->model, &shape);
    speculation_allocate(e);
    kept_pages_restore(e, &shape);
}

bool engine_step(Engine *e, EngineSink *sink, void *arg) {
    plan_pass(e);
    if (!has_work(e)) return false;
    speculation_draft(e);
    const Pass pass = {
        .model = e->model, .tape = e->tape, .cache = &e->cache, .share = e->share, .n = e->n_shares};
    take_results(e, pass_run(e, &pass), sink, arg);
    remove_ended(e);
    e->passes++;
    return true;
}

EngineCounts engine_counts(const Engine *e) {
    return (EngineCounts){e->waiting.n,     e->running.n,   page_pool_available(e->pages),
                          e->passes,        e->preemptions, e->shared,
                          e->limits.pages,  e->drafts,      e->accepted,
                          e->prompt_tokens, e->model_ns,    e->weights};
}

/* ---- the engine ---- */

double engine_cache_bytes(const Model *m, const RunContext *c, const EngineLimits *l) {
    const CacheShape shape = cache_shape(m, c, l);
    double most = cache_bytes(m, &shape) + speculation_bytes(m, c, l);
    if (c->comm) comm_all_reduce(c->comm, comm_everyone(c->comm), "cache_bytes", COMM_MAX, F64, &most, 1);
    return most;
}

double engine_state_bytes(const Model *m, const RunContext *c, int64_t requests) {
    if (!cache_has_states(m)) return 0;
    const EngineLimits some = {.page = PAGE_ROWS, .requests = requests}, none = {.page = PAGE_ROWS};
    return engine_cache_bytes(m, c, &some) - engine_cache_bytes(m, c, &none);
}

static double memory_of(const RunContext *c) {
    return (double)device_memory_available(c->device) / (double)rank_sharing(c->comm, c->device);
}

double engine_room(const RunContext *c) {
    double least = memory_of(c);
    if (c->comm) comm_all_reduce(c->comm, comm_everyone(c->comm), "engine_room", COMM_MIN, F64, &least, 1);
    return least / 2;
}

/* Checks that the memory suffices for the pools and for a pass that needs the logits of all its tokens. */
static Err check_memory(const Model *m, const RunContext *c, const EngineLimits *l) {
    const double cache = engine_cache_bytes(m, c, l),
                 logits = (double)l->tokens * (double)m->plan.head->width * (double)dtype_size(c->dtype),
                 have = memory_of(c);
    if (cache + logits <= have) return ERR_OK;
    return err_user(
        "the KV cache (%s of %s) needs %s, and a pass's logits need %s, but only %s are available; lower "
        "--tokens-to-generate, or generate for fewer or shorter prompts at a time",
        amount(l->pages + l->encoder_pages, "page").s, amount(l->page, "token").s, bytes_text(cache).s,
        bytes_text(logits).s, bytes_text(have).s);
}

Err engine_new(const Model *m, const RunContext *c, const EngineLimits *l, Engine **out) {
    if (l->speculation.tokens && c->layout && c->layout->mesh.size[AXIS_PP] > 1)
        return err_user("speculation does not support pipeline parallelism: remove "
                        "--pipeline-model-parallel-size, or generate without drafts");
    if (l->speculation.tokens && pass_joins(m, c))
        return err_user(
            "replicas that share experts cannot speculate, because they would need passes at "
            "different times: set --ranks to the number of ranks in one replica, or generate without drafts");
    const bool states = cache_has_states(m);
    if (l->speculation.tokens && (states || (l->speculation.model && cache_has_states(l->speculation.model))))
        return err_user("speculation does not support Mamba-2 and Gated DeltaNet layers, because a state "
                        "cannot return to an "
                        "earlier token after a rejected draft: generate without drafts");
    speculation_check(m, c, &l->speculation);
    CHECK(l->page % PAGE_ROWS == 0 && l->tokens >= l->requests && l->requests > 0,
          "invalid limits of an engine: pages of %lld rows, %lld requests and passes of %lld tokens",
          (long long)l->page, (long long)l->requests, (long long)l->tokens);
    ERR_RETURN(comm_agree(c->comm, check_memory(m, c, l)));
    const CacheShape shape = cache_shape(m, c, l);
    const size_t vocab = (size_t)m->plan.vocab;
    Engine *e = *out = mem_zero(1, sizeof *e);
    *e = (Engine){.model = m,
                  .context = c,
                  .limits = *l,
                  .pages = page_pool_new(l->pages),
                  .encoder_pages = page_pool_new(l->encoder_pages),
                  .states = page_pool_new(states ? l->requests : 0),
                  .share = mem_zero((size_t)l->requests, sizeof *e->share),
                  .cache = cache_new(m, &shape),
                  .slot = space_new(c->device, "activation", SPACE_UNPLANNED),
                  .transient = space_new(c->device, "transient", SPACE_UNPLANNED),
                  .row = mem_alloc(vocab * sizeof *e->row),
                  .scratch = mem_alloc(vocab * sizeof *e->scratch)};
    e->tape = tape_new(c, e->slot, e->transient);
    e->limits.shares_prefixes &= !states; /* pages do not contain the states after their tokens */
    speculation_open(e);
    return ERR_OK;
}

static void free_all(Engine *e, LiveList *l) {
    while (l->n) live_free(e, list_remove(l, l->n - 1));
    free(l->at);
}

void engine_free(Engine *e) {
    free_all(e, &e->waiting), free_all(e, &e->running);
    speculation_close(e);
    pass_close(e);
    kept_pages_free(e);
    tape_free(e->tape);
    space_free(e->slot), space_free(e->transient);
    cache_free(e->model, &e->cache);
    page_pool_free(e->pages), page_pool_free(e->encoder_pages), page_pool_free(e->states);
    free(e->share), free(e->row), free(e->scratch), free(e->likeliest), free(e);
}
