/* Chooses a token from logits. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/philox.h"
#include "infer/engine_state.h"

void choice_read_row(const Engine *e, const Tensor *logits, int64_t i) {
    const DType type = (DType)logits->dtype;
    const size_t n = (size_t)e->model->plan.vocab;
    DeviceView row = device_view(e->context->device, tensor_at(logits, i * logits->stride[0]),
                                 n * dtype_size(type), VIEW_READ);
    dtype_convert(e->row, F64, row.data, type, n);
    device_view_end(&row);
}

static bool may_end(const Live *live, int64_t at) {
    return !live->request.n_ends || at - live->n_first >= live->request.min_new_tokens;
}

bool choice_is_made(const Live *live, int64_t at) {
    return !sampling_adjusts(&live->request.sampling) && !live->grammar && may_end(live, at);
}

static double uniform_of(const Request *r, int64_t at) {
    return philox_uniform(r->seed, hash_name("generate"), r->stream << 32 | (uint64_t)at);
}

ChoiceRow choice_row(const Live *live, int64_t at) {
    const Request *r = &live->request;
    if (at < live->n_first) return (ChoiceRow){.known = 1, .token = live->tokens[at], .sums = 1};
    if (r->steered || !choice_is_made(live, at)) return (ChoiceRow){.rate = 0};
    ChoiceRow row = sampling_row(&r->sampling, uniform_of(r, at));
    row.sums = r->logprobs;
    return row;
}

double choice_logprob_of(const Engine *e, const Chosen *c, int32_t token) {
    const int64_t vocab = e->model->plan.vocab;
    return c->sum && c->token == token ? choice_logprob(c, vocab) : sampling_logprob(e->row, vocab, token);
}

static bool is_end(const Live *live, int64_t id) {
    return engine_ends(live->request.ends, live->request.n_ends, id);
}

Finish choice_finish(const Live *live) {
    bool complete;
    const int64_t n = live->n - live->n_first;
    if (!live->grammar) return FINISH_NONE;
    if (!grammar_next(live->grammar, live->tokens + live->n_first, n, n, &complete)) return FINISH_WIDE;
    return complete ? FINISH_STOP : FINISH_NONE;
}

/* Excludes the tokens that the grammar does not allow. If the text may end, all end tokens are allowed. The tokens from
 * index live->n on are drafts. */
static void keep_grammar(Engine *e, const Live *live, int64_t at) {
    bool complete;
    const int64_t n = at - live->n_first, settled = smaller(at, live->n) - live->n_first;
    const bool *next = grammar_next(live->grammar, live->tokens + live->n_first, n, settled, &complete);
    for (int64_t i = 0; i < e->model->plan.vocab; i++) {
        const bool allowed = next && i < e->limits.vocabulary->size && next[i];
        if (!allowed && !(complete && is_end(live, i))) e->scratch[i] = -INFINITY;
    }
}

/* Copies the logits for token `at` from e->row to e->scratch, and adjusts the copy as the request requires. */
static void adjust(Engine *e, const Live *live, int64_t at) {
    const Request *r = &live->request;
    const int64_t vocab = e->model->plan.vocab;
    memcpy(e->scratch, e->row, (size_t)vocab * sizeof *e->scratch);
    sampling_adjust(&r->sampling, live->tokens, at, live->n_first, e->scratch, vocab);
    if (live->grammar) keep_grammar(e, live, at);
    if (may_end(live, at)) return;
    for (int64_t i = 0; i < r->n_ends; i++)
        if (r->ends[i] >= 0 && r->ends[i] < vocab) e->scratch[r->ends[i]] = -INFINITY;
}

/* Returns whether any token is allowed. The model's logits are finite, so only the adjustments in e->scratch
 * can exclude tokens. */
static bool any_is_allowed(const Engine *e) {
    for (int64_t i = 0; i < e->model->plan.vocab; i++)
        if (e->scratch[i] > -INFINITY) return true;
    return false;
}

int32_t choice_token(Engine *e, const Live *live, int64_t at, const Chosen *made) {
    const Request *r = &live->request;
    if (choice_is_made(live, at)) return (int32_t)made->token;
    adjust(e, live, at);
    if (!any_is_allowed(e)) return -1;
    return (int32_t)sampling_choose(&r->sampling, e->scratch, e->model->plan.vocab, uniform_of(r, at));
}
