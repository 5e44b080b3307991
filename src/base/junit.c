#include "base/junit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

void xml_text(Str *out, const char *text) {
    Str valid = {0};
    utf8_repair(text, strlen(text), &valid);
    for (const char *s = valid.s ? valid.s : ""; *s; s++) switch (*s) {
        case '<':
            str_puts(out, "&lt;");
            break;
        case '>':
            str_puts(out, "&gt;");
            break;
        case '&':
            str_puts(out, "&amp;");
            break;
        case '"':
            str_puts(out, "&quot;");
            break;
        case '\n':
            str_puts(out, "\n");
            break;
        default:
            if ((unsigned char)*s >= 32) str_add(out, s, 1);
        }
    str_free(&valid);
}

void junit_property(Str *out, const char *indent, const char *name, const char *value) {
    str_printf(out, "%s<property name=\"%s\" value=\"", indent, name);
    xml_text(out, value);
    str_puts(out, "\"/>\n");
}

void junit_number(Str *out, const char *indent, const char *name, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    if (isfinite(value)) junit_property(out, indent, name, text);
}
