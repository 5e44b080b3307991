#include "data/describe.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The code point at p and its bytes; 0 bytes if p is not valid UTF-8 there. */
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

void describe_string(Str *out, const char *text) {
    static const char SHORT[] =
        "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: a character, and its letter after the backslash */
    str_puts(out, "\"");
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        uint32_t c = 0;
        int n = decode(p, &c);
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
            str_printf(out, "%c", (int)c);
        p += n ? n : 1;
    }
    str_puts(out, "\"");
}

void describe_double(Str *out, double x) {
    char text[32];
    int digits = 1;
    do snprintf(text, sizeof text, "%.*e", digits - 1, x);
    while (strtod(text, NULL) != x && ++digits <= 17);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        str_printf(out, "%.*g", digits, x); /* "1e-05": as in Python, an exponent has at least two digits */
    } else {
        int decimals = digits - 1 - exponent;
        str_printf(out, "%.*f", decimals > 1 ? decimals : 1, x);
    }
}

void describe_newline(Str *out, int depth) { str_printf(out, "\n%*s", 4 * depth, ""); }

void describe_key(Str *out, const char *key, int depth) {
    describe_newline(out, depth);
    str_printf(out, "\"%s\": ", key);
}

Err describe_object(Str *out, const char *json, int depth) {
    json_error_t error;
    json_t *object = json_loads(json, JSON_REJECT_DUPLICATES, &error), *value;
    if (!json_is_object(object)) {
        json_decref(object);
        return err_user("the tokenizer's identifiers '%.200s' are not a JSON object", json);
    }
    Err e = ERR_OK;
    const char *key, *comma = "";
    str_puts(out, "{");
    json_object_foreach(object, key, value) {
        str_puts(out, comma);
        describe_newline(out, depth + 1);
        describe_string(out, key);
        str_puts(out, ": ");
        if (json_is_string(value))
            describe_string(out, json_string_value(value));
        else if (json_is_integer(value))
            str_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        else if (json_is_real(value))
            describe_double(out, json_real_value(value));
        else if (json_is_boolean(value) || json_is_null(value))
            str_puts(out, json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
        else
            e = err_user("the tokenizer's identifier '%.200s' is neither a string nor a number", key);
        comma = ",";
    }
    if (*comma) describe_newline(out, depth);
    str_puts(out, "}");
    json_decref(object);
    return e;
}
