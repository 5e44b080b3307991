#include "base/json_text.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t json_text_string(const char *s, size_t n) {
    size_t i = 1;
    while (i < n && s[i] != '"') i += s[i] == '\\' ? 2 : 1;
    return i < n ? i + 1 : n;
}

/* The length of the number, NaN, Infinity or -Infinity at s; 0: there is none. */
static size_t scalar_bytes(const char *s) {
    static const char *const WORDS[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (!strncmp(s, WORDS[i], strlen(WORDS[i]))) return strlen(WORDS[i]);
    return strspn(s, "+-.0123456789eE");
}

/* Writes the replacement of a value that jansson refuses; false: jansson reads this value. */
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
