#include "infer/beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* A text, stored without the tokens that begin the search. */
typedef struct Text {
    int64_t id; /* the id of the request that computes this text */
    int32_t *tokens;
    double *logprobs, sum, score;
    int64_t n;
    bool stopped;
} Text;

typedef struct Candidate {
    int64_t text; /* index of the open text that the candidate continues */
    LikelyToken next;
    double sum;
} Candidate;

typedef struct Search {
    const GenerateOptions *options;
    BeamOptions beams;
    Engine *engine;
    Text *open, *ended; /* [width]: open texts sorted by sum, finished texts sorted by score */
    int64_t n_open, n_ended;
    Candidate *candidates;           /* [n_candidates] */
    int64_t n_candidates, each, ids; /* each: number of candidates per text; ids: number of requests so far */
    double *prompt_logprobs;
    int64_t most;   /* maximum number of new tokens per text */
    int64_t failed; /* number of tokens before the first logits that were not finite, or 0 */
} Search;

/* ---- texts ---- */

/* Returns the candidate's text, including its token unless that is an end token. */
static Text continued(const Search *s, const Candidate *c, bool stopped) {
    const Text *from = &s->open[c->text];
    Text t = {.id = from->id, .n = from->n + !stopped, .sum = c->sum, .stopped = stopped};
    t.tokens = mem_zero((size_t)from->n + 1, sizeof *t.tokens);
    t.logprobs = mem_zero((size_t)from->n + 1, sizeof *t.logprobs);
    for (int64_t i = 0; i < from->n; i++) t.tokens[i] = from->tokens[i], t.logprobs[i] = from->logprobs[i];
    t.tokens[from->n] = c->next.id, t.logprobs[from->n] = c->next.logprob;
    t.score = t.sum / pow((double)(from->n + 1), s->beams.length_penalty);
    return t;
}

static void text_free(Text *t) { free(t->tokens), free(t->logprobs); }

static void texts_free(Text *t, int64_t n) {
    for (int64_t i = 0; i < n; i++) text_free(&t[i]);
}

/* Adds a text to the finished texts, of which the best `width` are kept. */
static void add_ended(Search *s, Text t) {
    int64_t at = s->n_ended;
    while (at > 0 && s->ended[at - 1].score < t.score) at--;
    if (at == s->beams.width) {
        text_free(&t);
        return;
    }
    if (s->n_ended == s->beams.width) text_free(&s->ended[--s->n_ended]);
    memmove(s->ended + at + 1, s->ended + at, (size_t)(s->n_ended++ - at) * sizeof t);
    s->ended[at] = t;
}

/* ---- a step ---- */

static int likelier(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->sum != y->sum) return x->sum < y->sum ? 1 : -1;
    if (x->text != y->text) return x->text < y->text ? -1 : 1;
    return x->next.id < y->next.id ? -1 : x->next.id > y->next.id;
}

/* Each open text has a request. If a text has no continuation, its request is aborted. A text's first
 * continuation keeps the text's request; each further continuation gets a copy of the request. of[i] is the
 * text that continuation i extends. */
static void continue_requests(Search *s, Text *next, const int64_t *of, int64_t n) {
    for (int64_t i = 0; i < s->n_open; i++) {
        int64_t k = 0;
        while (k < n && of[k] != i) k++;
        if (k == n) engine_abort(s->engine, s->open[i].id);
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t first = 0;
        while (of[first] != of[k]) first++;
        if (first < k) engine_fork(s->engine, s->open[of[k]].id, next[k].id = s->ids++);
    }
    for (int64_t k = 0; k < n; k++) engine_continue(s->engine, next[k].id, next[k].tokens[next[k].n - 1]);
}

/* Replaces the open texts with their most likely continuations. */
static void advance(Search *s) {
    const int64_t width = s->beams.width, length = s->open->n + 1;
    const bool last = length == s->most;
    Text *next = mem_zero((size_t)width, sizeof *next);
    int64_t *of = mem_zero((size_t)width, sizeof *of), n = 0;
    qsort(s->candidates, (size_t)s->n_candidates, sizeof *s->candidates, likelier);
    for (int64_t i = 0; i < s->n_candidates && n < width; i++) {
        const Candidate *c = &s->candidates[i];
        const bool stopped = engine_ends(s->options->ends, s->options->n_ends, c->next.id);
        if (stopped || last) {
            if (i < width) add_ended(s, continued(s, c, stopped));
        } else {
            of[n] = c->text, next[n++] = continued(s, c, false);
        }
    }
    if (n && s->n_ended == width && next->score <= s->ended[width - 1].score) {
        texts_free(next, n);
        n = 0;
    }
    continue_requests(s, next, of, n);
    texts_free(s->open, s->n_open);
    memcpy(s->open, next, (size_t)n * sizeof *next);
    s->n_open = n, s->n_candidates = 0;
    free(next), free(of);
}

static void take_event(void *arg, const EngineEvent *event) {
    Search *s = arg;
    if (event->kind == EVENT_PROMPT) s->prompt_logprobs[event->index - 1] = event->logprob;
    if (event->kind == EVENT_END && event->finish == FINISH_NAN) s->failed = event->index;
    if (event->kind != EVENT_CHOICE) return;
    int64_t text = 0;
    while (s->open[text].id != event->id) text++;
    for (int64_t i = 0; i < s->each; i++) {
        const LikelyToken next = event->likeliest[i];
        s->candidates[s->n_candidates++] = (Candidate){text, next, s->open[text].sum + next.logprob};
    }
}

/* ---- the search ---- */

/* Copies the best text to *out. */
static void take_best(Search *s, const int32_t *first, int64_t n_first, Generated *out) {
    const Text none = {0}, *best = s->n_ended ? s->ended : &none;
    const int64_t n = n_first + best->n;
    *out = (Generated){
        .n = n, .n_prompt = n_first, .stopped = best->stopped, .ended = true, .logprobs = s->prompt_logprobs};
    out->tokens = mem_zero((size_t)n, sizeof *out->tokens);
    memcpy(out->tokens, first, (size_t)n_first * sizeof *first);
    for (int64_t i = 0; i < best->n; i++) {
        out->tokens[n_first + i] = best->tokens[i];
        out->logprobs[n_first + i - 1] = best->logprobs[i];
    }
    s->prompt_logprobs = NULL;
}

/* Searches for the best continuation of prompt i. The generated text begins with the tokens first[n_first]. */
static Err search(Search *s, const Prompt *p, const int32_t *first, int64_t n_first, int64_t i,
                  Generated *out) {
    const GenerateOptions *o = s->options;
    s->most = generate_most_new(o, i);
    const Request request = {.id = s->ids++,
                             .prompt = p->tokens,
                             .n = p->n,
                             .start = (int32_t)o->start,
                             .max_new_tokens = s->most,
                             .prompt_logprobs = !o->skip_logprobs && !o->skip_prompt_logprobs,
                             .steered = true,
                             .likeliest = s->each};
    const Err e = engine_add(s->engine, &request);
    if (e.code) return err_user("prompt %lld: %s", (long long)i + 1, e.msg);
    s->prompt_logprobs = mem_zero((size_t)(n_first + s->most), sizeof *s->prompt_logprobs);
    s->open[0] = (Text){.id = request.id}, s->n_open = 1;
    while (!s->failed && engine_step(s->engine, take_event, s))
        if (s->n_candidates == s->n_open * s->each) advance(s);
    if (!s->failed) take_best(s, first, n_first, out);
    texts_free(s->open, s->n_open), texts_free(s->ended, s->n_ended);
    free(s->prompt_logprobs);
    s->n_open = s->n_ended = 0;
    return s->failed ? generate_not_finite(s->failed, i + 1) : ERR_OK;
}

Err beam_search(const Model *m, const RunContext *context, const Prompt *prompts, int64_t n,
                const GenerateOptions *o, const BeamOptions *beams, Generated *out) {
    const int64_t width = beams->width, kinds = o->n_ends ? 1 + o->n_ends : 2, vocab = m->plan.vocab;
    const int32_t start = (int32_t)o->start;
    const bool encodes = m->plan.sample.encoder > 0;
    int64_t longest = 0, rows = 0; /* longest: length of the longest prompt; rows: rows per text */
    for (int64_t i = 0; i < n; i++) {
        const int64_t all = (encodes ? 1 : prompts[i].n) + generate_most_new(o, i);
        longest = prompts[i].n > longest ? prompts[i].n : longest;
        rows = all > rows ? all : rows;
    }
    const EngineLimits limits = {.page = ENGINE_PAGE,
                                 .pages = width * engine_pages(rows, ENGINE_PAGE),
                                 .encoder_pages = encodes ? engine_pages(longest, ENGINE_PAGE) : 0,
                                 .requests = width,
                                 .tokens = width > ENGINE_PASS_TOKENS ? width : ENGINE_PASS_TOKENS};
    Search s = {.options = o,
                .beams = *beams,
                .each = kinds * width < vocab ? kinds * width : vocab,
                .open = mem_zero((size_t)width, sizeof *s.open),
                .ended = mem_zero((size_t)width, sizeof *s.ended)};
    s.candidates = mem_zero((size_t)(width * s.each), sizeof *s.candidates);
    memset(out, 0, (size_t)n * sizeof *out);
    Err e = engine_new(m, context, &limits, &s.engine);
    const bool opened = !e.code;
    for (int64_t i = 0; i < n && !e.code; i++)
        e = search(&s, &prompts[i], encodes ? &start : prompts[i].tokens, encodes ? 1 : prompts[i].n, i,
                   &out[i]);
    if (opened && o->counts) *o->counts = engine_counts(s.engine);
    if (opened) engine_free(s.engine);
    for (int64_t i = 0; i < n && e.code; i++) generated_free(&out[i]);
    free(s.open), free(s.ended), free(s.candidates);
    return e;
}
