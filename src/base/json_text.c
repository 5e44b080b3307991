#include "base/json_text.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

size_t json_text_string(const char *s, size_t n) {
    size_t i = 1;
    while (i < n && s[i] != '"') i += s[i] == '\\' ? 2 : 1;
    return i < n ? i + 1 : n;
}

/* Returns the length of the number, NaN, Infinity or -Infinity at s, or 0 if there is none. */
static size_t scalar_bytes(const char *s) {
    static const char *const WORDS[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (!strncmp(s, WORDS[i], strlen(WORDS[i]))) return strlen(WORDS[i]);
    return strspn(s, "+-.0123456789eE");
}

/* Sets `text` to the replacement for a value that jansson rejects. Returns false if jansson accepts the value. */
static bool replaced(const char *s, size_t n, char text[static 80]) {
    const double value = strtod(s, NULL);
    if (!isfinite(value)) return snprintf(text, 80, "\"%.*s\"", (int)(n < 60 ? n : 60), s), true;
    errno = 0, strtoll(s, NULL, 10);
    if (errno != ERANGE || strcspn(s, ".eE") < n) return false;
    return snprintf(text, 80, "%.17e", value), true;
}

void json_text_numbers(Str *json) {
    Str out = {0};
    char text[80];
    size_t copied = 0;
    for (size_t i = 0; i < json->len;) {
        const char *s = json->s + i;
        const bool is_string = *s == '"';
        const size_t n = is_string ? json_text_string(s, json->len - i) : scalar_bytes(s);
        if (n && !is_string && replaced(s, n, text)) {
            str_add(&out, json->s + copied, i - copied);
            str_puts(&out, text);
            copied = i + n;
        }
        i += n ? n : 1;
    }
    if (!copied) return;
    str_add(&out, json->s + copied, json->len - copied);
    str_free(json);
    *json = out;
}

/* ---- writing ---- */

json_t *json_finite(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* Decodes the code point at p and returns its number of bytes, or 0 if the bytes at p are not valid UTF-8. */
static int decode(const unsigned char *p, uint32_t *code) {
    static const uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000};
    int n = *p < 0x80 ? 1 : *p >> 5 == 6 ? 2 : *p >> 4 == 14 ? 3 : *p >> 3 == 30 ? 4 : 0;
    if (!n) return 0;
    uint32_t c = n == 1 ? *p : *p & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) {
        if (p[i] >> 6 != 2) return 0;
        c = c << 6 | (p[i] & 63);
    }
    if (c < LEAST[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *code = c;
    return n;
}

/* Prints a string in ASCII. Non-ASCII characters become lower-case \uXXXX, with surrogate pairs where needed, and bytes
 * that are not UTF-8 become \udcXX. */
static void print_string(Str *out, const char *text, size_t length) {
    static const char SHORT[] =
        "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: a character, and the letter that follows the backslash in its escape
                                    * sequence */
    str_puts(out, "\"");
    for (const unsigned char *p = (const unsigned char *)text, *end = p + length; p < end;) {
        uint32_t c = 0;
        int n = decode(p, &c); /* never reads beyond the terminating NUL */
        const char *pair = NULL;
        for (int i = 0; SHORT[i]; i += 2)
            if (n && (uint32_t)SHORT[i] == c) pair = SHORT + i;
        if (!n)
            str_printf(out, "\\udc%02x", *p);
        else if (pair)
            str_printf(out, "\\%c", pair[1]);
        else if (c >= 0x10000)
            str_printf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + (c & 0x3ff));
        else if (c < 0x20 || c >= 0x7f)
            str_printf(out, "\\u%04x", c);
        else
            str_add(out, (const char *)p, 1);
        p += n ? n : 1;
    }
    str_puts(out, "\"");
}

void json_print_real(Str *out, double x) {
    char text[32];
    int digits = 1;
    do snprintf(text, sizeof text, "%.*e", digits - 1, x);
    while (strtod(text, NULL) != x && ++digits <= 17);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        str_printf(out, "%.*g", digits, x); /* as in Python, an exponent has at least two digits: "1e-05" */
    } else {
        int decimals = digits - 1 - exponent;
        str_printf(out, "%.*f", decimals > 1 ? decimals : 1, x);
    }
}

static void next_member(Str *out, bool first, int indent, int depth) {
    if (!first) str_puts(out, indent ? "," : ", ");
    if (indent) str_printf(out, "\n%*s", indent * depth, "");
}

static void print_object(Str *out, json_t *json, int indent, int depth) {
    const char *key;
    size_t length;
    json_t *value;
    bool first = true;
    str_puts(out, "{");
    json_object_keylen_foreach(json, key, length, value) {
        next_member(out, first, indent, depth + 1);
        print_string(out, key, length);
        str_puts(out, ": ");
        json_print(out, value, indent, depth + 1);
        first = false;
    }
    if (!first) next_member(out, true, indent, depth);
    str_puts(out, "}");
}

static void print_array(Str *out, const json_t *json, int indent, int depth) {
    str_puts(out, "[");
    for (size_t i = 0; i < json_array_size(json); i++) {
        next_member(out, i == 0, indent, depth + 1);
        json_print(out, json_array_get(json, i), indent, depth + 1);
    }
    if (json_array_size(json)) next_member(out, true, indent, depth);
    str_puts(out, "]");
}

void json_print(Str *out, const json_t *json, int indent, int depth) {
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        print_object(out, (json_t *)json, indent, depth);
        break;
    case JSON_ARRAY:
        print_array(out, json, indent, depth);
        break;
    case JSON_STRING:
        print_string(out, json_string_value(json), json_string_length(json));
        break;
    case JSON_INTEGER:
        str_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(json));
        break;
    case JSON_REAL:
        json_print_real(out, json_real_value(json));
        break;
    case JSON_TRUE:
        str_puts(out, "true");
        break;
    case JSON_FALSE:
        str_puts(out, "false");
        break;
    case JSON_NULL:
        str_puts(out, "null");
    }
}
