/* Unicode operations that use utf8proc's tables. Combining marks are sorted here, because utf8proc_map would
 * sort them in quadratic time. */
#include "tokenizer/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/text/ages.h"

enum { LONGEST_DECOMPOSITION = 32 }; /* the longest decomposition (of U+FDFA) has 18 characters */

static bool is_ascii(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] & 0x80) return false;
    return true;
}

static unsigned combining_class(int32_t c) {
    return age_unordered((uint32_t)c) ? 0 : (unsigned)utf8proc_get_property(c)->combining_class;
}

/* A character of a decomposition, and its change (Edit.change). */
typedef struct Part {
    int32_t c;
    int change;
} Part;

/* Sorts [v, v + n) by combining class (below 256) with a stable counting sort. */
static void sort_marks(Part *v, size_t n) {
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++) sorted = combining_class(v[i - 1].c) <= combining_class(v[i].c);
    if (sorted) return;
    size_t start[257] = {0};
    Part *copy = mem_alloc(n * sizeof *copy);
    memcpy(copy, v, n * sizeof *v);
    for (size_t i = 0; i < n; i++) start[combining_class(v[i].c) + 1]++;
    for (int c = 0; c < 256; c++) start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++) v[start[combining_class(copy[i].c)]++] = copy[i];
    free(copy);
}

static size_t decompose_char(uint32_t c, bool compat, int32_t out[LONGEST_DECOMPOSITION]) {
    const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    out[0] = (int32_t)c;
    if (age_unordered(c)) return 1;
    const utf8proc_ssize_t k =
        utf8proc_decompose_char((int32_t)c, out, LONGEST_DECOMPOSITION, (utf8proc_option_t)options, NULL);
    CHECK(k >= 0 && k <= LONGEST_DECOMPOSITION, "utf8proc gives %ld for U+%04X", (long)k, c);
    return (size_t)k;
}

/* Decomposes the text into *v, which the caller frees. Returns the number of characters. */
static size_t decompose(View text, bool compat, Part **v) {
    size_t cap = text.n + LONGEST_DECOMPOSITION, count = 0;
    *v = mem_alloc(cap * sizeof **v);
    for (size_t i = 0; i < text.n;) {
        uint32_t c;
        int32_t to[LONGEST_DECOMPOSITION];
        i += utf8_next(text.text + i, &c);
        if (cap - count < LONGEST_DECOMPOSITION)
            *v = mem_grow(*v, cap += cap / 2 + LONGEST_DECOMPOSITION, sizeof **v);
        const size_t k = decompose_char(c, compat, to);
        for (size_t j = 0; j < k; j++) (*v)[count++] = (Part){to[j], j > 0};
    }
    for (size_t i = 0, end; i < count; i = end + 1) {
        for (end = i; end < count && combining_class((*v)[end].c); end++) continue;
        sort_marks(*v + i, end - i);
    }
    return count;
}

/* Composes a pair into *a. Returns false if the characters do not compose. No character composes with a
 * following character below U+0300, or with a character that Unicode 9 does not define. utf8proc also
 * composes Hangul with U+11A7, which is not a final consonant. */
static bool compose_pair(Part *a, Part b) {
    int32_t pair[] = {a->c, b.c};
    if (b.c < 0x300) return false;
    if (age_unordered((uint32_t)a->c) || age_unordered((uint32_t)b.c) || b.c == 0x11A7 ||
        utf8proc_normalize_utf32(pair, 2, UTF8PROC_STABLE | UTF8PROC_COMPOSE) != 1)
        return false;
    *a = (Part){pair[0], a->change + b.change - 1};
    return true;
}

/* Runs the canonical composition algorithm. Marks that do not compose with their starter follow the starter. */
static void recompose(Part *v, size_t count, Edit *e) {
    size_t waiting = 0; /* number of waiting marks, which are v[0 .. waiting) */
    Part starter = {0, 0};
    bool has = false;
    unsigned last = 0; /* combining class of the last waiting mark */
    for (size_t i = 0; i < count; i++) {
        const Part p = v[i];
        const unsigned class = combining_class(p.c);
        if (has && (!waiting || last < class) && compose_pair(&starter, p)) continue;
        if (class) {
            if (has)
                v[waiting++] = p, last = class;
            else
                edit_put(e, (uint32_t)p.c, p.change);
            continue;
        }
        if (has) edit_put(e, (uint32_t)starter.c, starter.change);
        for (size_t k = 0; k < waiting; k++) edit_put(e, (uint32_t)v[k].c, v[k].change);
        waiting = 0;
        starter = p, has = true;
    }
    if (has) edit_put(e, (uint32_t)starter.c, starter.change);
    for (size_t k = 0; k < waiting; k++) edit_put(e, (uint32_t)v[k].c, v[k].change);
}

void unicode_normalize(View text, bool compat, bool compose, Aligned *out) {
    if (is_ascii(text.text, text.n)) {
        aligned_add(out, text);
        return;
    }
    Part *v;
    Edit e = {.from = text, .out = out};
    const size_t count = decompose(text, compat, &v);
    if (compose)
        recompose(v, count, &e);
    else
        for (size_t i = 0; i < count; i++) edit_put(&e, (uint32_t)v[i].c, v[i].change);
    edit_end(&e);
    free(v);
}

void unicode_lower(View text, Aligned *out) {
    Edit e = {.from = text, .out = out};
    for (size_t i = 0; i < text.n;) {
        uint32_t c;
        i += utf8_next(text.text + i, &c);
        edit_put(&e, c == 0x130 ? 'i' : (uint32_t)utf8proc_tolower((int32_t)age_lower(c)), 0);
        if (c == 0x130) edit_put(&e, 0x307, 1); /* only U+0130 becomes two characters */
    }
    edit_end(&e);
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
