#include "infer/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/amount.h"

enum { PAGE = 64 };

static bool has_encoder(const Model *m) { return m->plan.sample.encoder > 0; }

/* The number of pages of the decoder, or of the encoder, that a prompt needs. */
static int64_t decoder_pages(const Model *m, const Prompt *p, const GenerateOptions *o) {
    return engine_pages((has_encoder(m) ? 1 : p->n) + o->max_new_tokens, PAGE);
}
static int64_t encoder_pages(const Model *m, const Prompt *p) {
    return has_encoder(m) ? engine_pages(p->n, PAGE) : 0;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* All prompts run at the same time if there is room for their pages. Otherwise some wait, but the largest must fit. */
static EngineLimits limits_for(const Model *m, const RunContext *c, const Prompt *prompts, int64_t n,
                               const GenerateOptions *o) {
    const int64_t checked = 1 + o->speculation.tokens; /* tokens of a request in a pass */
    int64_t all = 0, all_encoder = 0, most = 0, most_encoder = 0, longest = checked;
    for (int64_t i = 0; i < n; i++) {
        const int64_t pages = decoder_pages(m, &prompts[i], o), encoder = encoder_pages(m, &prompts[i]);
        all += pages, all_encoder += encoder;
        most = larger(most, pages), most_encoder = larger(most_encoder, encoder);
        longest = larger(longest, prompts[i].n);
    }
    EngineLimits l = {.page = PAGE,
                      .pages = all,
                      .shares_prefixes = true,
                      .encoder_pages = all_encoder,
                      .requests = smaller(n, ENGINE_PASS_TOKENS / checked),
                      .speculation = o->speculation};
    l.tokens =
        larger(l.requests * checked, longest < ENGINE_PASS_TOKENS / n ? n * longest : ENGINE_PASS_TOKENS);
    const double share = engine_cache_bytes(m, c, &l) / engine_room(c);
    if (share > 1) {
        l.pages = larger((int64_t)((double)all / share), most);
        l.encoder_pages = larger((int64_t)((double)all_encoder / share), most_encoder);
    }
    return l;
}

/* ---- the sink of the engine's events ---- */

typedef struct Session {
    Engine *engine;
    const GenerateOptions *options;
    Generated *out;
    Err error;
} Session;

static void take_event(void *arg, const EngineEvent *event) {
    Session *s = arg;
    const GenerateOptions *o = s->options;
    Generated *g = &s->out[event->id];
    switch (event->kind) {
    case EVENT_PROMPT:
        g->logprobs[event->index - 1] = event->logprob;
        break;
    case EVENT_TOKEN:
        g->tokens[event->index] = event->token;
        g->logprobs[event->index - 1] = event->logprob;
        g->n = event->index + 1;
        if (!o->stop || !o->stop(o->stop_arg, event->id, g->tokens, g->n)) break;
        g->stopped = true;
        engine_abort(s->engine, event->id);
        break;
    case EVENT_END:
        g->stopped = event->finish == FINISH_STOP;
        if (event->finish == FINISH_NAN)
            s->error = err_user("the model computes logits that are not finite after %lld tokens of prompt "
                                "%lld; check its parameters, or use a wider type (--lane)",
                                (long long)event->index, (long long)event->id + 1);
    }
}

/* Adds a request. Its result begins with the prompt or, in an encoder-decoder model, with the start token. */
static Err add(Session *s, const Model *m, const Prompt *p, int64_t i) {
    const GenerateOptions *o = s->options;
    const int32_t start = (int32_t)o->start;
    const Request request = {.id = i,
                             .prompt = p->tokens,
                             .n = p->n,
                             .start = start,
                             .sampling = o->sampling,
                             .seed = o->seed,
                             .stream = (uint64_t)i,
                             .max_new_tokens = o->max_new_tokens,
                             .ends = o->ends,
                             .n_ends = o->n_ends,
                             .logprobs = !o->skip_logprobs,
                             .prompt_logprobs = !o->skip_logprobs};
    const Err e = engine_add(s->engine, &request);
    if (e.code) return err_user("prompt %lld: %s", (long long)i + 1, e.msg);
    const int64_t first = has_encoder(m) ? 1 : p->n, room = first + o->max_new_tokens;
    Generated *g = &s->out[i];
    *g = (Generated){.n = first,
                     .n_prompt = first,
                     .tokens = mem_zero((size_t)room, sizeof *g->tokens),
                     .logprobs = mem_zero((size_t)room, sizeof *g->logprobs)};
    memcpy(g->tokens, has_encoder(m) ? &start : p->tokens, (size_t)first * sizeof *g->tokens);
    return ERR_OK;
}

Err generate(const Model *m, const RunContext *context, const Prompt *prompts, int64_t n,
             const GenerateOptions *o, Generated *out) {
    Session s = {.options = o, .out = out};
    const EngineLimits limits = limits_for(m, context, prompts, n, o);
    ERR_RETURN(engine_new(m, context, &limits, &s.engine));
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n && !s.error.code; i++) s.error = add(&s, m, &prompts[i], i);
    while (!s.error.code && engine_step(s.engine, take_event, &s)) continue;
    if (o->counts) *o->counts = engine_counts(s.engine);
    engine_free(s.engine);
    for (int64_t i = 0; i < n && s.error.code; i++) generated_free(&out[i]);
    return s.error;
}

void generated_free(Generated *g) {
    free(g->tokens);
    free(g->logprobs);
    *g = (Generated){0};
}
