#include "tokenizer/text/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/text/ages.h"
#include "tokenizer/text/base64.h"
#include "tokenizer/text/charsmap.h"
#include "tokenizer/text/field.h"
#include "tokenizer/text/pretokenize.h"
#include "tokenizer/text/unicode.h"

/* NFKD can expand one character to 18 characters */
enum { MAX_STEPS = 64, MAX_GROWTH = 64, FREE_GROWTH = 1 << 20 };

typedef enum StepKind { FORM, LOWERCASE, PREPEND, REPLACE, MAP, STRIP, CHARSMAP, BYTES } StepKind;

typedef void MapFn(uint32_t character, Str *out); /* appends the replacement of a character to `out` */

typedef struct Step {
    StepKind kind;
    bool compat, compose; /* FORM */
    bool left, right;     /* STRIP */
    MapFn *map;           /* MAP */
    Str content;          /* PREPEND, REPLACE */
    Regex *pattern;       /* REPLACE */
    Charsmap *charsmap;   /* CHARSMAP */
} Step;

struct Normalizer {
    Step steps[MAX_STEPS];
    size_t n;
};

void normalizer_free(Normalizer *z) {
    if (!z) return;
    for (size_t i = 0; i < z->n; i++) {
        str_free(&z->steps[i].content);
        regex_free(z->steps[i].pattern);
        charsmap_free(z->steps[i].charsmap);
    }
    free(z);
}

static Err load_content(const json_t *object, const char *key, Str *out) {
    const char *text;
    size_t n;
    ERR_RETURN(field_text(object, "normalizer", key, &text, &n));
    str_add(out, text, n);
    return ERR_OK;
}

static void clean(uint32_t c, Str *out) {
    bool tab = c == '\t' || c == '\n' || c == '\r';
    if (!c || c == 0xFFFD || (!tab && age_is_control(c))) return;
    utf8_put(out, unicode_is_space(c) ? ' ' : c);
}

/* Adds blanks around the characters that BERT treats as Chinese. As in the `tokenizers` library, the ranges
 * have a gap before U+2B920. */
static void space_chinese(uint32_t c, Str *out) {
    static const uint32_t blocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                         {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                         {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    bool chinese = false;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        chinese = chinese || (c >= blocks[i][0] && c <= blocks[i][1]);
    if (chinese) str_puts(out, " ");
    utf8_put(out, c);
    if (chinese) str_puts(out, " ");
}

static void drop_nonspacing(uint32_t c, Str *out) {
    if (!age_is_nonspacing(c)) utf8_put(out, c);
}

static void drop_marks(uint32_t c, Str *out) {
    if (!age_is_mark(c)) utf8_put(out, c);
}

static void nmt(uint32_t c, Str *out) {
    static const uint32_t blanks[] = {'\t', '\n', '\f', '\r', 0x1680, 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD};
    bool blank = c >= 0x200B && c <= 0x200F;
    for (size_t i = 0; i < sizeof blanks / sizeof *blanks; i++) blank = blank || c == blanks[i];
    if (blank)
        str_puts(out, " ");
    else if (!((c && c < 0x20) || c == 0x7F || c == 0x8F || c == 0x9F))
        utf8_put(out, c);
}

static Err new_step(Normalizer *z, StepKind kind, Step **out) {
    if (z->n == MAX_STEPS) return err_user("the normalizer has more than %d steps", MAX_STEPS);
    *out = &z->steps[z->n++];
    (*out)->kind = kind;
    return ERR_OK;
}

static Err add_map(Normalizer *z, bool wanted, MapFn *map) {
    Step *step = NULL;
    if (!wanted) return ERR_OK;
    ERR_RETURN(new_step(z, MAP, &step));
    step->map = map;
    return ERR_OK;
}

static Err load_bert(const json_t *object, Normalizer *z) {
    static const char where[] = "normalizer";
    bool cleaned, chinese, lower, accents;
    Step *step = NULL;
    ERR_RETURN(field_bool(object, where, "clean_text", true, &cleaned));
    ERR_RETURN(field_bool(object, where, "handle_chinese_chars", true, &chinese));
    ERR_RETURN(field_bool(object, where, "lowercase", true, &lower));
    ERR_RETURN(field_bool(object, where, "strip_accents", lower, &accents));
    ERR_RETURN(add_map(z, cleaned, clean));
    ERR_RETURN(add_map(z, chinese, space_chinese));
    if (accents) ERR_RETURN(new_step(z, FORM, &step));
    ERR_RETURN(add_map(z, accents, drop_nonspacing));
    return lower ? new_step(z, LOWERCASE, &step) : ERR_OK;
}

static Err load_charsmap(const json_t *object, Step *step) {
    const char *text;
    ERR_RETURN(field_text(object, "normalizer", "precompiled_charsmap", &text, NULL));
    Str bytes = {0};
    Err e = base64_decode(text, strlen(text), &bytes)
                ? charsmap_load(bytes.s ? bytes.s : "", bytes.len, &step->charsmap)
                : err_user("normalizer.precompiled_charsmap is not base64");
    str_free(&bytes);
    return e;
}

static Err load_form(const char *type, Step *step) {
    static const char *const forms[] = {"NFD", "NFKD", "NFC", "NFKC"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(type, forms[i])) {
            *step = (Step){.kind = FORM, .compat = i & 1, .compose = i & 2};
            return ERR_OK;
        }
    return err_user(
        "normalizer '%.60s' is not supported; the supported types are BertNormalizer, ByteLevel, "
        "Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Sequence, Strip and "
        "StripAccents",
        type);
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
    if (!strcmp(type, "BertNormalizer")) return load_bert(object, z);
    if (!strcmp(type, "StripAccents")) return add_map(z, true, drop_marks);
    if (!strcmp(type, "Nmt")) return add_map(z, true, nmt);
    static const char *const names[] = {"Lowercase", "Prepend",     "Replace",
                                        "Strip",     "Precompiled", "ByteLevel"};
    static const StepKind kinds[] = {LOWERCASE, PREPEND, REPLACE, STRIP, CHARSMAP, BYTES};
    size_t i = 0;
    while (i < sizeof kinds / sizeof *kinds && strcmp(type, names[i])) i++;
    Step *step = NULL;
    if (i == sizeof kinds / sizeof *kinds) {
        ERR_RETURN(new_step(z, FORM, &step));
        return load_form(type, step);
    }
    ERR_RETURN(new_step(z, kinds[i], &step));
    if (step->kind == PREPEND) return load_content(object, "prepend", &step->content);
    if (step->kind == CHARSMAP) return load_charsmap(object, step);
    if (step->kind == REPLACE) {
        ERR_RETURN(load_content(object, "content", &step->content));
        return pattern_load(object, "normalizer", &step->pattern);
    }
    if (step->kind == STRIP) {
        ERR_RETURN(field_bool(object, "normalizer", "strip_left", true, &step->left));
        return field_bool(object, "normalizer", "strip_right", true, &step->right);
    }
    return ERR_OK;
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

/* Each replacement has the origin of the last character of its match. */
Err replace_all(const Regex *pattern, const Str *content, Matcher *m, View text, Aligned *out) {
    Spans spans = {0};
    Err e = regex_spans(pattern, m, text.text, text.n, &spans);
    const size_t limit = out->text.len + text.n * MAX_GROWTH + FREE_GROWTH;
    for (size_t i = 0; i < spans.n && !e.code; i++) {
        const Span *s = &spans.v[i];
        if (s->match)
            aligned_insert(out, content->s, content->len, view_origin_before(text, s->end));
        else
            aligned_add(out, view_slice(text, s->begin, s->end));
        if (out->text.len > limit)
            e = err_user("the tokenizer's Replace normalizer makes a text more than %d times longer",
                         MAX_GROWTH);
    }
    free(spans.v);
    return e;
}

static void strip(const Step *step, View v, Aligned *out) {
    size_t begin = 0, end = v.n;
    uint32_t c;
    for (size_t width; step->left && begin < end; begin += width) {
        width = utf8_next(v.text + begin, &c);
        if (!unicode_is_space(c)) break;
    }
    for (size_t at; step->right && end > begin; end = at) {
        at = utf8_prev(v.text, end);
        utf8_next(v.text + at, &c);
        if (!unicode_is_space(c)) break;
    }
    aligned_add(out, view_slice(v, begin, end));
}

/* If a rule of the charsmap matches the start of a part, replaces the whole part with the result of the shortest such
 * rule. Otherwise, returns false. The new characters replace the old characters one by one, and surplus new characters
 * are inserted. If there are fewer new characters than old ones, the last new character replaces all remaining old
 * characters. */
static bool map_part(const Charsmap *m, const char *part, size_t n, Edit *e) {
    const char *to;
    size_t to_n;
    if (!charsmap_find(m, CHARSMAP_SHORTEST, part, n, &to, &to_n)) return false;
    const int had = (int)utf8_count(part, n), has = (int)utf8_count(to, to_n);
    for (size_t at = 0, k = 0; at < to_n; k++) {
        uint32_t c;
        at += utf8_next(to + at, &c);
        edit_put(e, c, (int)k >= had);
    }
    if (has < had) edit_remove(e, had - has);
    return true;
}

enum { SHORT_CLUSTER = 6 };

/* Applies the rules of a charsmap. Unlike in SentencePiece, the rules are applied to short grapheme clusters first,
 * and then to characters. */
static void apply_charsmap(const Charsmap *m, View v, Aligned *out) {
    Edit e = {.from = v, .out = out};
    for (size_t i = 0, end; i < v.n; i = end) {
        end = i + unicode_cluster(v.text + i, v.n - i);
        if (end - i < SHORT_CLUSTER && map_part(m, v.text + i, end - i, &e)) continue;
        for (size_t at = i, width; at < end; at += width) {
            uint32_t c;
            width = utf8_next(v.text + at, &c);
            if (!map_part(m, v.text + at, width, &e)) edit_put(&e, c, 0);
        }
    }
    edit_end(&e);
}

static Err run_step(const Step *step, Matcher *m, View v, Aligned *out) {
    switch (step->kind) {
    case FORM:
        unicode_normalize(v, step->compat, step->compose, out);
        break;
    case LOWERCASE:
        unicode_lower(v, out);
        break;
    case PREPEND:
        if (v.n) aligned_insert(out, step->content.s, step->content.len, view_origin(v, 0));
        aligned_add(out, v);
        break;
    case MAP:
        for (size_t i = 0, end; i < v.n; i = end) {
            uint32_t c;
            end = i + utf8_next(v.text + i, &c);
            step->map(c, &out->text);
            aligned_fill(out, view_origin(v, i));
        }
        break;
    case STRIP:
        strip(step, v, out);
        break;
    case CHARSMAP:
        apply_charsmap(step->charsmap, v, out);
        break;
    case BYTES:
        spell_bytes(v, out);
        break;
    case REPLACE:
        return replace_all(step->pattern, &step->content, m, v, out);
    }
    return ERR_OK;
}

Err normalizer_run(const Normalizer *z, Matcher *m, const char *text, size_t n, size_t at, Aligned *out) {
    aligned_clear(out);
    aligned_original(out, text, n, at);
    Aligned next = {.tracks = out->tracks};
    Err e = ERR_OK;
    for (size_t i = 0; i < z->n && !e.code; i++) {
        aligned_clear(&next);
        e = run_step(&z->steps[i], m, aligned_view(out), &next);
        if (!e.code && next.text.len > n * MAX_GROWTH + FREE_GROWTH)
            e = err_user("the normalizer makes a text more than %d times longer", MAX_GROWTH);
        const Aligned swap = *out;
        *out = next;
        next = swap;
    }
    aligned_free(&next);
    return e;
}
