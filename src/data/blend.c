#include "data/blend.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

const char *const SPLIT_NAMES[SPLIT_COUNT] = {"train", "valid", "test"};

/* Computes a sum by pairwise summation, as numpy does. Up to 128 terms are added in eight accumulators. A longer array
 * is split in half, with the first half's length rounded down to a multiple of 8. */
static double numpy_sum(const double *a, int n) {
    if (n < 8) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += a[i];
        return sum;
    }
    if (n > 128) {
        int half = n / 2 / 8 * 8;
        return numpy_sum(a, half) + numpy_sum(a + half, n - half);
    }
    double r[8];
    int i = 8;
    memcpy(r, a, sizeof r);
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) r[k] += a[i + k];
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++) sum += a[i];
    return sum;
}

void blend_normalize(double *weights, int n) {
    double sum = numpy_sum(weights, n);
    for (int i = 0; i < n; i++) weights[i] /= sum;
}

/* Megatron-LM reads every run of digits and points in the text as a number, and ignores all other characters.
 * In Isotron, a character that is neither part of a number nor a separator is an error. */
Err split_parse(const char *text, SplitRange out[SPLIT_COUNT]) {
    static const char NUMBER[] = ".0123456789", BETWEEN[] = " \t,:";
    double w[SPLIT_COUNT] = {0};
    int n = 0;
    for (const char *p = text + strspn(text, BETWEEN); *p; p += strspn(p, BETWEEN)) {
        char number[64] = "", *end;
        size_t length = strcspn(p, BETWEEN);
        if (n == SPLIT_COUNT)
            return err_user("the split '%s' has more than three parts; specify train, valid and test", text);
        if (length < sizeof number && strspn(p, NUMBER) >= length) memcpy(number, p, length);
        w[n++] = strtod(number, &end);
        if (end == number || *end)
            return err_user("'%.*s' in the split '%s' is not a decimal number; for example, write 969,30,1",
                            (int)length, p, text);
        p += length;
    }
    double sum = numpy_sum(w, SPLIT_COUNT), low = 0;
    if (!(sum > 0))
        return err_user("the split '%s' assigns no data to train, valid or test; for example, write 969,30,1",
                        text);
    if (isinf(sum)) return err_user("the numbers of the split '%s' are too large", text);
    for (int i = 0; i < SPLIT_COUNT; i++) {
        double high = low + w[i] / sum;
        out[i] = (SplitRange){high > low, low, high};
        low = high;
    }
    return ERR_OK;
}

void split_elements(const SplitRange *s, int64_t n, int64_t *begin, int64_t *end) {
    *begin = (int64_t)nearbyint(s->low * (double)n); /* with ties to even, like Python's round */
    *end = (int64_t)nearbyint(s->high * (double)n);
    if (*end > n) *end = n;
    if (*begin > *end) *begin = *end;
}

/* Parses plain decimal numbers as Python's float(text) does. Blanks may surround the number. Any other text after the
 * number is an error. */
static bool parse_weight(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    if (end == text) return false;
    while (isspace((unsigned char)*end)) end++;
    return !*end;
}

static char *trimmed(const char *s) {
    while (isspace((unsigned char)*s)) s++;
    size_t n = strlen(s);
    while (n && isspace((unsigned char)s[n - 1])) n--;
    return mem_printf("%.*s", (int)n, s);
}

/* If the first entry of every pair is a number, the list has weights. If no first entry is a number, the list has only
 * prefixes. Any other combination is an error. */
static Err parse_weights(const char *const *entries, int n, double **out) {
    double *w = mem_zero((size_t)n / 2, sizeof *w);
    int numbers = 0;
    for (int i = 0; i < n / 2; i++) numbers += parse_weight(entries[2 * i], &w[i]);
    *out = numbers ? w : NULL;
    Err e = ERR_OK;
    double sum = 0;
    for (int i = 0; i < n / 2 && numbers && !e.code; i++) {
        if (numbers < n / 2)
            e = err_user("the data path mixes prefixes with and without a weight ('%s'); give all datasets a "
                         "weight, or none of them",
                         entries[2 * i]);
        else if (!(w[i] > 0) || isinf(sum += w[i]))
            e = err_user("the weight %s of dataset '%s' must be a positive number; to omit a dataset, remove "
                         "its entry",
                         entries[2 * i], entries[2 * i + 1]);
    }
    if (e.code || !numbers) free(w);
    return e;
}

/* Rejects a list of odd length if the entries at even positions, and no others, are numbers. */
static Err check_last_weight(const char *const *entries, int n) {
    double unused;
    for (int i = 0; i < n; i++)
        if (n < 3 || parse_weight(entries[i], &unused) != (i % 2 == 0)) return ERR_OK;
    return err_user(
        "the data path ends with the weight %s, but no prefix follows; specify pairs of a weight and a "
        "prefix",
        entries[n - 1]);
}

Err blend_parse(const char *const *entries, int n, Blend *out) {
    *out = (Blend){0};
    if (n < 1) return err_user("the data path is empty; specify at least one dataset prefix");
    double *weights = NULL;
    if (n % 2 == 0) ERR_RETURN(parse_weights(entries, n, &weights));
    if (n % 2 == 1) ERR_RETURN(check_last_weight(entries, n));
    *out = (Blend){.n = weights ? n / 2 : n, .weights = weights};
    out->prefixes = mem_zero((size_t)out->n, sizeof *out->prefixes);
    for (int i = 0; i < out->n; i++) out->prefixes[i] = trimmed(weights ? entries[2 * i + 1] : entries[i]);
    if (weights) blend_normalize(weights, out->n);
    if (out->n <= BLEND_MAX) return ERR_OK;
    int count = out->n;
    blend_free(out);
    return err_user("%d datasets are given, but a blend can contain at most %d; merge some of them first",
                    count, BLEND_MAX);
}

void blend_free(Blend *b) {
    for (int i = 0; i < b->n; i++) free(b->prefixes[i]);
    free(b->prefixes), free(b->weights);
    *b = (Blend){0};
}

int64_t blend_target(int64_t total, double weight) { return (int64_t)ceil((double)total * weight); }

int64_t blend_request(int64_t total, double weight, double surplus) {
    return (int64_t)ceil((double)blend_target(total, weight) * (1 + surplus));
}

/* `limits` contains the number of samples to draw from each dataset, or is NULL if there are no limits. */
static void draw(const double *weights, const int64_t *limits, int n, int64_t size, int16_t *dataset,
                 int64_t *sample) {
    CHECK(n >= 1 && n <= BLEND_MAX, "a blend cannot have %d datasets", n);
    int64_t *drawn = mem_zero((size_t)n, sizeof *drawn);
    for (int64_t s = 0; s < size; s++) {
        double t = s > 1 ? (double)s : 1.0, most = -INFINITY;
        int best = 0;
        for (int d = 0; d < n; d++) {
            if (limits && drawn[d] == limits[d]) continue;
            double behind = weights[d] * t - (double)drawn[d];
            if (behind > most) most = behind, best = d;
        }
        dataset[s] = (int16_t)best;
        sample[s] = drawn[best]++;
    }
    free(drawn);
}

void blend_indices(const double *weights, int n, int64_t size, int16_t *dataset, int64_t *sample) {
    draw(weights, NULL, n, size, dataset, sample);
}

void blend_indices_exhaustive(const int64_t *sizes, int n, int16_t *dataset, int64_t *sample) {
    int64_t total = 0;
    for (int d = 0; d < n; d++) total += sizes[d];
    double *weights = mem_alloc((size_t)n * sizeof *weights);
    for (int d = 0; d < n; d++) weights[d] = (double)sizes[d] / (double)total;
    draw(weights, sizes, n, total, dataset, sample);
    free(weights);
}
