#include "tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tokenizer/field.h"
#include "tokenizer/unicode.h"

enum {
    MAX_STEPS = 64,
    MAX_GROWTH = 64,
    FREE_GROWTH = 1 << 20
}; /* NFKD alone can turn one character into 18 */

typedef enum StepKind { FORM, LOWERCASE, PREPEND, REPLACE } StepKind;

typedef struct Step {
    StepKind kind;
    bool compat, compose; /* FORM */
    Str content;          /* PREPEND, REPLACE */
    Regex *pattern;       /* REPLACE */
} Step;

struct Normalizer {
    Step steps[MAX_STEPS];
    size_t n;
};

void normalizer_free(Normalizer *z) {
    if (!z) return;
    for (size_t i = 0; i < z->n; i++) str_free(&z->steps[i].content), regex_free(z->steps[i].pattern);
    free(z);
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

static Err load_content(const json_t *object, const char *key, Str *out) {
    const char *text;
    size_t n;
    ERR_RETURN(field_text(object, "normalizer", key, &text, &n));
    str_add(out, text, n);
    return ERR_OK;
}

static Err normalize_load(const json_t *object, Normalizer *z) {
    const char *type;
    ERR_RETURN(field_text(object, "normalizer", "type", &type, NULL));
    if (!strcmp(type, "Sequence")) {
        const json_t *list;
        ERR_RETURN(field_array(object, "normalizer", "normalizers", &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            ERR_RETURN(normalize_load(json_array_get(list, i), z));
        return ERR_OK;
    }
    if (z->n == MAX_STEPS) return err_user("the normalizer has more than %d steps", MAX_STEPS);
    Step *step = &z->steps[z->n++];
    static const char *const forms[] = {"NFD", "NFKD", "NFC", "NFKC"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(type, forms[i])) {
            *step = (Step){.kind = FORM, .compat = i & 1, .compose = i & 2};
            return ERR_OK;
        }
    if (!strcmp(type, "Lowercase")) {
        step->kind = LOWERCASE;
        return ERR_OK;
    }
    if (!strcmp(type, "Prepend")) {
        step->kind = PREPEND;
        return load_content(object, "prepend", &step->content);
    }
    if (!strcmp(type, "Replace")) {
        step->kind = REPLACE;
        ERR_RETURN(load_content(object, "content", &step->content));
        return pattern_load(object, "normalizer", &step->pattern);
    }
    return err_user("normalizer '%s' is not supported; NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace and "
                    "Sequence are",
                    type);
}

Err normalizer_load(const json_t *object, Normalizer **out) {
    Normalizer *z = mem_zero(1, sizeof *z);
    Err e = object ? normalize_load(object, z) : ERR_OK;
    if (e.code)
        normalizer_free(z);
    else
        *out = z;
    return e;
}

Err replace_all(const Regex *pattern, const Str *content, Matcher *m, const char *text, size_t n, Str *out) {
    Spans spans = {0};
    Err e = regex_spans(pattern, m, text, n, &spans);
    size_t limit = out->len + n * MAX_GROWTH + FREE_GROWTH;
    for (size_t i = 0; i < spans.n && !e.code; i++) {
        const Span *s = &spans.v[i];
        if (s->match)
            str_add(out, content->s, content->len);
        else
            str_add(out, text + s->begin, s->end - s->begin);
        if (out->len > limit)
            e = err_user("a Replace of the tokenizer makes more than %d times its input", MAX_GROWTH);
    }
    free(spans.v);
    return e;
}

static Err run_step(const Step *step, Matcher *m, const char *text, size_t n, Str *out) {
    switch (step->kind) {
    case FORM:
        unicode_normalize(text, n, step->compat, step->compose, out);
        break;
    case LOWERCASE:
        unicode_lower(text, n, out);
        break;
    case PREPEND:
        if (n) str_add(out, step->content.s, step->content.len);
        str_add(out, text, n);
        break;
    case REPLACE:
        return replace_all(step->pattern, &step->content, m, text, n, out);
    }
    return ERR_OK;
}

Err normalizer_run(const Normalizer *z, Matcher *m, const char *text, size_t n, Str *out) {
    str_clear(out);
    str_add(out, text, n);
    Str next = {0};
    Err e = ERR_OK;
    for (size_t i = 0; i < z->n && !e.code; i++) {
        str_clear(&next);
        e = run_step(&z->steps[i], m, out->s, out->len, &next);
        if (!e.code && next.len > n * MAX_GROWTH + FREE_GROWTH)
            e = err_user("the normalizer makes more than %d times its input", MAX_GROWTH);
        Str swap = *out;
        *out = next;
        next = swap;
    }
    str_free(&next);
    return e;
}
