#include "tokenizer/model/decode.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/text/field.h"
#include "tokenizer/text/normalize.h"
#include "tokenizer/text/pretokenize.h"

enum { MAX_STEPS = 64 };

typedef enum StepKind { BYTE_LEVEL, BYTE_FALLBACK, FUSE, STRIP, REPLACE, METASPACE, WORDPIECE } StepKind;

typedef struct Step {
    StepKind kind;
    Str content;    /* STRIP, REPLACE, METASPACE; WORDPIECE: the prefix of continuations */
    Regex *pattern; /* REPLACE */
    /* STRIP: maximum numbers of characters to remove at the start and at the end of a token */
    int64_t start, stop;
    /* METASPACE: whether to remove the blank that the pre-tokenizer added before the first token */
    bool drop_first;
    bool cleanup; /* WORDPIECE: whether to join punctuation and contractions to the previous word */
} Step;

struct Decoder {
    bool joins; /* whether tokens are joined by blanks, because the tokenizer.json has no decoder */
    Step steps[MAX_STEPS];
    size_t n;
};

void texts_add(Texts *t, const char *text, size_t n) {
    if (t->n == t->cap) t->end = mem_grow(t->end, t->cap = t->cap * 2 + 64, sizeof *t->end);
    str_add(&t->bytes, text, n);
    t->end[t->n++] = t->bytes.len;
}

void texts_free(Texts *t) {
    str_free(&t->bytes);
    free(t->end);
}

static const char *text_at(const Texts *t, size_t i, size_t *n) {
    size_t begin = i ? t->end[i - 1] : 0;
    *n = t->end[i] - begin;
    return t->bytes.s + begin;
}

void decoder_free(Decoder *d) {
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) str_free(&d->steps[i].content), regex_free(d->steps[i].pattern);
    free(d);
}

static Err load_content(const json_t *object, const char *key, Str *out) {
    const char *text;
    size_t n;
    ERR_RETURN(field_text(object, "decoder", key, &text, &n));
    str_add(out, text, n);
    return ERR_OK;
}

static Err load_step(const json_t *object, const char *type, Step *step) {
    static const char *const names[] = {"ByteLevel", "ByteFallback", "Fuse",     "Strip",
                                        "Replace",   "Metaspace",    "WordPiece"};
    size_t kind = 0;
    while (kind < sizeof names / sizeof *names && strcmp(type, names[kind])) kind++;
    if (kind == sizeof names / sizeof *names)
        return err_user("decoder '%.60s' is not supported; the supported types are ByteLevel, ByteFallback, "
                        "Fuse, Strip, Replace, Metaspace, WordPiece and Sequence",
                        type);
    step->kind = (StepKind)kind;
    if (step->kind == STRIP) {
        ERR_RETURN(field_int(object, "decoder", "start", &step->start));
        ERR_RETURN(field_int(object, "decoder", "stop", &step->stop));
        ERR_RETURN(load_content(object, "content", &step->content));
        if (!step->content.len) return err_user("decoder.content must be one character");
    }
    if (step->kind == REPLACE) {
        ERR_RETURN(load_content(object, "content", &step->content));
        return pattern_load(object, "decoder", &step->pattern);
    }
    if (step->kind == WORDPIECE) {
        ERR_RETURN(field_bool(object, "decoder", "cleanup", true, &step->cleanup));
        return load_content(object, "prefix", &step->content);
    }
    if (step->kind == METASPACE) {
        const json_t *scheme = json_object_get(object, "prepend_scheme");
        bool prefix;
        ERR_RETURN(field_bool(object, "decoder", "add_prefix_space", true, &prefix));
        step->drop_first = prefix && !(json_is_string(scheme) && !strcmp(json_string_value(scheme), "never"));
        ERR_RETURN(load_content(object, "replacement", &step->content));
        if (!step->content.len) return err_user("decoder.replacement must be one character");
    }
    return ERR_OK;
}

static Err decode_load(const json_t *object, Decoder *d) {
    const char *type;
    ERR_RETURN(field_text(object, "decoder", "type", &type, NULL));
    if (!strcmp(type, "Sequence")) {
        const json_t *list;
        ERR_RETURN(field_array(object, "decoder", "decoders", &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            ERR_RETURN(decode_load(json_array_get(list, i), d));
        return ERR_OK;
    }
    if (d->n == MAX_STEPS) return err_user("the decoder has more than %d steps", MAX_STEPS);
    return load_step(object, type, &d->steps[d->n++]);
}

Err decoder_load(const json_t *object, Decoder **out) {
    Decoder *d = mem_zero(1, sizeof *d);
    d->joins = !object;
    Err e = object ? decode_load(object, d) : ERR_OK;
    if (e.code)
        decoder_free(d);
    else
        *out = d;
    return e;
}

/* Appends the bytes that a token spells. A token that does not spell bytes is appended unchanged. */
static void byte_level(const char *s, size_t n, Str *out) {
    size_t before = out->len;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += utf8_next(s + i, &c);
        int byte = char_to_byte(c);
        if (byte < 0) {
            out->len = before;
            str_add(out, s, n);
            return;
        }
        str_add(out, &(char){(char)byte}, 1);
    }
}

static int hex(char c) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)((at - digits) % 16) : -1;
}

/* Converts each run of <0xHH> tokens to text if the bytes are valid UTF-8, and otherwise to one U+FFFD per
 * token. */
static void byte_fallback(const Texts *in, Texts *out) {
    Str run = {0};
    for (size_t i = 0; i <= in->n; i++) {
        size_t n = 0;
        const char *s = i < in->n ? text_at(in, i, &n) : NULL;
        bool byte = n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>' && hex(s[3]) >= 0 && hex(s[4]) >= 0;
        if (byte) {
            str_add(&run, &(char){(char)(hex(s[3]) << 4 | hex(s[4]))}, 1);
            continue;
        }
        if (run.len && utf8_valid(run.s, run.len))
            texts_add(out, run.s, run.len);
        else
            for (size_t k = 0; k < run.len; k++) texts_add(out, "\xEF\xBF\xBD", 3);
        str_clear(&run);
        if (s) texts_add(out, s, n);
    }
    str_free(&run);
}

static void strip(const Step *step, const char *s, size_t n, Texts *out) {
    const Str *c = &step->content;
    for (int64_t i = 0; i < step->start && n >= c->len && !memcmp(s, c->s, c->len); i++)
        s += c->len, n -= c->len;
    for (int64_t i = 0; i < step->stop && n >= c->len && !memcmp(s + n - c->len, c->s, c->len); i++)
        n -= c->len;
    texts_add(out, s, n);
}

static void metaspace(const Step *step, bool first, const char *s, size_t n, Texts *out) {
    const Str *meta = &step->content;
    Str text = {0};
    for (size_t i = 0; i < n;) {
        bool blank = n - i >= meta->len && !memcmp(s + i, meta->s, meta->len);
        if (!blank)
            str_add(&text, s + i, 1);
        else if (!(first && step->drop_first))
            str_puts(&text, " ");
        i += blank ? meta->len : 1;
    }
    texts_add(out, text.s ? text.s : "", text.len);
    str_free(&text);
}

static void replace_text(const char *from, const char *to, Str *text) {
    Str out = {0};
    for (size_t i = 0, n = strlen(from); i < text->len;) {
        bool found = text->len - i >= n && !memcmp(text->s + i, from, n);
        if (found)
            str_puts(&out, to);
        else
            str_add(&out, text->s + i, 1);
        i += found ? n : 1;
    }
    str_free(text);
    *text = out;
}

static void wordpiece(const Step *step, bool first, const char *s, size_t n, Texts *out) {
    static const char *const joins[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    const Str *prefix = &step->content;
    bool continues = n >= prefix->len && !memcmp(s, prefix->s ? prefix->s : "", prefix->len);
    Str text = {0};
    if (!first && !continues) str_puts(&text, " ");
    size_t dropped = !first && continues ? prefix->len : 0;
    str_add(&text, s + dropped, n - dropped);
    for (size_t i = 0; step->cleanup && i < sizeof joins / sizeof *joins; i++)
        replace_text(joins[i][0], joins[i][1], &text);
    texts_add(out, text.s ? text.s : "", text.len);
    str_free(&text);
}

static Err run_step(const Step *step, Matcher *m, const Texts *in, Texts *out) {
    if (step->kind == BYTE_FALLBACK) return byte_fallback(in, out), ERR_OK;
    if (step->kind == FUSE) return texts_add(out, in->bytes.s ? in->bytes.s : "", in->bytes.len), ERR_OK;
    Str text = {0};
    Aligned replaced = {0};
    Err e = ERR_OK;
    for (size_t i = 0; i < in->n && !e.code; i++) {
        size_t n;
        const char *s = text_at(in, i, &n);
        if (step->kind == BYTE_LEVEL)
            byte_level(s, n, &text);
        else if (step->kind == STRIP)
            strip(step, s, n, out);
        else if (step->kind == METASPACE)
            metaspace(step, i == 0, s, n, out);
        else if (step->kind == WORDPIECE)
            wordpiece(step, i == 0, s, n, out);
        else {
            aligned_clear(&replaced);
            e = replace_all(step->pattern, &step->content, m, (View){s, n, NULL}, &replaced);
            texts_add(out, aligned_view(&replaced).text, replaced.text.len);
        }
    }
    if (step->kind == BYTE_LEVEL) texts_add(out, text.s ? text.s : "", text.len);
    str_free(&text), aligned_free(&replaced);
    return e;
}

bool decoder_joins_bytes(const Decoder *d) { return d->n == 1 && d->steps[0].kind == BYTE_LEVEL; }

Err decoder_run(const Decoder *d, Matcher *m, Texts *tokens, Str *out) {
    Texts next = {0};
    Err e = ERR_OK;
    for (size_t i = 0; i < d->n && !e.code; i++) {
        str_clear(&next.bytes);
        next.n = 0;
        e = run_step(&d->steps[i], m, tokens, &next);
        Texts swap = *tokens;
        *tokens = next;
        next = swap;
    }
    texts_free(&next);
    for (size_t i = 0; i < tokens->n && !e.code; i++) {
        size_t n;
        const char *s = text_at(tokens, i, &n);
        if (d->joins && i) str_puts(out, " ");
        str_add(out, s, n);
    }
    return e;
}
