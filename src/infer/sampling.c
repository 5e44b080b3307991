#include "infer/sampling.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void sampling_copy(Sampling *s) {
    s->bias = mem_copy(s->bias, (size_t)s->n_bias * sizeof *s->bias);
    s->allowed = mem_copy(s->allowed, (size_t)s->n_allowed * sizeof *s->allowed);
    s->bad = mem_copy(s->bad, (size_t)s->n_bad * sizeof *s->bad);
}

void sampling_free(Sampling *s) { free((void *)s->bias), free((void *)s->allowed), free((void *)s->bad); }

static bool penalizes(const Sampling *s) {
    return s->presence != 0 || s->frequency != 0 || (s->repetition > 0 && s->repetition != 1);
}

bool sampling_adjusts(const Sampling *s) { return s->n_bias || s->n_allowed || s->n_bad || penalizes(s); }

static void keep_allowed(const Sampling *s, double *logits, int64_t vocab) {
    bool *allowed = mem_zero((size_t)vocab, sizeof *allowed);
    for (int64_t i = 0; i < s->n_allowed; i++) allowed[s->allowed[i]] = true;
    for (int64_t i = 0; i < vocab; i++)
        if (!allowed[i]) logits[i] = -INFINITY;
    free(allowed);
}

/* If the n new tokens end with all tokens of a bad sequence except the last, excludes that last token. */
static void exclude_bad(const Sampling *s, const int32_t *fresh, int64_t n, double *logits) {
    for (int64_t at = 0; at < s->n_bad; at += 1 + s->bad[at]) {
        const int64_t before = s->bad[at] - 1;
        const int32_t *bad = s->bad + at + 1;
        if (before <= n && !memcmp(fresh + n - before, bad, (size_t)before * sizeof *bad))
            logits[bad[before]] = -INFINITY;
    }
}

void sampling_adjust(const Sampling *s, const int32_t *tokens, int64_t n, int64_t n_prompt, double *logits,
                     int64_t vocab) {
    if (s->n_allowed) keep_allowed(s, logits, vocab);
    exclude_bad(s, tokens + n_prompt, n - n_prompt, logits);
    for (const TokenBias *b = s->bias; b < s->bias + s->n_bias; b++) logits[b->id] += b->bias;
    const double repetition = s->repetition > 0 ? s->repetition : 1;
    if (!penalizes(s)) return;
    bool *seen = mem_zero((size_t)vocab, sizeof *seen), *fresh = mem_zero((size_t)vocab, sizeof *fresh);
    for (int64_t i = 0; i < n; i++) {
        double *x = &logits[tokens[i]];
        if (!seen[tokens[i]]) *x = *x > 0 ? *x / repetition : *x * repetition;
        seen[tokens[i]] = true;
    }
    for (int64_t i = n_prompt; i < n; i++) {
        logits[tokens[i]] -= fresh[tokens[i]] ? s->frequency : s->frequency + s->presence;
        fresh[tokens[i]] = true;
    }
    free(seen), free(fresh);
}

ChoiceRow sampling_row(const Sampling *s, double uniform) {
    return (ChoiceRow){.rate = s->temperature > 0 ? fmin(1 / s->temperature, DBL_MAX) : 0,
                       .least = s->min_p > 0 ? log(s->min_p) : -INFINITY,
                       .top_p = s->top_p,
                       .uniform = uniform,
                       .top_k = s->top_k};
}

int64_t sampling_choose(const Sampling *s, const double *logits, int64_t n, double uniform) {
    const ChoiceRow row = sampling_row(s, uniform);
    return choice_make(logits, n, &row).token;
}

double sampling_logprob(const double *logits, int64_t n, int64_t id) {
    const Chosen c = choice_make(logits, n, &(ChoiceRow){.known = 1, .token = id, .sums = 1});
    return choice_logprob(&c, n);
}

void sampling_likeliest(const double *logits, int64_t n, int64_t k, LikelyToken *out) {
    Chosen c = choice_make(logits, n, &(ChoiceRow){.sums = 1});
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = have < k ? have++ : k;
        for (; at > 0 && logits[out[at - 1].id] < logits[i]; at--)
            if (at < k) out[at] = out[at - 1];
        if (at < k) out[at].id = (int32_t)i;
    }
    for (LikelyToken *t = out; t < out + k; t++) c.logit = logits[t->id], t->logprob = choice_logprob(&c, n);
}
