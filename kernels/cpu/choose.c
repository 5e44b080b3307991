/* Chooses a token from the first n logits of each row (kernels/choice.h). */
#include "kernels/cpu/real.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernels/choice.h"
#include "kernels/cpu/vector_math.h"

#ifdef REAL_IS_DOUBLE
static uint64_t weight_of(double x, double scale) { return (uint64_t)llrint(vector_exp(x) * scale); }

typedef struct Ranked {
    double logit;
    uint64_t weight;
    int64_t id;
} Ranked;

/* Orders tokens for qsort: likelier tokens first; among equally likely tokens, the lower id comes first. */
static int compare(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

typedef struct Row {
    const double *logits;
    double *scaled;   /* [n]: rate * (logit - largest logit) */
    uint64_t *weight; /* [n]: 0 for tokens that cannot be chosen */
    int64_t n;
} Row;

/* Returns the likeliest tokens, likeliest first. The number of these tokens (if `counts` is true) or the sum of
 * their weights exceeds the limit. */
static Ranked *rank(const Row *r, bool counts, uint64_t limit) {
    Ranked *all = mem_alloc((size_t)r->n * sizeof *all);
    for (double range = 8;; range *= range) {
        uint64_t sum = 0;
        int64_t n = 0;
        for (int64_t i = 0; i < r->n; i++) {
            if (r->scaled[i] < -range) continue;
            all[n++] = (Ranked){r->logits[i], r->weight[i], i};
            sum += counts ? 1 : r->weight[i];
        }
        if (sum <= limit) continue;
        qsort(all, (size_t)n, sizeof *all, compare);
        return all;
    }
}

/* Keeps the likeliest tokens, up to and including the first token at which the running number of tokens (if
 * `counts` is true) or the running sum of weights exceeds the limit. The number or the total weight of all
 * tokens must exceed the limit. If `counts` is true, tokens that are as likely as the last kept token are kept
 * too. */
static void keep(Row *r, bool counts, uint64_t limit) {
    Ranked *all = rank(r, counts, limit), *last = all;
    for (uint64_t sum = 0; (sum += counts ? 1 : last->weight) <= limit;) last++;
    const Ranked edge = {last->logit, 0, counts ? r->n : last->id};
    for (int64_t i = 0; i < r->n; i++)
        if (compare(&edge, &(Ranked){r->logits[i], 0, i}) < 0) r->weight[i] = 0;
    free(all);
}

static uint64_t sum_of(const Row *r) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < r->n; i++) sum += r->weight[i];
    return sum;
}

static int64_t draw(const double *logits, int64_t n, const ChoiceRow *how, double top) {
    const double scale = choice_scale(n);
    Row r = {logits, mem_alloc((size_t)n * sizeof *r.scaled), mem_alloc((size_t)n * sizeof *r.weight), n};
    for (int64_t i = 0; i < n; i++) r.scaled[i] = (logits[i] - top) * how->rate;
    for (int64_t i = 0; i < n; i++)
        r.weight[i] = r.scaled[i] < how->least ? 0 : weight_of(r.scaled[i], scale);
    if (how->top_k > 0 && how->top_k < n) keep(&r, true, (uint64_t)how->top_k - 1);
    uint64_t total = sum_of(&r);
    if (how->top_p > 0 && choice_part(how->top_p, total) < total) {
        keep(&r, false, choice_part(how->top_p, total));
        total = sum_of(&r);
    }
    uint64_t target = choice_part(how->uniform, total), sum = r.weight[0];
    if (target == total) target--; /* the product uniform * total was rounded up */
    int64_t i = 0;
    while (sum <= target) sum += r.weight[++i];
    free(r.scaled), free(r.weight);
    return i;
}

Chosen choice_make(const double *logits, int64_t n, const ChoiceRow *how) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    Chosen c = {.token = best, .top = logits[best]};
    if (how->known)
        c.token = how->token;
    else if (how->rate > 0 && how->top_k != 1)
        c.token = draw(logits, n, how, c.top);
    c.logit = logits[c.token];
    const double scale = choice_scale(n);
    for (int64_t i = 0; how->sums && i < n; i++) c.sum += weight_of(logits[i] - c.top, scale);
    return c;
}

double choice_logprob(const Chosen *c, int64_t n) {
    return c->logit - c->top - log((double)c->sum / choice_scale(n));
}
#endif

static void choose_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t n = ((const ChooseAttr *)c->attr)->n;
    const ChoiceRow *how = c->in[1]->data;
    Chosen *choice = c->out[0]->data;
    double *logits = mem_alloc((size_t)n * sizeof *logits);
    for (int64_t row = begin; row < end; row++) {
        const real *x = reals(c->in[0]) + row * tensor_width(c->in[0]);
        real outside = 0; /* NaN if an element is not finite */
        for (int64_t i = 0; i < n; i++) outside += x[i] * 0, logits[i] = x[i];
        CHECK(!how[row].known || (how[row].token >= 0 && how[row].token < n),
              "choose: token %lld is outside the vocabulary of size %lld", (long long)how[row].token,
              (long long)n);
        choice[row] = outside == 0 ? choice_make(logits, n, &how[row]) : (Chosen){.token = -1};
    }
    free(logits);
}

void KERNEL(choose)(const Call *c) {
    const int64_t n = ((const ChooseAttr *)c->attr)->n;
    CHECK(n > 0 && n <= tensor_width(c->in[0]), "choose: n is %lld, but a row has %lld elements",
          (long long)n, (long long)tensor_width(c->in[0]));
    pool_for(c->device->pool, tensor_rows(c->in[0]), 1, choose_rows, (void *)c);
}
