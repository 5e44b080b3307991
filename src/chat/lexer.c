#include "chat/lexer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unicode/uchar.h>

#include "base/str.h"
#include "base/utf8.h"

enum { DEEPEST = 200 }; /* maximum number of open brackets */

Err lexer_error(int line, const char *fmt, va_list args) {
    char text[900];
    vsnprintf(text, sizeof text, fmt, args);
    return err_user("line %d of the chat template: %s", line, text);
}

typedef struct Lexer {
    const char *s; /* the source with \n at the end of each line */
    size_t n, at;
    int line;
    Arena *arena;
    Token *tokens;
    size_t count, cap;
    char brackets[DEEPEST]; /* the open brackets */
    int open;
    Err err;
} Lexer;

bool lexer_is_space(uint32_t c) { return u_isUWhiteSpace((UChar32)c) || (c >= 0x1c && c <= 0x1f); }

#define FAIL(l, ...)                                                                                         \
    do {                                                                                                     \
        if (!(l)->err.code) (l)->err = err_user(__VA_ARGS__);                                                \
    } while (0)

static Token *add(Lexer *l, TokenType type, const char *s, size_t n) {
    if (l->count == l->cap) {
        Token *more = arena_alloc(l->arena, (l->cap = 2 * l->cap + 64) * sizeof *more);
        if (l->count) memcpy(more, l->tokens, l->count * sizeof *more);
        l->tokens = more;
    }
    l->tokens[l->count] = (Token){.type = type, .line = l->line, .s = s, .n = n};
    return &l->tokens[l->count++];
}

static void advance(Lexer *l, size_t to) {
    for (; l->at < to; l->at++) l->line += l->s[l->at] == '\n';
}

static bool looking_at(const Lexer *l, size_t at, const char *text) {
    const size_t n = strlen(text);
    return l->n - at >= n && !memcmp(l->s + at, text, n);
}

static size_t skip_space(const Lexer *l, size_t at) {
    while (at < l->n) {
        uint32_t c;
        const size_t n = utf8_next(l->s + at, &c);
        if (!lexer_is_space(c)) break;
        at += n;
    }
    return at;
}

/* ---- text between tags ---- */

/* Adds the text before a tag. `sign` is the tag's - or +, or any other character if the tag has no sign. */
static void add_data(Lexer *l, size_t end, char sign, bool is_print) {
    const size_t begin = l->at;
    size_t kept = end;
    if (sign == '-') {
        while (kept > begin) {
            const size_t before = utf8_prev(l->s, kept);
            uint32_t c;
            utf8_next(l->s + before, &c);
            if (!lexer_is_space(c)) break;
            kept = before;
        }
    } else if (sign != '+' && !is_print) {
        size_t line = end;
        while (line > begin && l->s[line - 1] != '\n') line--;
        const bool starts_line = line > begin || begin == 0 || l->s[begin - 1] == '\n';
        if (starts_line && skip_space(l, line) >= end) kept = line;
    }
    if (kept > begin) add(l, TOKEN_DATA, l->s + begin, kept - begin);
    advance(l, end);
}

/* Skips the end of a block: +%}, -%} with the whitespace after it, or %} with the newline after it. Returns false if
 * the block does not end here. */
static bool skip_end(Lexer *l, size_t at, const char *end, bool plus, bool trim) {
    const char sign = at < l->n ? l->s[at] : '\0';
    const bool is_signed = sign == '-' || (plus && sign == '+');
    if (!looking_at(l, at + is_signed, end)) return false;
    at += is_signed + strlen(end);
    if (sign == '-')
        at = skip_space(l, at);
    else if (!is_signed && trim && at < l->n && l->s[at] == '\n')
        at++;
    advance(l, at);
    return true;
}

static void skip_comment(Lexer *l) {
    const char *end = memmem(l->s + l->at, l->n - l->at, "#}", 2);
    if (!end) {
        FAIL(l, "line %d of the chat template: a comment has no end; add #}", l->line);
        return;
    }
    size_t at = (size_t)(end - l->s);
    if (at > l->at && (l->s[at - 1] == '-' || l->s[at - 1] == '+')) at--;
    skip_end(l, at, "#}", true, true);
}

/* Returns the position after "raw" or "endraw" in a block, or 0 if the block begins with another word. */
static size_t raw_word(const Lexer *l, size_t at, const char *word) {
    at = skip_space(l, at);
    return looking_at(l, at, word) ? skip_space(l, at + strlen(word)) : 0;
}

static char sign_at(const Lexer *l, size_t at) {
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : '\0';
}

/* Adds a raw block's text as data. */
static void lex_raw(Lexer *l) {
    const int line = l->line;
    for (size_t at = l->at;; at += 2) {
        const char *begin = at < l->n ? memmem(l->s + at, l->n - at, "{%", 2) : NULL;
        if (!begin) {
            FAIL(l, "line %d of the chat template: a raw block has no end; add {%% endraw %%}", line);
            return;
        }
        at = (size_t)(begin - l->s);
        const char sign = sign_at(l, at + 2);
        const size_t end = raw_word(l, at + 2 + (sign != '\0'), "endraw");
        if (!end || !(looking_at(l, end, "%}") || looking_at(l, end, "-%}") || looking_at(l, end, "+%}")))
            continue;
        add_data(l, at, sign, false);
        skip_end(l, end, "%}", true, true);
        return;
    }
}

/* ---- tokens of a tag ---- */

static void lex_escape_character(Lexer *l, Str *out, size_t *at) {
    /* pairs: the letter after a backslash, and the character that the escape sequence represents */
    static const char NAMES[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    const char c = l->s[*at];
    for (int i = 0; NAMES[i]; i += 2)
        if (NAMES[i] == c) {
            str_add(out, &NAMES[i + 1], 1);
            *at += 1;
            return;
        }
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : c >= '0' && c <= '7' ? 3 : 0;
    const bool octal = digits == 3;
    uint32_t code = 0;
    int k = 0;
    for (*at += !octal; digits && k < digits && *at < l->n; k++, *at += 1) {
        const char d = l->s[*at];
        if (octal ? d < '0' || d > '7' : !isxdigit((unsigned char)d)) break;
        code = octal ? code * 8 + (uint32_t)(d - '0')
                     : code * 16 + (uint32_t)(isdigit((unsigned char)d) ? d - '0' : (d | 32) - 'a' + 10);
    }
    if (c == 'N' || (digits && !octal && k < digits) || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        FAIL(l,
             "line %d of the chat template: a string has an invalid escape \\%c; write the character itself",
             l->line, c);
    else if (digits)
        utf8_put(out, code);
}

/* Reads a string that begins with the quote at l->at. */
static void lex_string(Lexer *l) {
    const char quote = l->s[l->at];
    size_t at = l->at + 1;
    Str text = {0};
    while (at < l->n && l->s[at] != quote && !l->err.code) {
        uint32_t c;
        if (l->s[at] != '\\' || at + 1 == l->n) {
            str_add(&text, l->s + at++, 1);
            continue;
        }
        const size_t n = utf8_next(l->s + at + 1, &c);
        if (c == '\n')
            at += 2;
        else if (c >= 0x80) { /* Python first replaces this character with an escape sequence, and then reads
                               * two backslashes as one */
            str_printf(&text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
            at += 1 + n;
        } else if (strchr("\\'\"abfnrtvxuUN01234567", (int)c)) {
            at++;
            lex_escape_character(l, &text, &at);
        } else {
            str_add(&text, l->s + at, 2);
            at += 2;
        }
    }
    if (at >= l->n) FAIL(l, "line %d of the chat template: a string has no end; add %c", l->line, quote);
    char *copy = arena_alloc(l->arena, text.len + 1);
    if (text.len) memcpy(copy, text.s, text.len);
    add(l, TOKEN_STRING, copy, text.len);
    str_free(&text);
    if (!l->err.code) advance(l, at + 1);
}

/* Returns the end of a run of digits. Single underscores may separate the digits. */
static size_t digits_end(const Lexer *l, size_t at, int base) {
    bool digit = false;
    for (;; at++) {
        const char c = at < l->n ? (char)tolower((unsigned char)l->s[at]) : '\0';
        const bool is = base == 16 ? isxdigit((unsigned char)c) : c >= '0' && c < '0' + base;
        if (!is && !(c == '_' && digit && at + 1 < l->n && isxdigit((unsigned char)l->s[at + 1]))) return at;
        digit = is;
    }
}

/* Returns the end of a number that contains a point or an exponent, or 0 if there is none. */
static size_t float_end(const Lexer *l, size_t at) {
    if (at && l->s[at - 1] == '.') return 0;
    const size_t whole = digits_end(l, at, 10);
    size_t end = whole;
    if (looking_at(l, end, ".") && digits_end(l, end + 1, 10) > end + 1) end = digits_end(l, end + 1, 10);
    if (end < l->n && (l->s[end] == 'e' || l->s[end] == 'E')) {
        const size_t sign = end + 1 + (sign_at(l, end + 1) != '\0'), exponent = digits_end(l, sign, 10);
        if (exponent > sign) end = exponent;
    }
    return end > whole ? end : 0;
}

static void lex_number(Lexer *l) {
    size_t end = float_end(l, l->at), from = l->at;
    const bool is_float = end != 0;
    int base = 10;
    if (!is_float && l->s[from] == '0' && from + 1 < l->n) {
        const int letter = tolower((unsigned char)l->s[from + 1]);
        const int other = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
        if (other != 10 && digits_end(l, from + 2, other) > from + 2) base = other, from += 2;
    }
    if (!is_float) end = digits_end(l, from, base);
    char text[80];
    size_t n = 0;
    for (size_t i = from; i < end && n + 1 < sizeof text; i++)
        if (l->s[i] != '_') text[n++] = l->s[i];
    text[n] = '\0';
    errno = 0;
    Token *t = add(l, is_float ? TOKEN_FLOAT : TOKEN_INT, l->s + l->at, end - l->at);
    if (is_float)
        t->f = strtod(text, NULL);
    else
        t->i = strtoll(text, NULL, base);
    if (n + 1 == sizeof text || (!is_float && errno == ERANGE))
        FAIL(l, "line %d of the chat template: the number %.40s is too long; use a number of at most 63 bits",
             l->line, text);
    if (!is_float && base == 10 && text[0] == '0' && strspn(text, "0") < n)
        FAIL(l, "line %d of the chat template: the number %.40s begins with 0; remove it", l->line, text);
    advance(l, end);
}

static size_t name_end(const Lexer *l, size_t at) {
    while (at < l->n) {
        uint32_t c;
        const size_t n = utf8_next(l->s + at, &c);
        if (!(c == '_' || (c < 0x80 ? isalnum((int)c) : u_hasBinaryProperty((UChar32)c, UCHAR_ID_CONTINUE))))
            break;
        at += n;
    }
    return at;
}

static void lex_operator(Lexer *l) {
    static const char *const TWO[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = l->s[l->at];
    size_t n = 1;
    for (size_t i = 0; i < sizeof TWO / sizeof *TWO; i++)
        if (looking_at(l, l->at, TWO[i])) n = 2;
    if (n == 1 && (!c || !strchr("+-/*%~[](){}><=.:|,;", c))) {
        FAIL(l,
             "line %d of the chat template: the character %s is not expected in a tag; remove it or quote it",
             l->line, quote((char[]){c, '\0'}).s);
        return;
    }
    const char *opening = strchr("([{", c), *closing = strchr(")]}", c);
    if (opening && l->open == DEEPEST)
        FAIL(l, "line %d of the chat template: brackets are nested too deeply; use at most %d", l->line,
             DEEPEST);
    else if (opening)
        l->brackets[l->open++] = ")]}"[opening - strchr("([{", '(')];
    else if (closing && !(l->open && l->brackets[l->open - 1] == c))
        FAIL(l,
             "line %d of the chat template: '%c' has no opening bracket; remove it, or add the opening "
             "bracket",
             l->line, c);
    else if (closing)
        l->open--;
    add(l, TOKEN_OPERATOR, l->s + l->at, n);
    advance(l, l->at + n);
}

/* Reads the rest of a tag, including its end, after its opening has been read. */
static void lex_tag(Lexer *l, bool is_print) {
    const int line = l->line;
    l->open = 0;
    while (!l->err.code) {
        if (!l->open && skip_end(l, l->at, is_print ? "}}" : "%}", !is_print, !is_print)) {
            add(l, is_print ? TOKEN_PRINT_END : TOKEN_BLOCK_END, "", 0)->line = line;
            return;
        }
        const size_t space = skip_space(l, l->at);
        if (space > l->at) {
            advance(l, space);
            continue;
        }
        if (l->at == l->n) {
            FAIL(l, "line %d of the chat template: a tag has no end; add %s", line, is_print ? "}}" : "%}");
            return;
        }
        const char c = l->s[l->at];
        const size_t end = name_end(l, l->at);
        if (isdigit((unsigned char)c))
            lex_number(l);
        else if (c == '\'' || c == '"')
            lex_string(l);
        else if (end > l->at) {
            add(l, TOKEN_NAME, l->s + l->at, end - l->at);
            advance(l, end);
        } else
            lex_operator(l);
    }
}

/* ---- the template ---- */

/* Returns the position of the next {{, {% or {#, or the end of the source. */
static size_t next_tag(const Lexer *l) {
    size_t at = l->at;
    for (const char *p; at < l->n && (p = memchr(l->s + at, '{', l->n - at)); at = (size_t)(p - l->s) + 1)
        if ((size_t)(p - l->s) + 1 < l->n && strchr("{%#", p[1]) && p[1]) return (size_t)(p - l->s);
    return l->n;
}

static void lex_next(Lexer *l) {
    const size_t at = next_tag(l);
    if (at == l->n) {
        add(l, TOKEN_DATA, l->s + l->at, l->n - l->at);
        advance(l, l->n);
        return;
    }
    const char kind = l->s[at + 1], sign = sign_at(l, at + 2);
    add_data(l, at, sign, kind == '{');
    const size_t inside = at + 2 + (sign != '\0'), raw = kind == '%' ? raw_word(l, inside, "raw") : 0;
    if (raw && (looking_at(l, raw, "%}") || looking_at(l, raw, "-%}"))) {
        skip_end(l, raw, "%}", false, false);
        lex_raw(l);
        return;
    }
    advance(l, inside);
    if (kind == '#')
        skip_comment(l);
    else {
        add(l, kind == '{' ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN, "", 0);
        lex_tag(l, kind == '{');
    }
}

/* Copies the source with \n at the end of each line, and without the last newline. */
static void normalize(Lexer *l, const char *source, size_t n) {
    char *s = arena_alloc(l->arena, n + 1);
    for (size_t i = 0; i < n; i++) {
        s[l->n++] = source[i] == '\r' ? '\n' : source[i];
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') i++;
    }
    if (l->n && s[l->n - 1] == '\n') l->n--;
    l->s = s;
}

Err lexer_run(const char *source, size_t n, Arena *arena, Token **tokens) {
    Lexer l = {.arena = arena, .line = 1};
    normalize(&l, source, n);
    while (l.at < l.n && !l.err.code) lex_next(&l);
    add(&l, TOKEN_END, "", 0);
    *tokens = l.tokens;
    return l.err;
}
