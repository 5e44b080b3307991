/* Parses and prints layer patterns for Megatron-LM's --window-attn-skip-freq and --moe-layer-freq. A pattern is a
 * number N, or an expression over lists of 0 and 1:
 *
 *   sum := product { "+" product }    product := item { "*" count }    item := "[" bits "]" | "(" sum ")"
 *
 * The parser writes at most n entries while it reads the pattern. */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 16 };

typedef struct Pattern {
    const char *at;
    bool *out;
    int64_t length, n; /* length: entries written so far; n: entries in the entire pattern */
} Pattern;

static bool sum(Pattern *p, int depth);

static bool take(Pattern *p, char c) {
    p->at += strspn(p->at, " ");
    if (*p->at != c) return false;
    p->at += c != 0;
    return true;
}

static bool append(Pattern *p, bool value) {
    if (p->length == p->n) return false;
    p->out[p->length++] = value;
    return true;
}

static bool bits(Pattern *p) {
    do {
        bool one = take(p, '1');
        if (!one && !take(p, '0')) return false;
        if (!append(p, one)) return false;
    } while (take(p, ','));
    return take(p, ']');
}

static bool product(Pattern *p, int depth) {
    int64_t begin = p->length;
    if (take(p, '[') ? !bits(p) : !(take(p, '(') && depth < DEPTH && sum(p, depth + 1) && take(p, ')')))
        return false;
    while (take(p, '*')) {
        char *end;
        long count = strtol(p->at, &end, 10);
        int64_t once = p->length - begin;
        if (end == p->at || count < 1) return false;
        p->at = end;
        for (long i = 1; i < count; i++)
            for (int64_t k = 0; k < once; k++)
                if (!append(p, p->out[begin + k])) return false;
    }
    return true;
}

static bool sum(Pattern *p, int depth) {
    do
        if (!product(p, depth)) return false;
    while (take(p, '+'));
    return true;
}

/* Converts the text to a number. Returns 0 if the text is not a number. */
static long frequency(const char *text) {
    char *end;
    const long n = strtol(text, &end, 10);
    return end != text && !*end ? n : 0;
}

static bool expression(const char *text, int64_t n, bool *out) {
    Pattern p = {text, out, 0, n};
    return sum(&p, 0) && take(&p, 0) && p.length == n;
}

bool config_layer_pattern(const char *text, int64_t n, bool *out) {
    const long every = frequency(text);
    for (int64_t i = 0; i < n && every > 0; i++) out[i] = (i + 1) % every != 0;
    return every > 0 || expression(text, n, out);
}

bool config_moe_pattern(const char *text, int64_t n, bool *out) {
    const long every = frequency(text);
    for (int64_t i = 0; i < n && every > 0; i++) out[i] = i % every == 0;
    return every > 0 || expression(text, n, out);
}

const char *config_pattern_text(Arena *arena, const bool *layer, int64_t n) {
    char *text = arena_alloc(arena, (size_t)(2 * n + 2));
    for (int64_t i = 0; i < n; i++) text[2 * i] = i ? ',' : '[', text[2 * i + 1] = layer[i] ? '1' : '0';
    memcpy(text + 2 * n, "]", 2);
    return text;
}

int64_t config_hybrid_letters(const char *pattern, char *out) {
    int64_t n = 0;
    for (; *pattern && *pattern != '/'; pattern++) {
        if (*pattern == '|') continue;
        if (out) out[n] = *pattern;
        n++;
    }
    return n;
}

int64_t config_hybrid_depths(const char *pattern) {
    int64_t n = 0;
    for (; *pattern; pattern++) n += *pattern == '/';
    return n;
}

bool config_has_letter(const Config *c, char letter) {
    return c->hybrid_layer_pattern && strchr(c->hybrid_layer_pattern, letter);
}
