#include "tokenizer/text/pretokenize.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "tokenizer/text/ages.h"
#include "tokenizer/text/field.h"
#include "tokenizer/text/normalize.h"
#include "tokenizer/text/unicode.h"

enum { MAX_STEPS = 64 };

typedef enum StepKind { PREFIX, SPLIT, BYTES, METASPACE } StepKind;
typedef enum Behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS } Behavior;
typedef enum Prepend { ALWAYS, NEVER, FIRST } Prepend;

typedef struct Step {
    StepKind kind;
    Regex *pattern;              /* SPLIT: NULL means that the text is split at each character of a class */
    bool (*is_member)(uint32_t); /* the class, if pattern is NULL */
    Behavior behavior;
    bool invert;
    Str meta; /* METASPACE: the character that replaces a blank */
    Prepend prepend;
} Step;

struct PreTokenizer {
    Step steps[MAX_STEPS];
    size_t n;
};

struct PreTokenizerWork {
    size_t n;
    struct {
        Spans spans;
        Aligned text;
    } step[];
};

static const char GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* the regex crate's \w, which only the pre-tokenizer Whitespace uses */
#define RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200C\\u200D"

/* Returns whether the byte is a printable Latin-1 character. Such a byte represents itself. The other 68 bytes are
 * represented by U+0100, U+0101, ... in order. */
static bool spells_itself(uint32_t b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xFF && b != 0xAD);
}

uint32_t byte_to_char(unsigned char b) {
    if (spells_itself(b)) return b;
    return b <= 0x20 ? 0x100u + b : b <= 0xA0 ? 0x121u + b - 0x7F : 0x143u;
}

int char_to_byte(uint32_t c) {
    if (c < 0x100) return spells_itself(c) ? (int)c : -1;
    if (c <= 0x120) return (int)c - 0x100;
    if (c <= 0x142) return (int)c - 0x121 + 0x7F;
    return c == 0x143 ? 0xAD : -1;
}

void spell_bytes(View v, Aligned *out) {
    for (size_t i = 0; i < v.n; i++) {
        utf8_put(&out->text, byte_to_char((unsigned char)v.text[i]));
        aligned_fill(out, view_origin(v, i));
    }
}

static Err new_step(PreTokenizer *p, StepKind kind, Step **out) {
    if (p->n == MAX_STEPS) return err_user("the pre_tokenizer has more than %d steps", MAX_STEPS);
    *out = &p->steps[p->n++];
    (*out)->kind = kind;
    return ERR_OK;
}

static Err add_split(PreTokenizer *p, const char *pattern, bool literal, Behavior behavior, bool invert) {
    Step *step = NULL;
    ERR_RETURN(new_step(p, SPLIT, &step));
    step->behavior = behavior;
    step->invert = invert;
    return regex_compile(pattern, strlen(pattern), literal, &step->pattern);
}

static Err add_class_split(PreTokenizer *p, bool (*is_member)(uint32_t), Behavior behavior) {
    Step *step = NULL;
    ERR_RETURN(new_step(p, SPLIT, &step));
    step->behavior = behavior;
    step->is_member = is_member;
    return ERR_OK;
}

static Err load_behavior(const json_t *object, Behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const char *name;
    ERR_RETURN(field_text(object, "pre_tokenizer", "behavior", &name, NULL));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return *out = (Behavior)i, ERR_OK;
    return err_user("unknown pre_tokenizer.behavior '%s'", name);
}

static Err load_split(PreTokenizer *p, const json_t *object) {
    Step *step = NULL;
    ERR_RETURN(new_step(p, SPLIT, &step));
    ERR_RETURN(load_behavior(object, &step->behavior));
    ERR_RETURN(field_bool(object, "pre_tokenizer", "invert", false, &step->invert));
    return pattern_load(object, "pre_tokenizer", &step->pattern);
}

static Err load_byte_level(PreTokenizer *p, const json_t *object) {
    bool prefix, regex;
    Step *step = NULL;
    ERR_RETURN(field_bool(object, "pre_tokenizer", "add_prefix_space", true, &prefix));
    ERR_RETURN(field_bool(object, "pre_tokenizer", "use_regex", true, &regex));
    for (size_t i = 0; i < p->n; i++)
        if (p->steps[i].kind == BYTES) return err_user("pre_tokenizer: ByteLevel may occur only once");
    if (prefix) ERR_RETURN(new_step(p, PREFIX, &step));
    if (regex) ERR_RETURN(add_split(p, GPT2, false, ISOLATED, false));
    return new_step(p, BYTES, &step);
}

/* Reads a string of one character. */
static Err load_char(const json_t *object, const char *key, const char **out) {
    uint32_t c;
    ERR_RETURN(field_text(object, "pre_tokenizer", key, out, NULL));
    if (!**out || utf8_next(*out, &c) != strlen(*out))
        return err_user("pre_tokenizer.%s must be one character", key);
    return ERR_OK;
}

static Err load_metaspace(PreTokenizer *p, const json_t *object) {
    static const char *const schemes[] = {"always", "never", "first"};
    const char *meta, *scheme = "always";
    bool split, prefix;
    Step *step = NULL;
    ERR_RETURN(load_char(object, "replacement", &meta));
    ERR_RETURN(field_bool(object, "pre_tokenizer", "split", true, &split));
    ERR_RETURN(field_bool(object, "pre_tokenizer", "add_prefix_space", true, &prefix));
    if (json_object_get(object, "prepend_scheme"))
        ERR_RETURN(field_text(object, "pre_tokenizer", "prepend_scheme", &scheme, NULL));
    ERR_RETURN(new_step(p, METASPACE, &step));
    str_puts(&step->meta, meta);
    int i = 0;
    while (i < 3 && strcmp(scheme, schemes[i])) i++;
    if (i == 3) return err_user("pre_tokenizer.prepend_scheme '%s' must be always, never or first", scheme);
    if (!prefix && i != NEVER)
        return err_user("pre_tokenizer.add_prefix_space contradicts prepend_scheme: change one of them");
    step->prepend = (Prepend)i;
    return split ? add_split(p, meta, true, MERGED_WITH_NEXT, false) : ERR_OK;
}

static Err pretokenize_load(const json_t *object, PreTokenizer *p) {
    const char *type, *delimiter;
    ERR_RETURN(field_text(object, "pre_tokenizer", "type", &type, NULL));
    if (!strcmp(type, "Sequence")) {
        const json_t *list;
        ERR_RETURN(field_array(object, "pre_tokenizer", "pretokenizers", &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            ERR_RETURN(pretokenize_load(json_array_get(list, i), p));
        return ERR_OK;
    }
    if (!strcmp(type, "Split")) return load_split(p, object);
    if (!strcmp(type, "ByteLevel")) return load_byte_level(p, object);
    if (!strcmp(type, "Metaspace")) return load_metaspace(p, object);
    if (!strcmp(type, "WhitespaceSplit")) return add_class_split(p, unicode_is_space, REMOVED);
    if (!strcmp(type, "BertPreTokenizer")) {
        ERR_RETURN(add_class_split(p, unicode_is_space, REMOVED));
        return add_class_split(p, age_is_punctuation, ISOLATED);
    }
    if (!strcmp(type, "Whitespace"))
        return add_split(p, "[" RUST_WORD "]+|[^" RUST_WORD "\\s]+", false, REMOVED, true);
    if (!strcmp(type, "Digits")) {
        bool each;
        ERR_RETURN(field_bool(object, "pre_tokenizer", "individual_digits", false, &each));
        return add_split(p, "\\p{N}", false, each ? ISOLATED : CONTIGUOUS, false);
    }
    if (!strcmp(type, "Punctuation")) {
        Behavior behavior = ISOLATED;
        if (json_object_get(object, "behavior")) ERR_RETURN(load_behavior(object, &behavior));
        return add_class_split(p, age_is_punctuation, behavior);
    }
    if (!strcmp(type, "CharDelimiterSplit")) {
        ERR_RETURN(load_char(object, "delimiter", &delimiter));
        return add_split(p, delimiter, true, REMOVED, false);
    }
    return err_user(
        "pre_tokenizer '%.60s' is not supported; the supported types are BertPreTokenizer, Split, "
        "ByteLevel, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit, "
        "CharDelimiterSplit and Sequence",
        type);
}

Err pretokenizer_load(const json_t *object, PreTokenizer **out) {
    PreTokenizer *p = mem_zero(1, sizeof *p);
    Err e = object ? pretokenize_load(object, p) : ERR_OK;
    if (e.code)
        pretokenizer_free(p);
    else
        *out = p;
    return e;
}

void pretokenizer_free(PreTokenizer *p) {
    if (!p) return;
    for (size_t i = 0; i < p->n; i++) regex_free(p->steps[i].pattern), str_free(&p->steps[i].meta);
    free(p);
}

PreTokenizerWork *pretokenizer_work_new(const PreTokenizer *p) {
    PreTokenizerWork *w = mem_zero(1, sizeof *w + p->n * sizeof w->step[0]);
    w->n = p->n;
    return w;
}

void pretokenizer_work_free(PreTokenizerWork *w) {
    if (!w) return;
    for (size_t i = 0; i < w->n; i++) free(w->step[i].spans.v), aligned_free(&w->step[i].text);
    free(w);
}

/* Merges neighbouring spans in place, as NormalizedString::split does. In the result, `match` marks the pieces
 * that must be dropped. */
static void apply_behavior(Spans *s, Behavior behavior, bool invert) {
    size_t kept = 0;
    bool previous = false, from_right = behavior == MERGED_WITH_NEXT;
    for (size_t k = 0; k < s->n; k++) {
        Span span = s->v[from_right ? s->n - 1 - k : k];
        bool match = span.match != invert, joins = false;
        if (behavior == CONTIGUOUS) joins = match == previous;
        if (behavior == MERGED_WITH_PREVIOUS || behavior == MERGED_WITH_NEXT) joins = match && !previous;
        previous = match;
        Span *last = !kept ? NULL : from_right ? &s->v[s->n - kept] : &s->v[kept - 1];
        if (joins && last && from_right)
            last->begin = span.begin;
        else if (joins && last)
            last->end = span.end;
        else {
            kept++;
            s->v[from_right ? s->n - kept : kept - 1] =
                (Span){span.begin, span.end, behavior == REMOVED && match};
        }
    }
    if (from_right) memmove(s->v, s->v + (s->n - kept), kept * sizeof *s->v);
    s->n = kept;
}

typedef struct Run {
    const PreTokenizer *p;
    PreTokenizerWork *w;
    Matcher *matcher;
    PieceFn *fn;
    void *arg;
    Err err;
} Run;

/* Replaces blanks with metaspaces, and may prepend a metaspace. With FIRST, a metaspace is prepended only at the start
 * of the original text. */
static void metaspace(const Step *step, View v, Aligned *out) {
    const Str *meta = &step->meta;
    const bool has = *v.text == ' ' || (v.n >= meta->len && !memcmp(v.text, meta->s, meta->len));
    if (!has && (step->prepend == ALWAYS || (step->prepend == FIRST && !v.at[0].begin)))
        aligned_insert(out, meta->s, meta->len, view_origin(v, 0));
    for (size_t i = 0, end; i < v.n; i = end + 1) {
        const char *blank = memchr(v.text + i, ' ', v.n - i);
        end = blank ? (size_t)(blank - v.text) : v.n;
        aligned_add(out, view_slice(v, i, end));
        if (blank) aligned_insert(out, meta->s, meta->len, view_origin(v, end));
    }
}

/* Like regex_spans, sets `out` to the matches and the text between them. A match is a character of the
 * class. */
static void class_spans(bool (*is_member)(uint32_t), const char *text, size_t n, Spans *out) {
    size_t covered = 0;
    out->n = 0;
    for (size_t i = 0, width; i < n; i += width) {
        uint32_t c;
        width = utf8_next(text + i, &c);
        if (!is_member(c)) continue;
        if (i > covered) spans_add(out, covered, i, false);
        spans_add(out, i, covered = i + width, true);
    }
    if (covered < n) spans_add(out, covered, n, false);
}

/* Runs the steps from index `depth` to the last step. Returns false if r->err is set. */
static bool pretokenize_run(Run *r, size_t depth, View v) {
    if (!v.n) return true;
    if (depth == r->p->n) return r->fn(r->arg, v), true;
    const Step *step = &r->p->steps[depth];
    Spans *spans = &r->w->step[depth].spans;
    Aligned *next = &r->w->step[depth].text;
    aligned_clear(next);
    next->tracks = v.at != NULL;
    switch (step->kind) {
    case PREFIX:
        if (*v.text != ' ') aligned_insert(next, " ", 1, view_origin(v, 0));
        aligned_add(next, v);
        break;
    case BYTES:
        spell_bytes(v, next);
        break;
    case METASPACE:
        metaspace(step, v, next);
        break;
    case SPLIT:
        if (step->pattern)
            r->err = regex_spans(step->pattern, r->matcher, v.text, v.n, spans);
        else
            class_spans(step->is_member, v.text, v.n, spans);
        if (r->err.code) return false;
        apply_behavior(spans, step->behavior, step->invert);
        for (size_t i = 0; i < spans->n; i++) {
            const Span s = spans->v[i];
            if (!s.match && !pretokenize_run(r, depth + 1, view_slice(v, s.begin, s.end))) return false;
        }
        return true;
    }
    return pretokenize_run(r, depth + 1, aligned_view(next));
}

bool pretokenizer_needs_origins(const PreTokenizer *p) {
    for (size_t i = 0; i < p->n; i++)
        if (p->steps[i].kind == METASPACE && p->steps[i].prepend == FIRST) return true;
    return false;
}

Err pretokenizer_run(const PreTokenizer *p, PreTokenizerWork *w, Matcher *m, View text, PieceFn *fn,
                     void *arg) {
    Run r = {p, w, m, fn, arg, ERR_OK};
    pretokenize_run(&r, 0, text);
    return r.err;
}
