/* Source: serde_json/src/de.rs (parse_decimal, parse_long_integer, parse_exponent, f64_from_parts). */
#include "tokenizer/text/serde_number.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"

enum { LARGEST_POWER = 308, LARGEST_EXPONENT = 1 << 30 };

typedef struct Number {
    uint64_t significand;
    int64_t exponent;
} Number;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Appends a digit. Returns false if the significand would overflow. */
static bool add_digit(Number *x, char c) {
    const uint64_t digit = (uint64_t)(c - '0');
    if (x->significand > (UINT64_MAX - digit) / 10) return false;
    x->significand = x->significand * 10 + digit;
    return true;
}

static double value_of(Number x) {
    double f = (double)x.significand;
    for (; x.exponent < -LARGEST_POWER && f != 0; x.exponent += LARGEST_POWER) f /= 1e308;
    if (f == 0) return 0;
    if (x.exponent > LARGEST_POWER) return INFINITY;
    char text[8];
    snprintf(text, sizeof text, "1e%d", (int)llabs((long long)x.exponent));
    const double power = strtod(text, NULL);
    return x.exponent >= 0 ? f * power : f / power;
}

/* Reads the exponent after "e". Returns the end of the exponent, or NULL if the exponent is malformed. */
static const char *read_exponent(const char *s, Number *x) {
    const bool negative = *s == '-';
    int64_t exponent = 0;
    if (*s == '-' || *s == '+') s++;
    if (!is_digit(*s)) return NULL;
    for (; is_digit(*s); s++)
        if (exponent < LARGEST_EXPONENT) exponent = exponent * 10 + (*s - '0');
    x->exponent += negative ? -exponent : exponent;
    return s;
}

/* Reads a real number from a NUL-terminated text. Returns the end of the number, or NULL if the number is
 * malformed. */
static const char *read_real(const char *s, double *value) {
    const bool negative = *s == '-';
    Number x = {0, 0};
    s += negative;
    if (!is_digit(*s) || (*s == '0' && is_digit(s[1]))) return NULL;
    while (is_digit(*s) && add_digit(&x, *s)) s++;
    for (; is_digit(*s); s++) x.exponent++;
    if (*s == '.') {
        if (!is_digit(*++s)) return NULL;
        for (; is_digit(*s) && add_digit(&x, *s); s++) x.exponent--;
        while (is_digit(*s)) s++;
    }
    if ((*s == 'e' || *s == 'E') && !(s = read_exponent(s + 1, &x))) return NULL;
    *value = negative ? -value_of(x) : value_of(x);
    return s;
}

void serde_numbers(Str *json) {
    Str out = {0};
    size_t copied = 0;
    for (size_t i = 0; i < json->len;) {
        const char *s = json->s + i;
        if (*s != '-' && !is_digit(*s)) {
            i += *s == '"' ? json_text_string(s, json->len - i) : 1;
            continue;
        }
        double value;
        const size_t n = strspn(s, "+-.0123456789eE");
        const bool real = memchr(s, '.', n) || memchr(s, 'e', n) || memchr(s, 'E', n);
        if (real && read_real(s, &value) == s + n && isfinite(value) && value != strtod(s, NULL)) {
            str_add(&out, json->s + copied, i - copied);
            str_printf(&out, "%.17e", value);
            copied = i + n;
        }
        i += n;
    }
    if (!copied) return;
    str_add(&out, json->s + copied, json->len - copied);
    str_free(json);
    *json = out;
}
