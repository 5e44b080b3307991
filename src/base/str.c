#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

static void reserve(Str *s, size_t more) {
    CHECK(more < (size_t)1 << 62, "size overflow: %zu bytes", more);
    if (s->cap - s->len > more) return;
    size_t cap = s->cap ? s->cap : 64;
    while (cap - s->len <= more) cap *= 2;
    s->s = mem_grow(s->s, cap, 1);
    s->cap = cap;
}

void str_add(Str *s, const void *bytes, size_t n) {
    reserve(s, n);
    if (n) memcpy(s->s + s->len, bytes, n);
    s->len += n;
    s->s[s->len] = 0;
}

void str_puts(Str *s, const char *text) { str_add(s, text, strlen(text)); }

void str_printf(Str *s, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    CHECK(n >= 0, "bad format string '%s'", fmt);
    reserve(s, (size_t)n);
    vsnprintf(s->s + s->len, (size_t)n + 1, fmt, again);
    va_end(again);
    s->len += (size_t)n;
}

void str_quote(Str *s, const char *bytes, size_t n) {
    enum { SHOWN = 60 };
    str_puts(s, "'");
    for (size_t i = 0; i < n && i < SHOWN; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c < 32 || c >= 127)
            str_printf(s, "\\x%02x", c);
        else
            str_add(s, bytes + i, 1);
    }
    str_puts(s, n > SHOWN ? "...'" : "'");
}

void str_clear(Str *s) {
    s->len = 0;
    if (s->s) s->s[0] = 0;
}

void str_free(Str *s) {
    free(s->s);
    *s = (Str){0};
}

Quoted quote(const char *text) {
    Str all = {0};
    Quoted q;
    str_quote(&all, text, strlen(text));
    snprintf(q.s, sizeof q.s, "%s", all.s);
    str_free(&all);
    return q;
}

Quoted quote_json(const char *text) {
    Quoted q = quote(text);
    const size_t n = strlen(q.s);
    if (*text != '"') return q;
    memmove(q.s, q.s + 1, n - 2);
    q.s[n - 2] = 0;
    return q;
}

static size_t min2(size_t a, size_t b) { return a < b ? a : b; }

/* Returns the edit distance: the minimum number of insertions, deletions, substitutions and swaps of adjacent
 * characters that turn `a` into `b`. */
static size_t edit_distance(const char *a, const char *b) {
    enum { MOST = 128 };
    size_t rows[3][MOST], nb = strlen(b), i = 0;
    if (nb >= MOST) return MOST;
    for (size_t j = 0; j <= nb; j++) rows[0][j] = j;
    for (i = 1; a[i - 1]; i++) {
        size_t *row = rows[i % 3], *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            row[j] = min2(min2(before[j], row[j - 1]) + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = min2(row[j], earlier[j - 2] + 1);
        }
    }
    return rows[(i - 1) % 3][nb];
}

const char *str_nearest(const char *word, const char *const *candidates, size_t n) {
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 + 1;
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(word, candidates[i]);
        if (d < best_distance) best = candidates[i], best_distance = d;
    }
    return best;
}
