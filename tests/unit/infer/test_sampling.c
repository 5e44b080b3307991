#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unit/cmocka_all.h"

#include "base/mem.h"
#include "base/philox.h"
#include "infer/sampling.h"

enum { VOCAB = 8 };
/* There are two pairs of equal logits: ids 1 and 4 have the largest, ids 2 and 6 the next. */
static const double LOGITS[VOCAB] = {-1, 3, 2, 0.5, 3, -INFINITY, 2, 1};

/* Counts how often each id is drawn if the n uniform numbers are evenly spaced. That is the distribution,
 * with an error of 1/n. */
static void draw_evenly(const Sampling *s, int n, int count[VOCAB]) {
    memset(count, 0, VOCAB * sizeof *count);
    for (int i = 0; i < n; i++) {
        double logits[VOCAB];
        memcpy(logits, LOGITS, sizeof logits);
        int64_t id = sampling_choose(s, logits, VOCAB, (i + 0.5) / n);
        assert_in_range(id, 0, VOCAB - 1);
        count[id]++;
    }
}

/* Asserts that draws are distributed as exp(logit / temperature) over the ids whose bit is set in `kept`,
 * within two draws per id. */
static void expect_distribution(Sampling s, unsigned kept) {
    enum { N = 20000 };
    int count[VOCAB];
    double weight[VOCAB], sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += weight[i] = kept >> i & 1 ? exp(LOGITS[i] / s.temperature) : 0;
    draw_evenly(&s, N, count);
    for (int i = 0; i < VOCAB; i++)
        if (fabs(count[i] - N * weight[i] / sum) > 2)
            fail_msg("id %d is drawn %d times of %d, expected %.1f", i, count[i], N, N * weight[i] / sum);
}

enum { ALL = 0xdf }; /* all but id 5, whose probability is 0 */

TEST(greedy_takes_the_first_of_the_best) {
    static const Sampling GREEDY[] = {
        {.temperature = 0}, {.temperature = 1, .top_k = 1}, {.temperature = 0, .top_p = 0.9}};
    for (int k = 0; k < 3; k++) {
        int count[VOCAB];
        draw_evenly(&GREEDY[k], 50, count);
        assert_int_equal(count[1], 50);
    }
}

TEST(temperature_divides_logits) {
    static const double TEMPERATURES[] = {1, 0.25, 0.01, 3, 100};
    for (int k = 0; k < 5; k++) expect_distribution((Sampling){.temperature = TEMPERATURES[k]}, ALL);
}

TEST(top_k_keeps_ties) {
    expect_distribution((Sampling){.temperature = 1, .top_k = 2}, 1 << 1 | 1 << 4);
    expect_distribution((Sampling){.temperature = 1, .top_k = 3}, 1 << 1 | 1 << 4 | 1 << 2 | 1 << 6);
    expect_distribution((Sampling){.temperature = 0.5, .top_k = 4}, 1 << 1 | 1 << 4 | 1 << 2 | 1 << 6);
    expect_distribution((Sampling){.temperature = 1, .top_k = 5}, 1 << 1 | 1 << 4 | 1 << 2 | 1 << 6 | 1 << 7);
    expect_distribution((Sampling){.temperature = 1, .top_k = 1000}, ALL);
}

/* Megatron-LM drops tokens whose cumulative probability exceeds p, but shifts this mask right by one, so the token that
 * crosses p stays. At temperature 1, the probabilities are 0.3365 for ids 1 and 4, 0.1238 for 2 and 6, 0.0455 for 7,
 * 0.0276 for 3 and 0.0062 for 0. */
TEST(nucleus_keeps_the_token_that_crosses) {
    static const struct {
        double p;
        unsigned kept;
    } CASES[] = {
        {1e-9, 1 << 1},
        {0.336, 1 << 1},
        {0.337, 1 << 1 | 1 << 4},
        {0.672, 1 << 1 | 1 << 4},
        {0.674, 1 << 1 | 1 << 4 | 1 << 2},
        {0.798, 1 << 1 | 1 << 4 | 1 << 2 | 1 << 6},
        {0.93, 1 << 1 | 1 << 4 | 1 << 2 | 1 << 6 | 1 << 7},
        {0.97, 1 << 1 | 1 << 4 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 3},
        {0.9999, ALL},
        {1, ALL},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        expect_distribution((Sampling){.temperature = 1, .top_p = CASES[i].p}, CASES[i].kept);
    /* the temperature is applied first: at 0.25, the two best ids have a probability of 0.49 each */
    expect_distribution((Sampling){.temperature = 0.25, .top_p = 0.5}, 1 << 1 | 1 << 4);
}

/* As in Megatron-LM, a token is dropped if the sum before it is above p. Sums of powers of 2 are exact. */
TEST(a_sum_of_exactly_p_keeps_the_next_token) {
    static const struct {
        double p, uniform;
        int64_t id;
    } CASES[] = {{0.5, 0.75, 1},
                 {0.5 - 0x1p-53, 0.75, 0},
                 {0.75, 0.875, 3},
                 {0.75 - 0x1p-53, 0.875, 2},
                 /* A uniform number that equals a token's share selects the next token. */
                 {0.5, 0.5, 1},
                 {0.5, 0.5 - 0x1p-53, 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        double logits[] = {0, 0, -INFINITY, -INFINITY};
        if (CASES[i].p > 0.5) logits[2] = logits[3] = 0;
        assert_int_equal(
            sampling_choose(&(Sampling){.temperature = 1, .top_p = CASES[i].p}, logits, 4, CASES[i].uniform),
            CASES[i].id);
    }
}

TEST(extreme_uniforms_stay_in_the_vocabulary) {
    static const double UNIFORM[] = {0x1p-54, 1 - 0x1p-53};
    for (int k = 0; k < 2; k++) {
        double logits[VOCAB] = {0, 0, 0, 0, 0, 0, 0, -800};
        int64_t id = sampling_choose(&(Sampling){.temperature = 1}, logits, VOCAB, UNIFORM[k]);
        assert_int_equal(id, k ? 6 : 0); /* the probability of id 7 rounds to 0 in double */
    }
}

/* Uses real random numbers. Pearson's statistic of draws from 7 possible ids has mean 6 and variance 12. It
 * exceeds 6 + 6 sqrt(12) with probability 1e-4, and the seed is fixed, so the test does not fail by
 * chance. */
TEST(random_draws_pass_chi_square) {
    enum { N = 100000 };
    int count[VOCAB] = {0};
    double weight[VOCAB], sum = 0, chi2 = 0;
    for (int i = 0; i < VOCAB; i++) sum += weight[i] = exp(LOGITS[i]);
    for (int i = 0; i < N; i++) {
        double logits[VOCAB];
        memcpy(logits, LOGITS, sizeof logits);
        count[sampling_choose(&(Sampling){.temperature = 1}, logits, VOCAB,
                              philox_uniform(1234, 5, (uint64_t)i))]++;
    }
    for (int i = 0; i < VOCAB; i++) {
        double expected = N * weight[i] / sum;
        if (expected > 0) chi2 += (count[i] - expected) * (count[i] - expected) / expected;
    }
    assert_int_equal(count[5], 0);
    if (!(chi2 < 6 + 6 * sqrt(12))) fail_msg("chi-square is %g", chi2);
}

typedef struct Ranked {
    double logit;
    int64_t id;
} Ranked;

static int likelier(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    return x->logit > y->logit ? -1 : x->logit < y->logit ? 1 : x->id < y->id ? -1 : x->id > y->id;
}

/* Chooses by a complete sort and sums of probabilities. Returns -1 if a sum is so near its limit that the rounding of
 * weights may decide (docs/reference/numerics.md); 2^L < 2 n. */
static int64_t choose_by_sort(const Sampling *s, const double *logits, int64_t n, double uniform) {
    const double near = (double)n * ((double)n * 0x1p-61 + 0x1p-51);
    Ranked *r = mem_alloc((size_t)n * sizeof *r);
    bool *kept = mem_zero((size_t)n, sizeof *kept), unsure = false;
    for (int64_t i = 0; i < n; i++) r[i] = (Ranked){logits[i], i};
    qsort(r, (size_t)n, sizeof *r, likelier);
    double total = 0, before = 0, sum = 0, nucleus = 0;
    int64_t first = 0, token = -1;
    while (first < n && (s->top_k == 0 || first < s->top_k || r[first].logit == r[s->top_k - 1].logit) &&
           exp((r[first].logit - r->logit) / s->temperature) >= s->min_p)
        sum += exp((r[first++].logit - r->logit) / s->temperature);
    for (int64_t i = 0; i < first; i++) {
        const double p = exp((r[i].logit - r->logit) / s->temperature) / sum;
        unsure |= s->top_p > 0 && s->top_p < 1 && fabs(before - s->top_p) < near;
        kept[r[i].id] = s->top_p == 0 || before <= s->top_p;
        nucleus += kept[r[i].id] ? p : 0, before += p;
    }
    for (int64_t i = 0; i < n; i++) {
        total += kept[i] ? exp((logits[i] - r->logit) / s->temperature) / sum : 0;
        unsure |= fabs(total - uniform * nucleus) < near;
        if (token < 0 && total > uniform * nucleus) token = i;
    }
    free(r), free(kept);
    return unsure ? -1 : token;
}

/* With vocabularies of many sizes, equal logits and logits that are far from the others. */
TEST(choices_are_those_of_a_complete_sort) {
    enum { ROWS = 3000, MOST = 700 };
    static const double TEMPERATURES[] = {1, 0.1, 3, 40}, TOP_P[] = {0, 0.2, 0.95, 1}, SPREAD[] = {1, 8, 300};
    static double logits[MOST];
    int unsure = 0;
    for (uint64_t row = 0; row < ROWS; row++) {
        const uint32_t roll = philox_u32(5, 6, row), n = 1 + roll % MOST;
        const Sampling s = {.temperature = TEMPERATURES[roll / MOST % 4],
                            .top_k = roll / MOST % 5 ? 0 : 2 + roll / MOST / 20 % 50,
                            .top_p = TOP_P[roll / MOST / 1000 % 4],
                            .min_p = roll / MOST % 3 ? 0 : 0.037};
        for (uint64_t i = 0; i < n; i++) {
            const double x = philox_normal(7, row, i) * SPREAD[roll / MOST / 4000 % 3];
            logits[i] = row % 2 ? x : round(x * 2) / 2;
        }
        const double uniform = philox_uniform(8, 9, row);
        const int64_t want = choose_by_sort(&s, logits, n, uniform),
                      got = sampling_choose(&s, logits, n, uniform);
        unsure += want < 0;
        if (want >= 0 && got != want)
            fail_msg("row %d of %d: token %d, not %d", (int)row, (int)n, (int)got, (int)want);
    }
    assert_in_range(unsure, 0, ROWS / 100);
}

TEST(logprob_is_log_softmax) {
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp(LOGITS[i]);
    for (int i = 0; i < VOCAB; i++) {
        double x = sampling_logprob(LOGITS, VOCAB, i), expected = LOGITS[i] - log(sum);
        if (i == 5)
            assert_true(isinf(x) && x < 0);
        else
            assert_true(fabs(x - expected) <= 2 * VOCAB * DBL_EPSILON * fabs(expected));
    }
    double huge[2] = {1e300, 1e300 - 1e290}; /* no overflow */
    assert_true(sampling_logprob(huge, 2, 0) == 0);
}

TEST(likeliest_tokens_are_in_order) {
    static const int32_t IDS[VOCAB] = {1, 4, 2, 6, 7, 3, 0, 5};
    for (int64_t k = 1; k <= VOCAB; k++) {
        LikelyToken got[VOCAB];
        sampling_likeliest(LOGITS, VOCAB, k, got);
        for (int64_t i = 0; i < k; i++) {
            assert_int_equal(got[i].id, IDS[i]);
            assert_true(got[i].logprob == sampling_logprob(LOGITS, VOCAB, IDS[i]));
        }
    }
}

static void to_ids(const char *letters, int32_t *out) {
    for (size_t i = 0; letters[i]; i++) out[i] = letters[i] - 'a';
}

TEST(tokens_are_those_of_transformers) {
#define LIST(...)                                                                                            \
    { __VA_ARGS__ }
#define ROW(heat, k, p, least, once, each, again, bias, eighths, prompt, fresh, drawn)                       \
    {{.temperature = heat,                                                                                   \
      .top_k = k,                                                                                            \
      .top_p = p,                                                                                            \
      .min_p = least,                                                                                        \
      .presence = once,                                                                                      \
      .frequency = each,                                                                                     \
      .repetition = again,                                                                                   \
      .n_bias = 2},                                                                                          \
     bias,                                                                                                   \
     eighths,                                                                                                \
     prompt,                                                                                                 \
     fresh,                                                                                                  \
     drawn},
    enum { IDS = 12, DRAWS = 24 };
    static const struct Row {
        Sampling sampling;
        TokenBias bias[2];
        double eighths[IDS];
        const char *prompt, *fresh, *drawn;
    } ROWS[] = {
#include "sampling_rows.def"
    };
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++) {
        const struct Row *row = &ROWS[r];
        const int64_t n_prompt = (int64_t)strlen(row->prompt);
        Sampling sampling = row->sampling;
        sampling.bias = row->bias;
        int32_t tokens[32];
        to_ids(row->prompt, tokens), to_ids(row->fresh, tokens + n_prompt);
        for (int i = 0; i < DRAWS; i++) {
            double logits[IDS];
            for (int id = 0; id < IDS; id++) logits[id] = row->eighths[id] / 8;
            sampling_adjust(&sampling, tokens, n_prompt + (int64_t)strlen(row->fresh), n_prompt, logits, IDS);
            const int64_t got = sampling_choose(&sampling, logits, IDS, (i + 0.5) / DRAWS);
            if (got != row->drawn[i] - 'a')
                fail_msg("row %zu: draw %d is %c, but transformers chooses %c", r, i, (char)('a' + got),
                         row->drawn[i]);
        }
    }
}
