#include "server/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum {
    /* number of tokens after which a text is released even if its last character is not complete */
    PATIENCE = 8
};
static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

static bool has_text(const TextStream *s, int32_t id) {
    return id >= 0 && id < tokenizer_vocab_size(s->tokenizer) &&
           (s->special || !tokenizer_is_special(s->tokenizer, id));
}

/* Decodes tokens in the vocabulary. The caller frees the text. If the tokenizer cannot decode the tokens, the text is
 * empty. */
static char *decode(const TextStream *s, const int32_t *ids, size_t n, size_t *bytes) {
    char *text;
    if (!tokenizer_decode_with(s->tokenizer, s->special ? 0 : TOKENIZER_SKIP_SPECIAL, ids, n, &text, bytes)
             .code)
        return text;
    *bytes = 0;
    return mem_strdup("");
}

/* Returns the number of bytes of a decoded window that are known. An invalid byte can turn a known character before it
 * into U+FFFD; all bytes of U+FFFD then count as known. */
static size_t known(const TextStream *s, const char *text, size_t n) {
    const size_t from = s->base < n ? s->base : n;
    for (size_t i = 1; i < 3 && i <= from && from - i + 3 <= n && !s->bytes.len; i++)
        if (!memcmp(text + from - i, REPLACEMENT, 3)) return from - i + 3;
    return from;
}

/* Drops the first `from` tokens of the window. The next token's text depends only on the remaining tokens. */
static void advance(TextStream *s, size_t from) {
    if (!s->n) return;
    s->n -= from;
    memmove(s->window, s->window + from, s->n * sizeof *s->window);
    s->read = s->n;
    free(decode(s, s->window, s->n, &s->base));
}

static void append(TextStream *s, int32_t token) {
    s->window = mem_grow(s->window, s->n + 1, sizeof *s->window);
    s->window[s->n++] = token;
}

void text_begin(TextStream *s, const Tokenizer *t, const StopList *stops, bool special, const int32_t *prompt,
                size_t n) {
    *s = (TextStream){.tokenizer = t, .stops = stops, .special = special};
    for (size_t i = n > TEXT_CONTEXT ? n - TEXT_CONTEXT : 0; i < n; i++)
        if (has_text(s, prompt[i])) append(s, prompt[i]);
    advance(s, 0);
}

void text_free(TextStream *s) {
    free(s->window);
    str_free(&s->bytes), str_free(&s->held);
}

static bool ends_with(const char *s, size_t n, const char *end) {
    const size_t k = strlen(end);
    return n >= k && !memcmp(s + n - k, end, k);
}

/* `text` is the decoded text of the window plus one token. Appends the part of `text` after the window's text. */
static void add_after(const TextStream *s, const char *text, size_t n, Str *bytes) {
    size_t from = known(s, text, n), before;
    if (s->n > s->read) {
        char *window = decode(s, s->window, s->n, &before);
        if (before <= n && !memcmp(text, window, before)) from = before;
        free(window);
    }
    if (n > from) str_add(bytes, text + from, n - from);
}

void text_piece(const TextStream *s, int32_t token, Str *bytes) {
    size_t n;
    const char *name = tokenizer_token_text(s->tokenizer, token, &n);
    unsigned byte;
    int end = 0;
    if (!has_text(s, token)) {
        if (name) str_add(bytes, name, n);
        return;
    }
    int32_t *ids = mem_alloc((s->n + 1) * sizeof *ids);
    if (s->n) memcpy(ids, s->window, s->n * sizeof *ids);
    ids[s->n] = token;
    char *text = decode(s, ids, s->n + 1, &n);
    char copy[8] = "";
    if (name) snprintf(copy, sizeof copy, "%.7s", name);
    if ((s->n > s->read || ends_with(text, n, REPLACEMENT)) && sscanf(copy, "<0x%2X>%n", &byte, &end) == 1 &&
        end == 6)
        str_add(bytes, &(char){(char)byte},
                1); /* the token is one byte of a character, in a vocabulary that SentencePiece created */
    else
        add_after(s, text, n, bytes);
    free(text), free(ids);
}

int64_t text_offset(const TextStream *s, int32_t token) {
    bool cut = false;
    Str all = {0}, replaced = {0};
    int64_t offset = s->characters;
    str_add(&all, s->bytes.s ? s->bytes.s : "", s->bytes.len);
    text_piece(s, token, &all);
    const bool continues = all.len == 1 && all.s[0] & 0x80; /* the bytes of a character in the window */
    if (s->n > s->read && !continues) {
        size_t n;
        char *text = decode(s, s->window, s->n, &n);
        const size_t from = known(s, text, n);
        offset += (int64_t)utf8_count(text + from, n - from);
        free(text);
    } else if (s->bytes.len && !utf8_prefix(all.s, all.len, &cut) && !cut) {
        /* the token does not continue the character */
        utf8_repair(s->bytes.s, s->bytes.len, &replaced);
        offset += (int64_t)utf8_count(replaced.s, replaced.len);
    }
    str_free(&all), str_free(&replaced);
    return offset;
}

/* ---- characters ---- */

/* Moves the complete characters of `bytes` to `held`. At the end of the text, an incomplete character becomes
 * U+FFFD. */
static void complete(TextStream *s, bool end) {
    size_t n = 0;
    bool cut = false;
    while (n < s->bytes.len) {
        n += utf8_prefix(s->bytes.s + n, s->bytes.len - n, &cut);
        if (cut) break;
        n += n < s->bytes.len; /* an invalid byte */
    }
    if (end) n = s->bytes.len;
    Str valid = {0}, rest = {0};
    utf8_repair(s->bytes.s ? s->bytes.s : "", n, &valid);
    str_add(&rest, s->bytes.s ? s->bytes.s + n : "", s->bytes.len - n);
    if (valid.len) {
        s->characters += (int64_t)utf8_count(valid.s, valid.len);
        str_add(&s->held, valid.s, valid.len);
    }
    str_free(&valid), str_free(&s->bytes);
    s->bytes = rest;
}

/* ---- stop strings ---- */

/* Sets s->stopped and returns the number of bytes before the first stop string, or returns -1. */
static int64_t find_stop(TextStream *s) {
    int64_t first = -1;
    for (int64_t i = 0; i < s->stops->n && s->held.len; i++) {
        const char *stop = s->stops->at[i], *at = memmem(s->held.s, s->held.len, stop, strlen(stop));
        if (!at || (first >= 0 && at - s->held.s >= first)) continue;
        first = at - s->held.s;
        s->stopped = stop;
    }
    return first;
}

/* Returns the number of bytes at the end of the text that could be the start of a stop string. */
static size_t begun(const TextStream *s) {
    size_t most = 0;
    for (int64_t i = 0; i < s->stops->n; i++) {
        const size_t n = strlen(s->stops->at[i]), last = n - 1 < s->held.len ? n - 1 : s->held.len;
        for (size_t k = last; k > most; k--)
            if (!memcmp(s->held.s + s->held.len - k, s->stops->at[i], k)) most = k;
    }
    return most;
}

static void release(TextStream *s, bool end, Str *out) {
    complete(s, end);
    const int64_t stop = find_stop(s);
    const size_t n = stop >= 0 ? (size_t)stop + (s->stops->kept ? strlen(s->stopped) : 0)
                     : end     ? s->held.len
                               : s->held.len - begun(s);
    if (n) str_add(out, s->held.s, n);
    Str rest = {0};
    if (stop < 0 && n < s->held.len) str_add(&rest, s->held.s + n, s->held.len - n);
    str_free(&s->held);
    s->held = rest;
}

/* Adds the bytes of the tokens whose text is not known yet. */
static void take(TextStream *s, const char *text, size_t n) {
    const size_t from = known(s, text, n);
    if (n > from) str_add(&s->bytes, text + from, n - from);
    advance(s, s->read);
}

void text_push(TextStream *s, int32_t token, Str *out) {
    if (s->stopped || !has_text(s, token)) return;
    append(s, token);
    size_t n;
    char *text = decode(s, s->window, s->n, &n);
    if (!ends_with(text, n, REPLACEMENT) || s->n - s->read >= PATIENCE) take(s, text, n);
    free(text);
    release(s, false, out);
}

void text_end(TextStream *s, Str *out) {
    if (s->stopped) return;
    size_t n;
    char *text = decode(s, s->window, s->n, &n);
    take(s, text, n);
    free(text);
    release(s, true, out);
}
