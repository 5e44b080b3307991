/* Speculation: drafts the requests' next tokens, which the next pass checks.
 *
 * Drafts are computed in rounds. With MTP layers, round k runs the stack at depth k. Row i of this round
 * depends on the tokens up to i + k and on the previous stack's output at row i. The stacks' outputs are
 * stored in pages, so a stack can run separately from the model. With a draft model, round 1 processes the
 * tokens that this model has not read, and each later round processes a draft. Draft rows have the same pages
 * and positions as the model's rows, so a request needs only one page list, and requests that share pages
 * also share draft rows.
 *
 * Megatron-LM core/inference/text_generation_controllers/text_generation_controller.py also keeps a draft if it equals
 * the token that the model chooses. Here, a draft is itself chosen with its position's random number, so it is always
 * kept if its probabilities equal the model's. */
#include <stdlib.h>

#include "base/fault.h"
#include "infer/engine_state.h"
#include "models/cache.h"

static const Speculation *spec(const Engine *e) { return &e->limits.speculation; }
static const Model *drafting_model(const Engine *e) { return spec(e)->model ? spec(e)->model : e->model; }

int64_t speculation_most(const Engine *e, const Live *live) {
    const int64_t ends = live->n_first + live->request.max_new_tokens;
    if (live->request.steered) return 0;
    /* the last new token needs no draft, because there is no later token that the pass could check */
    return larger(0, smaller(spec(e)->tokens, smaller(ends, drafting_model(e)->plan.limit) - live->n - 1));
}

/* ---- pages ---- */

/* Returns how many leading rows later tokens cannot change. */
static int64_t final_rows(const Engine *e, int64_t drafted) {
    return spec(e)->model ? drafted : larger(0, drafted - spec(e)->tokens);
}

static void mark_pages(Engine *e, const Live *live, int64_t drafted) {
    const int64_t page = e->limits.page, end = final_rows(e, drafted) / page;
    for (int64_t i = final_rows(e, live->drafted) / page; i < end; i++)
        e->drafter.drafted[live->pages.page[i]] = true;
}

void speculation_share(const Engine *e, Live *live, int64_t page) {
    if (spec(e)->tokens && live->drafted == live->computed && e->drafter.drafted[page])
        live->drafted += e->limits.page;
}

/* ---- rounds ---- */

/* Returns a request's rows in a round; n <= 0 means no rows. If all tokens have been read, the last row produces a
 * draft. */
static Share share_of(const Engine *e, Live *live, int64_t round) {
    const bool complete = live->drafting == live->n;
    int64_t first = live->drafted, end = live->drafting;
    if (!spec(e)->model)
        first = larger(0, first - round), end--;
    else if (round > 1)
        first = live->n + round - 2, end = complete ? first + 1 : first;
    return (Share){live, first, end - first, complete ? end - 1 : INT64_MAX};
}

static void take_drafts(Engine *e, const Pass *p, Tensor logits, int64_t round) {
    int64_t at = 0;
    for (const Share *s = p->share; s < p->share + p->n; s++) {
        if (s->wanted == INT64_MAX) continue;
        const int64_t index = s->live->n + round - 1;
        const Chosen *made = &e->choice[at];
        if (!choice_is_made(s->live, index)) choice_read_row(e, &logits, at);
        /* if logits are not finite or no token is allowed, any draft is acceptable, because the model decides */
        s->live->tokens[index] =
            made->token < 0 ? 0 : (int32_t)larger(0, choice_token(e, s->live, index, made));
        at++;
    }
}

static void run_round(Engine *e, int64_t round) {
    Drafter *d = &e->drafter;
    const int depth = spec(e)->model ? 0 : (int)round;
    Pass p = {.model = drafting_model(e),
              .tape = d->tape,
              .depth = depth,
              .cache = &d->cache[depth ? depth - 1 : 0],
              .before = depth > 1 ? d->cache[depth - 2].output : e->cache.output,
              .share = d->share};
    for (const Share *s = e->share; s < e->share + e->n_shares; s++) {
        d->share[p.n] = share_of(e, s->live, round);
        p.n += s->live->drafts >= round && d->share[p.n].n > 0;
    }
    if (p.n) take_drafts(e, &p, pass_run(e, &p), round);
}

void speculation_draft(Engine *e) {
    int64_t rest = e->limits.tokens, rounds = 0;
    for (Share *s = e->share; s < e->share + e->n_shares; s++) {
        Live *live = s->live;
        if (!live->drafts) continue;
        live->drafting = smaller(live->n, live->drafted + rest);
        rest -= live->drafting - live->drafted;
        rounds = larger(rounds, live->drafts);
    }
    for (int64_t round = 1; round <= rounds; round++) run_round(e, round);
    for (Share *s = e->share; s < e->share + e->n_shares; s++) {
        Live *live = s->live;
        if (!live->drafts) continue;
        mark_pages(e, live, live->drafting);
        live->drafted = live->drafting;
        /* the next steps compute the remaining rows */
        if (live->drafted < live->n) s->n -= live->drafts, live->drafts = 0;
        e->drafts += live->drafts;
    }
}

/* ---- caches ---- */

static int caches_of(const Speculation *s) { return s->model && s->tokens ? 1 : (int)s->tokens; }

static CacheShape shape_of(const Model *m, const RunContext *c, const EngineLimits *l, int cache) {
    const Speculation *s = &l->speculation;
    if (s->model) m = s->model, c = s->context;
    return (CacheShape){.dtype = c->dtype,
                        .page = l->page,
                        .pages = l->pages + pass_spare_pages(m, c, l->page),
                        .depth = s->model ? 0 : cache + 1,
                        .outputs = cache + 1 < caches_of(s)};
}

double speculation_bytes(const Model *m, const RunContext *c, const EngineLimits *l) {
    double bytes = 0;
    for (int i = 0; i < caches_of(&l->speculation); i++) {
        const CacheShape shape = shape_of(m, c, l, i);
        bytes += cache_bytes(l->speculation.model ? l->speculation.model : m, &shape);
    }
    return bytes;
}

size_t speculation_copy_pages(Engine *e, const CachePages *pages, CacheCopy copy, char *host, size_t at) {
    Drafter *d = &e->drafter;
    for (int i = 0; i < d->caches; i++) {
        const CacheShape shape = shape_of(e->model, e->context, &e->limits, i);
        at = cache_copy_pages(drafting_model(e), &shape, &d->cache[i], pages, copy, host, at);
    }
    return at;
}

void speculation_check(const Model *m, const RunContext *c, const Speculation *s) {
    if (!s->tokens) return;
    const bool ahead = !s->model && m->plan.n_heads > s->tokens,
               other = s->model && s->context->device == c->device && s->model->plan.vocab == m->plan.vocab;
    CHECK(!m->plan.sample.encoder && (ahead || other), "the model cannot draft %lld tokens with %d heads",
          (long long)s->tokens, m->plan.n_heads);
}

void speculation_allocate(Engine *e) {
    Drafter *d = &e->drafter;
    d->caches = caches_of(spec(e));
    for (int i = 0; i < d->caches; i++) {
        const CacheShape shape = shape_of(e->model, e->context, &e->limits, i);
        d->cache[i] = cache_new(drafting_model(e), &shape);
    }
}

void speculation_release(Engine *e) {
    Drafter *d = &e->drafter;
    for (int i = 0; i < d->caches; i++) cache_free(drafting_model(e), &d->cache[i]);
    d->caches = 0;
}

void speculation_open(Engine *e) {
    Drafter *d = &e->drafter;
    if (!spec(e)->tokens) return;
    d->tape = tape_new(spec(e)->model ? spec(e)->context : e->context, e->slot, e->transient);
    speculation_allocate(e);
    d->share = mem_zero((size_t)e->limits.requests, sizeof *d->share);
    d->drafted = mem_zero((size_t)e->limits.pages, sizeof *d->drafted);
}

void speculation_close(Engine *e) {
    Drafter *d = &e->drafter;
    speculation_release(e);
    if (d->tape) tape_free(d->tape);
    free(d->share), free(d->drafted);
}
