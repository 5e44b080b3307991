#include "tokenizer/text/base64.h"

#include <stdint.h>

static int digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_decode(const char *text, size_t n, Str *out) {
    if (n % 4) return false;
    size_t padding = !n || text[n - 1] != '=' ? 0 : text[n - 2] != '=' ? 1 : 2;
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        int d = i < n - padding ? digit(text[i]) : 0;
        if (d < 0) return false;
        bits = bits << 6 | (uint32_t)d;
        if (i % 4 == 3)
            str_add(out, (const char[]){(char)(bits >> 16), (char)(bits >> 8), (char)bits},
                    i == n - 1 ? 3 - padding : 3);
    }
    return true;
}

void base64_encode(const char *bytes, size_t n, Str *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (i + k < n ? (unsigned char)bytes[i + k] : 0);
        for (size_t k = 0; k < 4; k++) str_add(out, i + k > n ? "=" : &digits[bits >> (18 - 6 * k) & 63], 1);
    }
}
