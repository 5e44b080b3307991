#include "tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/text/ages.h"
#include "tokenizer/text/field.h"
#include "tokenizer/text/onig.h"

struct Regex {
    pcre2_code *code;
};

/* Only group 0 is read, so one pair of offsets suffices for every pattern. */
struct Matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    Str stand_ins;
};

static Err compile(const char *pattern, size_t n, bool literal, Regex **out) {
    uint32_t options = literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    CHECK(context, "out of memory");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE offset;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, n, PCRE2_UTF | options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        PCRE2_UCHAR why[200];
        pcre2_get_error_message(code, why, sizeof why);
        return err_user("the regex '%.*s' cannot be compiled: %s at byte %zu", onig_shown(n), pattern,
                        (char *)why, offset);
    }
    /* if JIT compilation fails, the slower interpreter is used */
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    *out = mem_alloc(sizeof **out);
    (*out)->code = compiled;
    return ERR_OK;
}

Err regex_compile(const char *pattern, size_t n, bool literal, Regex **out) {
    if (literal) return compile(pattern, n, true, out);
    Str rewritten = {0};
    str_puts(&rewritten, "");
    Err e = onig_to_pcre2(pattern, n, &rewritten);
    if (!e.code) e = compile(rewritten.s, rewritten.len, false, out);
    str_free(&rewritten);
    return e;
}

Err pattern_load(const json_t *object, const char *where, Regex **out) {
    const json_t *pattern;
    const char *text;
    size_t n;
    ERR_RETURN(field_object(object, where, "pattern", &pattern));
    bool literal = json_object_get(pattern, "String") != NULL;
    ERR_RETURN(field_text(pattern, where, literal ? "String" : "Regex", &text, &n));
    return regex_compile(text, n, literal, out);
}

void regex_free(Regex *r) {
    if (!r) return;
    pcre2_code_free(r->code);
    free(r);
}

Matcher *matcher_new(void) {
    Matcher *m = mem_zero(1, sizeof *m);
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    CHECK(m->data && m->context, "out of memory");
    pcre2_set_heap_limit(m->context, 256 << 10); /* KiB */
    return m;
}

void matcher_free(Matcher *m) {
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    str_free(&m->stand_ins);
    free(m);
}

void spans_add(Spans *s, size_t begin, size_t end, bool match) {
    if (s->n == s->cap) s->v = mem_grow(s->v, s->cap = s->cap * 2 + 64, sizeof *s->v);
    s->v[s->n++] = (Span){begin, end, match};
}

/* Replaces characters that PCRE2's tables may lack with older characters of the same class and length, and returns the
 * text. */
static const char *known_characters(Matcher *m, const char *text, size_t n) {
    str_clear(&m->stand_ins);
    size_t copied = 0;
    for (size_t i = 0, width; i < n; i += width) {
        uint32_t c, stand_in;
        width = utf8_next(text + i, &c);
        if (c < 0x80 || (stand_in = age_stand_in(c)) == c) continue;
        str_add(&m->stand_ins, text + copied, i - copied);
        utf8_put(&m->stand_ins, stand_in);
        copied = i + width;
    }
    if (!copied) return text;
    str_add(&m->stand_ins, text + copied, n - copied);
    return m->stand_ins.s;
}

static int search(const Regex *r, Matcher *m, const char *text, size_t n, size_t from) {
    int rc = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                         m->context);
    return rc;
}

Err regex_spans(const Regex *r, Matcher *m, const char *text, size_t n, Spans *out) {
    out->n = 0;
    if (!n) return ERR_OK;
    /* A match may backtrack over a run of blanks once per character, so the limit increases with the length of the
     * text. */
    pcre2_set_match_limit(m->context, n < 100000000 ? 10000000 + 16 * (uint32_t)n : UINT32_MAX);
    text = known_characters(m, text, n);
    size_t from = 0, covered = 0;
    bool matched = false;
    while (from <= n) {
        int rc = search(r, m, text, n, from);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) {
            PCRE2_UCHAR why[200];
            pcre2_get_error_message(rc, why, sizeof why);
            return err_user("a regex in the tokenizer fails on this text at byte %zu: %s", from, (char *)why);
        }
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
        size_t begin = span[0], end = span[1];
        if (begin == end && matched && end == covered) { /* an empty match directly after another match */
            uint32_t skipped;
            from += from < n ? utf8_next(text + from, &skipped) : 1;
            continue;
        }
        if (begin > covered) spans_add(out, covered, begin, false);
        spans_add(out, begin, end, true);
        from = covered = end;
        matched = true;
    }
    if (covered < n) spans_add(out, covered, n, false);
    return ERR_OK;
}
