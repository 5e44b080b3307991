/* Source: Oniguruma doc/RE and doc/SYNTAX.md (ONIG_SYNTAX_RUBY); pcre2pattern(3). */
#include "tokenizer/text/onig.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/utf8.h"

/* Oniguruma's \w matches more characters than PCRE2's \w. Outside classes, Oniguruma's \w also matches six Latin-1
 * superscripts and fractions. Oniguruma's \s does not match U+180E, unlike PCRE2's \s. */
#define CLASS_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD       CLASS_WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define SPACE      "\\p{White_Space}"

enum { MAX_GROUPS = 200 };

typedef struct Rewrite {
    const char *p; /* the pattern, and the position in it */
    size_t n, i;
    Str *out;
    bool in_class, class_start, nested; /* nested: whether the position is in a nested class */
    /* position in `out` of the last atom, the part of the pattern to which a quantifier applies */
    size_t atom;
    size_t groups[MAX_GROUPS], depth;
} Rewrite;

static Err refuse(const Rewrite *r, const char *what) {
    return err_user("the regex '%.*s' uses %s at byte %zu, which is not supported", onig_shown(r->n), r->p,
                    what, r->i);
}

static bool at(const Rewrite *r, size_t i, const char *text) {
    size_t n = strlen(text);
    return i <= r->n && r->n - i >= n && !memcmp(r->p + i, text, n);
}

static void begin_atom(Rewrite *r) {
    if (!r->in_class) r->atom = r->out->len;
}

/* Writes a set of characters. Inside a class, the set is unchanged. Outside a class, the set becomes a
 * separate class. */
static void put_set(Rewrite *r, const char *set, bool negated) {
    str_printf(r->out, r->in_class ? "%s" : negated ? "[^%s]" : "[%s]", set);
}

/* Returns whether the name is a script. \p{Han} is a script in Oniguruma, but a set of script extensions in PCRE2. */
static bool is_script(const char *name, size_t n) {
    Str probe = {0};
    str_printf(&probe, "\\p{sc:%.*s}", (int)n, name);
    int code;
    PCRE2_SIZE offset;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)probe.s, probe.len, PCRE2_UTF, &code, &offset, NULL);
    pcre2_code_free(compiled);
    str_free(&probe);
    return compiled != NULL;
}

/* Converts \p{Name}, \p{^Name} and \P{Name}. */
static Err property(Rewrite *r) {
    bool negated = r->p[r->i + 1] == 'P';
    size_t name = r->i + 3, end = name;
    if (!at(r, r->i + 2, "{")) return refuse(r, "a property without braces");
    if (at(r, name, "^")) negated = !negated, name++;
    for (end = name; end < r->n && (isalnum((unsigned char)r->p[end]) || strchr("_ -", r->p[end]));) end++;
    if (end == name || end - name > 64 || !at(r, end, "}")) return refuse(r, "a malformed \\p{...}");
    bool script = end - name > 2 && is_script(r->p + name, end - name);
    str_printf(r->out, "\\%c{%s%.*s}", negated ? 'P' : 'p', script ? "sc:" : "", (int)(end - name),
               r->p + name);
    r->i = end + 1;
    return ERR_OK;
}

/* Converts \uHHHH, \xHH and \x{H...}. */
static Err code_point(Rewrite *r) {
    bool braces = at(r, r->i + 2, "{");
    size_t first = r->i + 2 + braces, end = first, most = braces ? 8 : r->p[r->i + 1] == 'u' ? 4 : 2;
    uint32_t c = 0;
    for (; end < r->n && end - first < most && isxdigit((unsigned char)r->p[end]); end++)
        c = c << 4 |
            (uint32_t)(isdigit((unsigned char)r->p[end]) ? r->p[end] - '0' : (r->p[end] | 32) - 'a' + 10);
    bool closed = !braces || at(r, end, "}");
    if (end == first || !closed || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        return refuse(r, "a malformed character code");
    if (r->p[r->i + 1] == 'u' && (braces || end - first < 4)) return refuse(r, "a malformed \\u");
    if (r->p[r->i + 1] == 'x' && !braces && c >= 0x80) return refuse(r, "a raw byte");
    str_printf(r->out, "\\x{%x}", c);
    r->i = end + braces;
    return ERR_OK;
}

static Err escape(Rewrite *r) {
    if (r->i + 1 >= r->n) return refuse(r, "a backslash at its end");
    char e = r->p[r->i + 1];
    bool in_class = r->in_class;
    begin_atom(r);
    if (e == 'p' || e == 'P') return property(r);
    if (e == 'u' || e == 'x') return code_point(r);
    if (e == 's')
        put_set(r, SPACE, false);
    else if (e == 'S')
        put_set(r, "\\P{White_Space}", false);
    else if (e == 'd')
        put_set(r, "\\p{Nd}", false);
    else if (e == 'D')
        put_set(r, "\\P{Nd}", false);
    else if (e == 'w')
        put_set(r, in_class ? CLASS_WORD : WORD, false);
    else if (e == 'W' && !in_class)
        put_set(r, WORD, true);
    else if (e == 'b' && in_class)
        str_puts(r->out, "\\x08");
    else if (e == 'b')
        str_puts(r->out, "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))");
    else if (e == 'B' && !in_class)
        str_puts(r->out, "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
    else if (e == 'v')
        str_puts(r->out, "\\x0b");
    else if (strchr("tnrfae", e) || (strchr("AzZG", e) && !in_class) || (e >= '1' && e <= '9' && !in_class))
        str_add(r->out, r->p + r->i, 2);
    else if (isalnum((unsigned char)e))
        return refuse(r, "an escape");
    else if ((unsigned char)e < 0x80)
        str_add(r->out, r->p + r->i, 2);
    else
        r->i--; /* a backslash before any other character quotes that character */
    r->i += 2;
    return ERR_OK;
}

/* Converts a bracket of a nested class. A nested class adds its characters to the outer class. Negated nested
 * classes, and brackets next to '-', are refused. */
static Err nested_class(Rewrite *r) {
    static const char *const NOT[] = {"[^", "[:", "[]", "[-", "]-"};
    bool refused = r->p[r->i - 1] == '-' || (r->p[r->i] == '[' && r->nested);
    for (size_t k = 0; k < sizeof NOT / sizeof *NOT; k++) refused |= at(r, r->i, NOT[k]);
    if (refused) return refuse(r, "a nested class of this kind");
    r->nested = r->p[r->i++] == '[';
    return ERR_OK;
}

static Err class_item(Rewrite *r) {
    char c = r->p[r->i];
    bool first = r->class_start;
    r->class_start = false;
    if (c == '\\') return escape(r);
    if (c == '[' || (c == ']' && r->nested)) return nested_class(r);
    if (at(r, r->i, "&&")) return refuse(r, "an intersection of classes");
    if (c == ']' && !first) r->in_class = false;
    if (c == ']' && first) str_puts(r->out, "\\");
    str_add(r->out, &r->p[r->i++], 1);
    return ERR_OK;
}

/* Returns whether the pattern contains a pair that Oniguruma folds to one character: in case-insensitive matches,
 * "ss" matches U+00DF and "ff" matches a ligature. PCRE2 folds only single characters. */
static bool folds_to_one(const char *p, size_t n) {
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    for (size_t i = 0; i + 1 < n; i++)
        for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
            if (!strncasecmp(p + i, pairs[k], 2)) return true;
    return false;
}

/* Converts "(". Groups, look-around and atomic groups have the same syntax in PCRE2, but options have a different
 * syntax. */
static Err group(Rewrite *r) {
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (r->depth == MAX_GROUPS) return refuse(r, "groups nested too deeply");
    r->groups[r->depth++] = r->out->len;
    for (size_t k = 0; k < sizeof same / sizeof *same; k++)
        if (at(r, r->i, same[k])) {
            str_puts(r->out, same[k]);
            r->i += strlen(same[k]);
            return ERR_OK;
        }
    if (at(r, r->i, "(*")) return refuse(r, "a callout");
    if (!at(r, r->i, "(?")) {
        str_puts(r->out, "(");
        r->i++;
        return ERR_OK;
    }
    size_t end = r->i + 2;
    while (end < r->n && strchr("im-", r->p[end])) end++;
    bool to_the_end = at(r, end, ")") && r->i == 0; /* (?i) at the start of the pattern */
    if (end == r->i + 2 || !(at(r, end, ":") || to_the_end)) return refuse(r, "a kind of group or option");
    if (memchr(r->p + r->i, 'i', end - r->i) && folds_to_one(r->p, r->n))
        return refuse(r, "ss, ff, fi, fl or st with case ignored");
    for (; r->i < end; r->i++) str_printf(r->out, "%c", r->p[r->i] == 'm' ? 's' : r->p[r->i]);
    if (to_the_end) r->depth--;
    str_printf(r->out, "%c", r->p[r->i++]);
    return ERR_OK;
}

/* Converts "{". In Ruby, {,m} means {0,m}. The + in {n,m}+ repeats the repetition, and the ? in {n}? makes the
 * repetition optional. */
static void braces(Rewrite *r) {
    size_t i = r->i + 1, digits = i;
    while (i < r->n && isdigit((unsigned char)r->p[i])) i++;
    bool low = i > digits, comma = at(r, i, ",");
    size_t high = i += comma;
    while (comma && i < r->n && isdigit((unsigned char)r->p[i])) i++;
    if (!at(r, i, "}") || !(low || i > high)) { /* the brace is an ordinary character, not a quantifier */
        begin_atom(r);
        str_puts(r->out, "\\{");
        r->i++;
        return;
    }
    char after = i + 1 < r->n ? r->p[i + 1] : 0;
    bool wrap = after == '+' || (after == '?' && !comma);
    if (wrap) {
        Str tail = {0};
        str_add(&tail, r->out->s ? r->out->s + r->atom : "", r->out->len - r->atom);
        r->out->len = r->atom;
        str_puts(r->out, "(?:");
        str_add(r->out, tail.s, tail.len);
        str_free(&tail);
    }
    str_printf(r->out, "{%s%.*s}%s", low ? "" : "0", (int)(i - r->i - 1), r->p + r->i + 1, wrap ? ")" : "");
    r->i = i + 1;
}

Err onig_to_pcre2(const char *pattern, size_t n, Str *out) {
    if (n > 100000) return err_user("a regex of %zu bytes is too long", n);
    if (memchr(pattern, 0, n)) return err_user("the regex '%.*s' contains a NUL", onig_shown(n), pattern);
    Rewrite r = {.p = pattern, .n = n, .out = out, .atom = out->len};
    while (r.i < n) {
        char c = pattern[r.i];
        if (r.in_class)
            ERR_RETURN(class_item(&r));
        else if (c == '\\')
            ERR_RETURN(escape(&r));
        else if (c == '(')
            ERR_RETURN(group(&r));
        else if (c == '{')
            braces(&r);
        else {
            if (c == ')' && r.depth)
                r.atom = r.groups[--r.depth];
            else if (!strchr("*+?|", c) && ((unsigned char)c & 0xC0) != 0x80)
                begin_atom(&r);
            if (c == '[') r.in_class = r.class_start = true;
            str_add(out, &pattern[r.i++], 1);
            if (c == '[' && at(&r, r.i, "^")) str_add(out, &pattern[r.i++], 1);
        }
    }
    if (r.in_class) return refuse(&r, "a class without an end");
    return ERR_OK;
}
