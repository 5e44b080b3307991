/* Source: The Unicode Standard, table 3-7 (well-formed byte sequences) and section 3.9 "U+FFFD substitution of maximal
 * subparts". */
#include "base/utf8.h"

#include <string.h>

#include "base/mem.h"

size_t utf8_next(const char *s, uint32_t *character) {
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return *character = p[0], 1;
    if (p[0] < 0xE0) return *character = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu), 2;
    if (p[0] < 0xF0) return *character = (p[0] & 0xFu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3;
    return *character = (p[0] & 7u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu), 4;
}

size_t utf8_prev(const char *s, size_t at) {
    do at--;
    while (at && !utf8_begins(s[at]));
    return at;
}

size_t utf8_count(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += utf8_begins(s[i]);
    return count;
}

void utf8_put(Str *out, uint32_t c) {
    char b[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6) b[i] = (char)(0x80 | (c & 0x3F));
    b[0] = (char)(lead[n] | c);
    str_add(out, b, n);
}

/* Returns the number of bytes in the character at p. If the character is not valid, returns the negated size of its
 * maximal subpart in bytes. */
static int scan(const unsigned char *p, size_t n) {
    unsigned char lead = p[0], low = 0x80, high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return -1;
    int want = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (int i = 1; i < want; i++, low = 0x80, high = 0xBF)
        if ((size_t)i >= n || p[i] < low || p[i] > high) return -i;
    return want;
}

size_t utf8_prefix(const char *s, size_t n, bool *cut) {
    size_t i = 0;
    *cut = false;
    while (i < n) {
        const unsigned char *p = (const unsigned char *)s + i;
        const int step = scan(p, n - i);
        if (step < 0) {
            *cut = (size_t)-step == n - i && *p >= 0xC2 && *p <= 0xF4; /* the character is incomplete */
            break;
        }
        i += (size_t)step;
    }
    return i;
}

bool utf8_valid(const char *s, size_t n) {
    bool cut;
    return utf8_prefix(s, n, &cut) == n;
}

void utf8_repair(const char *s, size_t n, Str *out) {
    bool cut;
    for (size_t i = 0; i < n;) {
        size_t good = utf8_prefix(s + i, n - i, &cut);
        str_add(out, s + i, good);
        i += good;
        if (i == n) break;
        str_add(out, "\xEF\xBF\xBD", 3);
        i += (size_t)-scan((const unsigned char *)s + i, n - i);
    }
}

uint32_t *utf8_characters(const char *s, size_t n) {
    uint32_t *of = mem_alloc((n + 1) * sizeof *of), count = 0;
    for (size_t i = 0; i < n; i++) {
        count += utf8_begins(s[i]);
        of[i] = count - 1;
    }
    of[n] = count;
    return of;
}
