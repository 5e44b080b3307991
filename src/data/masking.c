#include "data/masking.h"

#include <math.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/blend.h"

enum { MAX_NGRAM = 16 };
static const double GEOMETRIC_P = 0.2;

Masking masking_new(int64_t capacity) {
    const size_t n = (size_t)capacity;
    return (Masking){.tokens = mem_zero(n, sizeof(int64_t)),
                     .words = mem_zero(n + 1, sizeof(int64_t)),
                     .spans = mem_zero(n, sizeof(MaskSpan)),
                     .is_masked = mem_zero(n, sizeof(bool))};
}

void masking_free(Masking *m) {
    free(m->tokens), free(m->words), free(m->spans), free(m->is_masked);
    *m = (Masking){0};
}

static void find_words(Masking *m, const MaskTokens *t, const int64_t *text, int64_t n) {
    int64_t count = 0;
    m->num_words = 0;
    for (int64_t i = 0; i < n; i++) {
        m->is_masked[i] = false;
        if (text[i] == t->cls || text[i] == t->sep) continue;
        if (!m->num_words || !t->continues || !t->continues[text[i]]) m->words[m->num_words++] = count;
        m->tokens[count++] = i;
    }
    m->words[m->num_words] = count;
}

/* Computes the cumulative probabilities that numpy's choice uses to draw n from 1 .. max with probability proportional
 * to 1/n. As in numpy, the probabilities are normalized twice, so that the results are bitwise equal. */
static void ngram_thresholds(int max_ngram, double out[MAX_NGRAM]) {
    CHECK(max_ngram >= 1 && max_ngram <= MAX_NGRAM, "n-grams of up to %d words are not supported", max_ngram);
    for (int i = 0; i < max_ngram; i++) out[i] = 1.0 / (i + 1);
    blend_normalize(out, max_ngram);
    blend_normalize(out, max_ngram);
    for (int i = 1; i < max_ngram; i++) out[i] += out[i - 1];
    for (int i = 0; i < max_ngram; i++) out[i] /= out[max_ngram - 1];
}

static int64_t draw_ngram(const MaskingConfig *c, const double *thresholds, Mt19937 *rng) {
    if (c->geometric) {
        int64_t n = mt19937_geometric(rng, GEOMETRIC_P);
        return n < 1 ? 1 : n > c->max_ngram ? c->max_ngram : n;
    }
    const double u = mt19937_double(rng);
    int64_t n = 1;
    while (n < c->max_ngram && thresholds[n - 1] <= u) n++;
    return n;
}

/* Returns the tokens of the n words from `word` on, or of all remaining words if there are fewer. */
static MaskSpan ngram(const Masking *m, int64_t word, int64_t n) {
    const int64_t end = word + n < m->num_words ? word + n : m->num_words;
    return (MaskSpan){m->words[word], m->words[end] - m->words[word]};
}

static int64_t replacement(const MaskTokens *t, int64_t token, Mt19937 *rng) {
    if (mt19937_double(rng) < 0.8) return t->mask;
    if (mt19937_double(rng) < 0.5) return token;
    return (int64_t)mt19937_bounded(rng, (uint64_t)t->vocab_size - 1);
}

static bool overlaps(const Masking *m, MaskSpan span) {
    for (int64_t i = 0; i < span.count; i++)
        if (m->is_masked[m->tokens[span.begin + i]]) return true;
    return false;
}

static int by_position(const void *a, const void *b) {
    const int64_t x = ((const MaskSpan *)a)->begin, y = ((const MaskSpan *)b)->begin;
    return (x > y) - (x < y);
}

void masking_choose(Masking *m, const MaskingConfig *c, const MaskTokens *t, int64_t *text, int64_t n,
                    int64_t target, Mt19937 *rng) {
    double thresholds[MAX_NGRAM];
    ngram_thresholds(c->max_ngram, thresholds);
    find_words(m, t, text, n);
    const double wanted = fmin(c->probability * (double)target, fmax(1, rint((double)n * c->probability)));
    int64_t *order = mem_zero((size_t)m->num_words, sizeof *order);
    for (int64_t i = 0; i < m->num_words; i++) order[i] = i;
    mt19937_shuffle_i64(rng, order, m->num_words);
    m->num_spans = m->masked = 0;
    for (int64_t i = 0; i < m->num_words && (double)m->masked < wanted; i++) {
        int64_t words = draw_ngram(c, thresholds, rng);
        MaskSpan span = ngram(m, order[i], words);
        while (words > 1 && (double)(m->masked + span.count) > wanted) span = ngram(m, order[i], --words);
        if ((double)(m->masked + span.count) > wanted || overlaps(m, span)) continue;
        for (int64_t k = 0; k < span.count; k++) {
            const int64_t position = m->tokens[span.begin + k];
            m->is_masked[position] = true;
            if (c->random_words) text[position] = replacement(t, text[position], rng);
        }
        m->masked += span.count;
        m->spans[m->num_spans++] = span;
    }
    free(order);
    qsort(m->spans, (size_t)m->num_spans, sizeof *m->spans, by_position);
}
