/* Scans lines without jansson, which rejects some of the JSON that Python's json module writes. The parser decodes only
 * the strings that are needed. */
#include "data/json_line.h"

#include <string.h>

#include "base/str.h"
#include "base/utf8.h"

typedef struct Scan {
    const char *s;
    size_t n, at;
    const char *why; /* the first problem, found at position `at` */
} Scan;

static bool fail(Scan *c, const char *why) {
    if (!c->why) c->why = why;
    return false;
}

static char peek(const Scan *c) { return c->at < c->n ? c->s[c->at] : 0; }

static char after_blanks(Scan *c) {
    while (c->at < c->n && memchr(" \t\r\n", c->s[c->at], 4)) c->at++;
    return peek(c);
}

static bool take(Scan *c, char wanted) {
    if (after_blanks(c) != wanted) return false;
    c->at++;
    return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool digits(Scan *c) {
    const size_t begin = c->at;
    while (is_digit(peek(c))) c->at++;
    return c->at > begin;
}

static bool word(Scan *c, const char *text) {
    const size_t n = strlen(text);
    if (c->n - c->at < n || memcmp(c->s + c->at, text, n)) return false;
    c->at += n;
    return true;
}

static bool escape(Scan *c) {
    const char kind = peek(c);
    if (!kind || !strchr("\"\\/bfnrtu", kind)) return fail(c, "an unknown escape");
    c->at++;
    for (int i = 0; i < 4 * (kind == 'u'); i++, c->at++)
        if (!peek(c) || !strchr("0123456789abcdefABCDEF", peek(c)))
            return fail(c, "\\u without four hexadecimal digits");
    return true;
}

static bool string(Scan *c) {
    if (!take(c, '"')) return fail(c, "a string is expected");
    while (c->at < c->n && c->s[c->at] != '"') {
        if ((unsigned char)c->s[c->at] < ' ') return fail(c, "a control character in a string");
        if (c->s[c->at++] == '\\' && !escape(c)) return false;
    }
    return take(c, '"') || fail(c, "a string without an end");
}

static bool number(Scan *c) {
    const bool minus = word(c, "-");
    if (word(c, "Infinity")) return true;
    if (!minus && word(c, "NaN")) return true;
    if (!word(c, "0") && !digits(c)) return fail(c, "a value is expected");
    if (word(c, ".") && !digits(c)) return fail(c, "a number has no digits after its decimal point");
    if (peek(c) != 'e' && peek(c) != 'E') return true;
    c->at++;
    if (!word(c, "-")) word(c, "+");
    return digits(c) || fail(c, "a number has no digits in its exponent");
}

static bool scalar(Scan *c) {
    if (peek(c) == '"') return string(c);
    return word(c, "true") || word(c, "false") || word(c, "null") || number(c);
}

static bool key(Scan *c) { return string(c) && (take(c, ':') || fail(c, "':' is expected after a key")); }

/* Closes the lists and objects that end at the current position. If a list or an object remains open, moves
 * to its next value. */
static bool next_value(Scan *c, Str *open) {
    while (open->len && take(c, open->s[open->len - 1])) open->len--;
    if (!open->len) return true;
    if (!take(c, ',')) return fail(c, "',' or the end of a list or an object is expected");
    return open->s[open->len - 1] == ']' || key(c);
}

/* Skips a value of any depth. */
static bool value(Scan *c) {
    Str open = {0}; /* closing brackets of the open lists and objects */
    bool ok = true;
    do {
        const char first = after_blanks(c);
        if (first == '{' || first == '[') {
            const char last = first == '{' ? '}' : ']';
            str_add(&open, &last, 1);
            c->at++;
            if (after_blanks(c) != last) {
                ok = first == '[' || key(c);
                continue;
            }
        } else {
            ok = scalar(c);
        }
        ok = ok && next_value(c, &open);
    } while (ok && open.len);
    str_free(&open);
    return ok;
}

/* Returns whether the key is `name`. `spelled` is the key as written, with quotes and escapes. */
static bool is_key(JsonText spelled, const char *name) {
    const size_t n = strlen(name);
    if (!memchr(spelled.at, '\\', spelled.n)) return spelled.n == n + 2 && !memcmp(spelled.at + 1, name, n);
    json_t *decoded = json_loadb(spelled.at, spelled.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const bool same = json_string_length(decoded) == n && !memcmp(json_string_value(decoded), name, n);
    json_decref(decoded);
    return same;
}

static JsonText text_from(const Scan *c, size_t begin) { return (JsonText){c->s + begin, c->at - begin}; }

static bool member(Scan *c, const char *const *keys, int n, JsonText *out) {
    after_blanks(c);
    const size_t begin = c->at;
    if (!string(c)) return false;
    const JsonText name = text_from(c, begin);
    if (!take(c, ':')) return fail(c, "':' is expected after a key");
    after_blanks(c);
    const size_t from = c->at;
    if (!value(c)) return false;
    for (int i = 0; i < n; i++)
        if (is_key(name, keys[i])) out[i] = text_from(c, from);
    return true;
}

static bool object(Scan *c, const char *const *keys, int n, JsonText *out) {
    if (!take(c, '{')) return fail(c, "'{' is expected");
    if (take(c, '}')) return true;
    do
        if (!member(c, keys, n, out)) return false;
    while (take(c, ','));
    return take(c, '}') || fail(c, "',' or '}' is expected");
}

static const char *advice(const Scan *c, bool is_first) {
    Scan start = {.s = c->s, .n = c->n};
    const char first = after_blanks(&start);
    if (first == '{' && c->at == c->n) return "write each object on one line";
    if (first == '{' || !is_first) return "correct or remove the line";
    if (first == '[') return "write each object of the list on its own line, as JSON Lines";
    return "for plain text set --input-format text or paragraphs";
}

Err json_line(const char *line, size_t size, bool is_first, const char *const *keys, int n, JsonText *out) {
    Scan c = {.s = line, .n = size};
    memset(out, 0, (size_t)n * sizeof *out);
    bool ok = object(&c, keys, n, out);
    if (ok && (after_blanks(&c), c.at < c.n)) ok = fail(&c, "other text follows the object");
    if (ok) return ERR_OK;
    Scan start = {.s = line, .n = size};
    if (after_blanks(&start) != '{' && value(&start) && (after_blanks(&start), start.at == start.n))
        return err_user("not a JSON object; %s", advice(&c, is_first));
    return err_user("not valid JSON: %s at column %zu; %s", c.why, utf8_count(line, c.at) + 1,
                    advice(&c, is_first));
}

Err json_line_string(JsonText text, const char *key, json_t **out) {
    json_error_t why;
    if (!text.at) return err_user("there is no key '%s': set --json-keys to the keys of the texts", key);
    if (*text.at != '"')
        return err_user("the value of the key '%s' is not a string; write it in quotes", key);
    *out = json_loadb(text.at, text.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (*out) return ERR_OK;
    return err_user("the value of the key '%s' has an unpaired surrogate, which is not a character (%s); "
                    "correct or remove the line",
                    key, why.text);
}

bool json_line_element(JsonText *rest, JsonText *element) {
    Scan c = {.s = rest->at, .n = rest->n, .at = 1}; /* skips the bracket or the comma */
    if (!rest->n || after_blanks(&c) == ']' || c.at == c.n) return false;
    const size_t begin = c.at;
    value(&c);
    *element = text_from(&c, begin);
    after_blanks(&c);
    *rest = (JsonText){c.s + c.at, c.n - c.at};
    return true;
}
