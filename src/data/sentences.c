#include "data/sentences.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unicode/ubrk.h>
#include <unicode/uloc.h>
#include <unicode/utext.h>

#include "base/fault.h"
#include "base/mem.h"

struct Sentences {
    UBreakIterator *breaks;
    UText utext;
    Str joined; /* the text with spaces instead of line breaks inside paragraphs */
    const char *text;
    bool keep_newlines;
};

static const char *locale_of(const char *lang) {
    static const char *const PUNKT[][2] = {
        {"czech", "cs"},     {"danish", "da"},  {"dutch", "nl"},      {"english", "en"}, {"estonian", "et"},
        {"finnish", "fi"},   {"french", "fr"},  {"german", "de"},     {"greek", "el"},   {"italian", "it"},
        {"norwegian", "nb"}, {"polish", "pl"},  {"portuguese", "pt"}, {"russian", "ru"}, {"slovene", "sl"},
        {"spanish", "es"},   {"swedish", "sv"}, {"turkish", "tr"},
    };
    for (size_t i = 0; i < sizeof PUNKT / sizeof *PUNKT; i++)
        if (!strcasecmp(lang, PUNKT[i][0])) return PUNKT[i][1];
    return *uloc_getISO3Language(lang) && !strchr(lang, '@') ? lang : NULL;
}

Err sentences_open(const char *lang, bool keep_newlines, Sentences **out) {
    const char *locale = locale_of(lang);
    if (!locale)
        return err_user(
            "--lang %.40s is unknown; give an English name such as 'german', or a locale such as 'de'", lang);
    char *name = mem_printf("%s@ss=standard", locale);
    UErrorCode status = U_ZERO_ERROR;
    UBreakIterator *breaks = ubrk_open(UBRK_SENTENCE, name, NULL, 0, &status);
    free(name);
    if (U_FAILURE(status))
        return err_infra("ICU has no sentence rules (%s): install ICU's data", u_errorName(status));
    *out = mem_zero(1, sizeof **out);
    **out = (Sentences){.breaks = breaks, .utext = UTEXT_INITIALIZER, .keep_newlines = keep_newlines};
    return ERR_OK;
}

Sentences *sentences_clone(const Sentences *s) {
    UErrorCode status = U_ZERO_ERROR;
    Sentences *copy = mem_zero(1, sizeof *copy);
    *copy = (Sentences){.breaks = ubrk_clone(s->breaks, &status),
                        .utext = UTEXT_INITIALIZER,
                        .keep_newlines = s->keep_newlines};
    CHECK(U_SUCCESS(status), "ICU: %s", u_errorName(status));
    return copy;
}

void sentences_close(Sentences *s) {
    if (!s) return;
    ubrk_close(s->breaks);
    utext_close(&s->utext);
    str_free(&s->joined);
    free(s);
}

static bool is_space(char c) { return c && strchr(" \t\n\v\f\r", c); }

/* Returns whether only blanks lie between the line break at i and another line break or the start or end of the
 * text. */
static bool ends_paragraph(const char *s, size_t n, size_t i) {
    size_t before = i, after = i + 1;
    while (before > 0 && strchr(" \t\r", s[before - 1]) && s[before - 1]) before--;
    while (after < n && s[after] && strchr(" \t\r", s[after])) after++;
    return !before || after == n || s[before - 1] == '\n' || s[after] == '\n';
}

Err sentences_begin(Sentences *s, const char *text, size_t n) {
    if (n > INT32_MAX) return err_user("a text of %zu bytes is too long to split; use shorter documents", n);
    str_clear(&s->joined);
    str_add(&s->joined, text, n);
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\n' && !ends_paragraph(text, n, i)) {
            s->joined.s[i] = ' ';
            if (i && text[i - 1] == '\r') s->joined.s[i - 1] = ' ';
        }
    UErrorCode status = U_ZERO_ERROR;
    utext_openUTF8(&s->utext, s->joined.s ? s->joined.s : "", (int64_t)n, &status);
    ubrk_setUText(s->breaks, &s->utext, &status);
    CHECK(U_SUCCESS(status), "ICU: %s", u_errorName(status));
    s->text = text;
    ubrk_first(s->breaks);
    return ERR_OK;
}

static bool is_blank(const char *s, size_t begin, size_t end) {
    while (begin < end && is_space(s[begin])) begin++;
    return begin == end;
}

/* Skips the blank pieces after `end`, because the white space after a sentence belongs to the sentence. Returns the
 * new end. */
static size_t take_blanks(Sentences *s, size_t end) {
    for (int32_t to; (to = ubrk_next(s->breaks)) != UBRK_DONE; end = (size_t)to) {
        if (is_blank(s->text, end, (size_t)to)) continue;
        ubrk_previous(s->breaks);
        break;
    }
    return end;
}

bool sentences_next(Sentences *s, size_t *begin, size_t *end) {
    for (;;) {
        const int32_t from = ubrk_current(s->breaks), to = ubrk_next(s->breaks);
        if (to == UBRK_DONE) return false;
        *begin = (size_t)from, *end = (size_t)to;
        if (s->keep_newlines) {
            *end = take_blanks(s, *end);
            return true;
        }
        while (*begin < *end && is_space(s->text[*begin])) ++*begin;
        while (*begin < *end && is_space(s->text[*end - 1])) --*end;
        if (*begin < *end) return true;
    }
}
