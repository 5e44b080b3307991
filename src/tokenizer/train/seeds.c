/* The `tokenizers` library builds a suffix array of all words, and uses the inner nodes of the suffix tree. The
 * inner nodes are the substrings that are followed by at least two different characters, where the end of a
 * word counts as a character. Pieces are short, so this code sorts suffixes only by their first 17 characters.
 * The words are separated by the character 0. */
#include "tokenizer/train/seeds.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"

enum { UNICODE = 0x110000, COMPARED = LONGEST_PIECE + 1 };

typedef struct Candidate {
    const uint32_t *text;
    uint32_t length;
    int64_t score;
} Candidate;

typedef struct Candidates {
    Candidate *v;
    size_t n, cap;
} Candidates;

void seeds_free(Seeds *s) {
    vocab_free(s->texts);
    free(s->counts);
}

static void add_candidate(Candidates *list, Candidate c) {
    if (list->n == list->cap) list->v = mem_grow(list->v, list->cap = list->cap * 2 + 1024, sizeof *list->v);
    list->v[list->n++] = c;
}

/* Returns the characters of all words, with a 0 after each word. Sets *n to the length of the result. */
static uint32_t *flatten(const Words *w, size_t *n) {
    size_t total = 0, bytes;
    for (int32_t i = 0; i < words_number(w); i++) {
        words_text(w, i, &bytes);
        total += bytes + 1;
    }
    uint32_t *out = mem_alloc(total * sizeof *out + 1);
    *n = 0;
    for (int32_t i = 0; i < words_number(w); i++) {
        const char *text = words_text(w, i, &bytes);
        for (size_t at = 0; at < bytes; (*n)++) at += utf8_next(text + at, &out[*n]);
        out[(*n)++] = 0;
    }
    return out;
}

/* Adds each character and its number of occurrences in the texts. */
static void find_characters(const Words *w, const uint32_t *flat, Candidates *out) {
    int64_t *counts = mem_zero(UNICODE, sizeof *counts);
    for (int32_t i = 0; i < words_number(w); i++) {
        size_t bytes;
        const char *text = words_text(w, i, &bytes);
        for (size_t at = 0; at < bytes; flat++) {
            uint32_t c;
            at += utf8_next(text + at, &c);
            if (c && !counts[c]) add_candidate(out, (Candidate){flat, 1, 0});
            counts[c] += words_count(w, i);
        }
        flat++;
    }
    for (size_t i = 0; i < out->n; i++) out->v[i].score = counts[*out->v[i].text];
    free(counts);
}

/* Returns the length of the suffixes' common prefix, but at most COMPARED. If both words end after the prefix, returns
 * COMPARED. */
static int common(const uint32_t *a, const uint32_t *b) {
    int n = 0;
    for (; n < COMPARED && a[n] == b[n]; n++)
        if (!a[n]) return COMPARED;
    return n;
}

static int by_suffix(const void *x, const void *y) {
    const uint32_t *a = *(const uint32_t *const *)x, *b = *(const uint32_t *const *)y;
    const int n = common(a, b);
    return n == COMPARED ? 0 : (a[n] > b[n]) - (a[n] < b[n]);
}

/* Sorts by descending score, and then by descending text, as the `tokenizers` library does. */
static int by_score(const void *x, const void *y) {
    const Candidate *a = x, *b = y;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    for (uint32_t i = 0; i < a->length && i < b->length; i++)
        if (a->text[i] != b->text[i]) return a->text[i] < b->text[i] ? 1 : -1;
    return (a->length < b->length) - (a->length > b->length);
}

/* Finds the intervals of sorted suffixes that agree in the first `depth` characters but not in the next
 * one. */
static void find_substrings(const uint32_t **suffixes, size_t n, Candidates *out) {
    struct {
        int depth;
        size_t first;
    } open[COMPARED + 1];
    int top = 0;
    for (size_t i = 1; i <= n; i++) {
        const int depth = i < n ? common(suffixes[i - 1], suffixes[i]) : 0;
        size_t first = i - 1;
        while (top && open[top - 1].depth > depth) {
            first = open[--top].first;
            const int length = open[top].depth;
            if (length > 1 && length <= LONGEST_PIECE)
                add_candidate(out,
                              (Candidate){suffixes[first], (uint32_t)length, (int64_t)(i - first) * length});
        }
        if (depth && (!top || open[top - 1].depth < depth)) {
            open[top].depth = depth;
            open[top++].first = first;
        }
    }
}

static Err add_seeds(Candidates *list, size_t limit, Seeds *out) {
    Str text = {0};
    Err e = ERR_OK;
    const size_t n = list->n < limit ? list->n : limit, had = vocab_count(out->texts);
    if (list->n) qsort(list->v, list->n, sizeof *list->v, by_score);
    out->counts = mem_grow(out->counts, had + n + 1, sizeof *out->counts);
    for (size_t i = 0; i < n && !e.code; i++) {
        str_clear(&text);
        for (uint32_t k = 0; k < list->v[i].length; k++) utf8_put(&text, list->v[i].text[k]);
        out->counts[had + i] = (double)list->v[i].score;
        e = vocab_add(out->texts, text.s, text.len, (int64_t)(had + i));
    }
    str_free(&text);
    return e;
}

Err seeds_find(const Words *w, int64_t limit, Seeds *out) {
    size_t n, kept = 0;
    uint32_t *flat = flatten(w, &n);
    Candidates characters = {0}, substrings = {0};
    out->texts = vocab_new();
    find_characters(w, flat, &characters);
    Err e = add_seeds(&characters, SIZE_MAX, out);
    out->chars = vocab_limit(out->texts);
    const uint32_t **suffixes = mem_alloc((n + 1) * sizeof *suffixes);
    for (size_t i = 0; i < n; i++)
        if (flat[i]) suffixes[kept++] = flat + i;
    if (kept) qsort(suffixes, kept, sizeof *suffixes, by_suffix);
    find_substrings(suffixes, kept, &substrings);
    if (!e.code) e = add_seeds(&substrings, limit > out->chars ? (size_t)(limit - out->chars) : 1, out);
    free(suffixes), free(flat), free(characters.v), free(substrings.v);
    return e;
}
