/* Unicode operations with utf8proc's tables. The sort of combining marks is our own, because utf8proc_map
 * takes quadratic time. */
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tokenizer/ages.h"
#include "base/utf8.h"

enum { LONGEST_DECOMPOSITION = 32 }; /* U+FDFA has 18 */

static bool is_ascii(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] & 0x80) return false;
    return true;
}

static unsigned combining_class(int32_t c) {
    return age_unordered((uint32_t)c) ? 0 : (unsigned)utf8proc_get_property(c)->combining_class;
}

/* Stable counting sort of [v, v + n) by combining class (all below 256). */
static void sort_marks(int32_t *v, size_t n) {
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++) sorted = combining_class(v[i - 1]) <= combining_class(v[i]);
    if (sorted) return;
    size_t start[257] = {0};
    int32_t *copy = mem_alloc(n * sizeof *copy);
    memcpy(copy, v, n * sizeof *v);
    for (size_t i = 0; i < n; i++) start[combining_class(v[i]) + 1]++;
    for (int c = 0; c < 256; c++) start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++) v[start[combining_class(copy[i])]++] = copy[i];
    free(copy);
}

/* Decomposes the text into *v, which the caller frees, and returns how many characters that gives. */
static size_t decompose(const char *text, size_t n, bool compat, int32_t **v) {
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    size_t cap = n + LONGEST_DECOMPOSITION, count = 0;
    *v = mem_alloc(cap * sizeof **v);
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += utf8_next(text + i, &c);
        if (cap - count < LONGEST_DECOMPOSITION)
            *v = mem_grow(*v, cap += cap / 2 + LONGEST_DECOMPOSITION, sizeof **v);
        utf8proc_ssize_t k = 1;
        if (age_unordered(c))
            (*v)[count] = (int32_t)c;
        else
            k = utf8proc_decompose_char((int32_t)c, *v + count, LONGEST_DECOMPOSITION,
                                        (utf8proc_option_t)options, NULL);
        CHECK(k >= 0 && k <= LONGEST_DECOMPOSITION, "utf8proc gives %ld for U+%04X", (long)k, c);
        count += (size_t)k;
    }
    for (size_t i = 0, end; i < count; i = end + 1) {
        for (end = i; end < count && combining_class((*v)[end]); end++) continue;
        sort_marks(*v + i, end - i);
    }
    return count;
}

void unicode_normalize(const char *text, size_t n, bool compat, bool compose, Str *out) {
    if (is_ascii(text, n)) {
        str_add(out, text, n);
        return;
    }
    int32_t *v;
    size_t count = decompose(text, n, compat, &v);
    for (size_t i = 0, end; i < count;
         i = end) { /* no composition crosses a character that Unicode 9 does not define */
        for (end = i + 1; end < count && !age_unordered((uint32_t)v[end]); end++) continue;
        utf8proc_ssize_t k = (utf8proc_ssize_t)(end - i);
        if (compose) k = utf8proc_normalize_utf32(v + i, k, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        CHECK(k >= 0, "utf8proc: %s", utf8proc_errmsg(k));
        for (utf8proc_ssize_t j = 0; j < k; j++) utf8_put(out, (uint32_t)v[i + (size_t)j]);
    }
    free(v);
}

void unicode_lower(const char *text, size_t n, Str *out) {
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += utf8_next(text + i, &c);
        if (c == 0x130)
            str_puts(out, "i\xCC\x87"); /* the only character whose lower case has two characters */
        else
            utf8_put(out, (uint32_t)utf8proc_tolower((int32_t)age_lower(c)));
    }
}

size_t unicode_cluster(const char *text, size_t n) {
    uint32_t c, next;
    utf8proc_int32_t state = 0;
    size_t end = utf8_next(text, &c);
    for (size_t width; end < n; end += width, c = next) {
        width = utf8_next(text + end, &next);
        if (c < 0x80 && next < 0x80 && !(c == '\r' && next == '\n')) break;
        if (utf8proc_grapheme_break_stateful((int32_t)age_stand_in(c), (int32_t)age_stand_in(next), &state))
            break;
    }
    return end;
}

bool unicode_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool unicode_is_word(uint32_t c) {
    c = age_stand_in(c);
    switch (utf8proc_category((int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        break;
    }
    /* Other_Alphabetic among the symbols (circled and squared letters), then Join_Control */
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
}
