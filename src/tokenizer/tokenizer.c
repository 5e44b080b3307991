/* The table of tokenizer types, the two types that read no files, and the code that all types share. */
#include "tokenizer/tokenizer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/file/hf.h"
#include "tokenizer/type.h"

enum { LONGEST_TEXT = 1 << 30, BYTES = 256, BYTE_VOCAB = 512 };

static int32_t no_token_id(const Tokenizer *t, const char *token) { return (void)t, (void)token, -1; }
static const char *no_token_text(const Tokenizer *t, int32_t id, size_t *n) {
    return (void)t, (void)id, (void)n, NULL;
}
static bool none_special(const Tokenizer *t, int32_t id) { return (void)t, (void)id, false; }

static Err open_null(const TokenizerConfig *c, Tokenizer *t) {
    if (c->vocab_size < 1 || c->vocab_size > INT32_MAX)
        return err_user("NullTokenizer needs a --vocab-size between 1 and %d, not %lld", INT32_MAX,
                        (long long)c->vocab_size);
    t->vocab_size = (int32_t)c->vocab_size;
    t->eod = t->vocab_size - 1;
    return ERR_OK;
}

/* Encodes a text like [int(x) for x in text.split(" ")] in Python. Every id must be in [0, vocab_size). */
static Err encode_null(const Tokenizer *t, unsigned flags, const char *text, size_t n, Ids *out) {
    (void)flags;
    for (size_t i = 0; i < n; i++) {
        size_t end = i, at;
        while (end < n && text[end] != ' ') end++;
        for (at = i; at < end && isspace((unsigned char)text[at]);) at++;
        int64_t id = at < end && isdigit((unsigned char)text[at]) ? 0 : -1;
        for (; at < end && isdigit((unsigned char)text[at]) && id < t->vocab_size; at++)
            id = id * 10 + (text[at] - '0');
        while (at < end && isspace((unsigned char)text[at])) at++;
        if (id < 0 || id >= t->vocab_size || at != end)
            return err_user("NullTokenizer: '%.*s' is not an id below %d; a text must consist of ids "
                            "separated by single spaces",
                            (int)(end - i < 40 ? end - i : 40), text + i, t->vocab_size);
        ids_add(out, (int32_t)id, i, end);
        i = end;
    }
    return ERR_OK;
}

static Err decode_null(const Tokenizer *t, unsigned flags, const int32_t *ids, size_t n, Str *out,
                       size_t *starts) {
    for (size_t i = 0; i < n; i++) {
        if (starts) starts[i] = out->len + (out->len > 0);
        if (!(flags & TOKENIZER_SKIP_SPECIAL && tokenizer_is_special(t, ids[i])))
            str_printf(out, out->len ? " %d" : "%d", ids[i]);
    }
    return ERR_OK;
}

static Err bytes_open(const TokenizerConfig *c, Tokenizer *t) {
    int64_t size = c->vocab_size ? c->vocab_size : BYTE_VOCAB;
    if (size < BYTES || size > INT32_MAX)
        return err_user("ByteLevelTokenizer needs a --vocab-size of at least %d, not %lld", BYTES,
                        (long long)size);
    t->vocab_size = (int32_t)size;
    t->eod = 0, t->pad = 1;
    return ERR_OK;
}

static Err encode_bytes(const Tokenizer *t, unsigned flags, const char *text, size_t n, Ids *out) {
    (void)t, (void)flags;
    size_t characters = 0;
    for (size_t i = 0; i < n; i++) {
        characters += !i || utf8_begins(text[i]);
        ids_add(out, (unsigned char)text[i], characters - 1, characters);
    }
    return ERR_OK;
}

static Err decode_bytes(const Tokenizer *t, unsigned flags, const int32_t *ids, size_t n, Str *out,
                        size_t *starts) {
    for (size_t i = 0; i < n; i++) {
        if (starts) starts[i] = out->len;
        if (ids[i] < BYTES && !(flags & TOKENIZER_SKIP_SPECIAL && tokenizer_is_special(t, ids[i])))
            str_add(out, &(char){(char)ids[i]}, 1);
    }
    return ERR_OK;
}

static const TokenizerType TOKENIZER_NULL = {"NullTokenizer", open_null,     encode_null,  decode_null,
                                             no_token_id,     no_token_text, none_special, free};
static const TokenizerType TOKENIZER_BYTES = {"ByteLevelTokenizer", bytes_open,    encode_bytes, decode_bytes,
                                              no_token_id,          no_token_text, none_special, free};

static Err override_id(const char *flag, int64_t asked, const Tokenizer *t, int32_t *id) {
    if (asked == -1) return ERR_OK;
    if (asked < 0 || asked >= t->vocab_size)
        return err_user("the %s id %lld is not in the vocabulary of %d tokens", flag, (long long)asked,
                        t->vocab_size);
    *id = (int32_t)asked;
    return ERR_OK;
}

Err tokenizer_open(const TokenizerConfig *c, Tokenizer **out) {
    const TokenizerType *const types[] = {&TOKENIZER_NULL,       &TOKENIZER_BYTES,     &TOKENIZER_GPT2,
                                          &TOKENIZER_BERT_LOWER, &TOKENIZER_BERT_CASE, &TOKENIZER_HUGGINGFACE,
                                          &TOKENIZER_SPM,        &TOKENIZER_GPT_SPM,   &TOKENIZER_LLAMA2,
                                          &TOKENIZER_TIKTOKEN};
    enum { TYPES = sizeof types / sizeof *types };
    const char *names[TYPES];
    for (int i = 0; i < TYPES; i++) names[i] = types[i]->name;
    if (!c->type) return err_user("no tokenizer type is given; add --tokenizer-type");
    for (int i = 0; i < TYPES; i++) {
        if (strcmp(c->type, names[i])) continue;
        Tokenizer *t = mem_zero(1, sizeof *t);
        *t = (Tokenizer){.type = types[i],
                         .eod = -1,
                         .pad = -1,
                         .bos = -1,
                         .cls = -1,
                         .sep = -1,
                         .mask = -1,
                         .flags =
                             c->include_special && types[i]->encode == hf_encode ? TOKENIZER_ADD_SPECIAL : 0};
        Err e = t->type->open(c, t);
        if (!e.code) e = override_id("end-of-document", c->eod_id, t, &t->eod);
        if (!e.code) e = override_id("padding", c->pad_id, t, &t->pad);
        if (e.code)
            tokenizer_free(t);
        else
            *out = t;
        return e;
    }
    const char *near = str_nearest(c->type, names, TYPES);
    Str all = {0};
    for (int i = 0; i < TYPES; i++)
        str_printf(&all, "%s%s", i ? i == TYPES - 1 ? " and " : ", " : "", names[i]);
    Err e = err_user("unknown tokenizer type '%s'%s%s; the types are %s", c->type,
                     near ? "; did you mean " : "", near ? near : "", all.s);
    str_free(&all);
    return e;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    t->type->free(t->impl);
    json_decref(t->named);
    free(t);
}

/* Frees the contents of `out` if there is an error. */
static Err encode(const Tokenizer *t, unsigned flags, const char *text, size_t n, Ids *out) {
    if (n > LONGEST_TEXT)
        return err_user("a text of %zu bytes is too long to encode; split it into documents", n);
    const unsigned dropped = flags & TOKENIZER_NO_SPECIAL ? TOKENIZER_ADD_SPECIAL : 0;
    const Err e = t->type->encode(t, (flags | t->flags) & ~dropped, text, n, out);
    if (e.code)
        ids_free(out);
    else if (!out->v)
        out->v = mem_alloc(sizeof *out->v);
    return e;
}

Err tokenizer_encode_with(const Tokenizer *t, unsigned flags, const char *text, size_t n, int32_t **ids,
                          size_t *count) {
    Ids out = {0};
    ERR_RETURN(encode(t, flags, text, n, &out));
    *ids = out.v, *count = out.n;
    return ERR_OK;
}

Err tokenizer_encode_spans(const Tokenizer *t, unsigned flags, const char *text, size_t n, int32_t **ids,
                           TokenSpan **spans, size_t *count) {
    Ids out = {.spans = true};
    ERR_RETURN(encode(t, flags, text, n, &out));
    *ids = out.v, *count = out.n;
    *spans = mem_alloc((out.n + 1) * sizeof **spans);
    for (size_t i = 0; i < out.n; i++) (*spans)[i] = (TokenSpan){out.at[i].begin, out.at[i].end};
    free(out.at);
    return ERR_OK;
}

Err tokenizer_encode(const Tokenizer *t, const char *text, size_t n, int32_t **ids, size_t *count) {
    return tokenizer_encode_with(t, 0, text, n, ids, count);
}

static Err check_ids(const Tokenizer *t, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab_size)
            return err_user("id %d at position %zu is not in the vocabulary of %d tokens", ids[i], i,
                            t->vocab_size);
    return ERR_OK;
}

Err tokenizer_decode_with(const Tokenizer *t, unsigned flags, const int32_t *ids, size_t n, char **text,
                          size_t *bytes) {
    ERR_RETURN(check_ids(t, ids, n));
    Str out = {0};
    str_puts(&out, "");
    Err e = t->type->decode(t, flags, ids, n, &out, NULL);
    if (e.code) {
        str_free(&out);
        return e;
    }
    *text = out.s;
    *bytes = out.len;
    return ERR_OK;
}

Err tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, char **text, size_t *bytes) {
    return tokenizer_decode_with(t, 0, ids, n, text, bytes);
}

Err tokenizer_offsets(const Tokenizer *t, const int32_t *ids, size_t n, size_t *offsets) {
    ERR_RETURN(check_ids(t, ids, n));
    Str out = {0};
    Err e = t->type->decode(t, 0, ids, n, &out, offsets);
    size_t at = 0, characters = 0;
    for (size_t i = 0; i < n && !e.code; i++) {
        for (; at < offsets[i]; at++) characters += utf8_begins(out.s[at]);
        const bool inside = at < out.len && !utf8_begins(out.s[at]) && characters;
        offsets[i] = characters - inside;
    }
    str_free(&out);
    return e;
}

int32_t tokenizer_vocab_size(const Tokenizer *t) { return t->vocab_size; }
int32_t tokenizer_eod(const Tokenizer *t) { return t->eod; }
int32_t tokenizer_pad(const Tokenizer *t) { return t->pad; }
int32_t tokenizer_bos(const Tokenizer *t) { return t->bos; }
int32_t tokenizer_cls(const Tokenizer *t) { return t->cls; }
int32_t tokenizer_sep(const Tokenizer *t) { return t->sep; }
int32_t tokenizer_mask(const Tokenizer *t) { return t->mask; }
int32_t tokenizer_token_id(const Tokenizer *t, const char *token) { return t->type->token_id(t, token); }

const char *tokenizer_token_text(const Tokenizer *t, int32_t id, size_t *n) {
    return t->type->token_text(t, id, n);
}

const json_t *tokenizer_named(const Tokenizer *t) { return t->named; }
bool tokenizer_is_special(const Tokenizer *t, int32_t id) {
    return id >= 0 && (id == t->eod || id == t->pad || t->type->is_special(t, id));
}
