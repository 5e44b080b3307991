#include "infer/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int64_t argmax(const double *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

typedef struct Ranked {
    double logit;
    int64_t id;
} Ranked;

static int descending(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static Ranked *rank(const double *logits, int64_t n) {
    Ranked *r = mem_alloc((size_t)n * sizeof *r);
    for (int64_t i = 0; i < n; i++) r[i] = (Ranked){logits[i], i};
    qsort(r, (size_t)n, sizeof *r, descending);
    return r;
}

static void keep_top_k(double *logits, int64_t n, int64_t k) {
    Ranked *r = rank(logits, n);
    double threshold = r[k - 1].logit;
    for (int64_t i = 0; i < n; i++)
        if (logits[i] < threshold) logits[i] = -INFINITY;
    free(r);
}

static void keep_nucleus(double *logits, int64_t n, double p) {
    Ranked *r = rank(logits, n);
    double sum = 0, before = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(r[i].logit - r[0].logit);
    for (int64_t i = 0; i < n; i++) {
        double probability = exp(r[i].logit - r[0].logit) / sum;
        if (i > 0 && before > p) logits[r[i].id] = -INFINITY;
        before += probability;
    }
    free(r);
}

/* After the division by the temperature and the subtraction of the largest logit, which is 0. */
static void keep_likely(double *logits, int64_t n, double p) {
    const double least = log(p);
    for (int64_t i = 0; i < n; i++)
        if (logits[i] < least) logits[i] = -INFINITY;
}

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

/* Excludes the last token of each bad sequence whose other tokens end the n new tokens. */
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

int64_t sampling_choose(const Sampling *s, double *logits, int64_t n, double uniform) {
    int64_t best = argmax(logits, n);
    if (s->temperature == 0 || s->top_k == 1) return best;
    double top = logits[best];
    for (int64_t i = 0; i < n; i++) logits[i] = (logits[i] - top) / s->temperature;
    if (s->min_p > 0) keep_likely(logits, n, s->min_p);
    if (s->top_k > 0 && s->top_k < n) keep_top_k(logits, n, s->top_k);
    if (s->top_p > 0) keep_nucleus(logits, n, s->top_p);
    double sum = 0, running = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(logits[i]);
    for (int64_t i = 0; i < n; i++) {
        running += exp(logits[i]);
        if (running > uniform * sum) return i;
    }
    return best; /* reached only if uniform * sum was rounded up to the sum */
}

/* log softmax(logits)[id] is logits[id] - top - log_sum. */
typedef struct Normal {
    double top, log_sum;
} Normal;

static Normal normal_of(const double *logits, int64_t n) {
    const double top = logits[argmax(logits, n)];
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(logits[i] - top);
    return (Normal){top, log(sum)};
}

double sampling_logprob(const double *logits, int64_t n, int64_t id) {
    const Normal normal = normal_of(logits, n);
    return logits[id] - normal.top - normal.log_sum;
}

void sampling_likeliest(const double *logits, int64_t n, int64_t k, LikelyToken *out) {
    const Normal normal = normal_of(logits, n);
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = have < k ? have++ : k;
        for (; at > 0 && logits[out[at - 1].id] < logits[i]; at--)
            if (at < k) out[at] = out[at - 1];
        if (at < k) out[at] = (LikelyToken){(int32_t)i, logits[i] - normal.top - normal.log_sum};
    }
}
