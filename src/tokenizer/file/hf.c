/* Encodes and decodes with a tokenizer.json. Added tokens are split off, and the rest of the text is normalized,
 * pre-tokenized and encoded piece by piece. Source: tokenizers/src/tokenizer/mod.rs; Megatron-LM
 * huggingface_tokenizer.py (eod = eos_token). */
#include "tokenizer/file/hf.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/model/added.h"
#include "tokenizer/model/decode.h"
#include "tokenizer/model/post.h"
#include "tokenizer/model/token_model.h"
#include "tokenizer/text/field.h"
#include "tokenizer/text/normalize.h"
#include "tokenizer/text/pretokenize.h"
#include "tokenizer/text/unicode.h"
#include "tokenizer/type.h"

typedef struct Hf {
    TokenModel model;
    Normalizer *normalizer;
    PreTokenizer *pre;
    Added *added;
    Post post;
    Decoder *decoder;
    bool splits_special;
} Hf;

void hf_free(void *impl) {
    Hf *h = impl;
    if (!h) return;
    token_model_free(&h->model);
    normalizer_free(h->normalizer);
    pretokenizer_free(h->pre);
    added_free(h->added);
    ids_free(&h->post.before), ids_free(&h->post.after);
    decoder_free(h->decoder);
    free(h);
}

int32_t hf_token_id(const Tokenizer *t, const char *token) {
    const Hf *h = t->impl;
    int32_t id = vocab_id(added_vocab(h->added), token, strlen(token));
    return id >= 0 ? id : vocab_id(token_model_vocab(&h->model), token, strlen(token));
}

const char *hf_token_text(const Tokenizer *t, int32_t id, size_t *n) {
    const Hf *h = t->impl;
    const char *text = vocab_text(added_vocab(h->added), id, n);
    return text ? text : vocab_text(token_model_vocab(&h->model), id, n);
}

bool hf_is_special(const Tokenizer *t, int32_t id) {
    return added_is_special(((const Hf *)t->impl)->added, id);
}

Err hf_load(const json_t *root, const TokenModel *made, const TokenizerConfig *c, Tokenizer *t) {
    Hf *h = t->impl = mem_zero(1, sizeof *h);
    if (made) h->model = *made;
    const json_t *model, *normalizer, *pre, *added, *post, *decoder;
    if (!json_is_object(root)) return err_user("a tokenizer must be a JSON object");
    ERR_RETURN(field_object(root, "tokenizer", "model", &model));
    ERR_RETURN(field_object(root, "tokenizer", "normalizer", &normalizer));
    ERR_RETURN(field_object(root, "tokenizer", "pre_tokenizer", &pre));
    ERR_RETURN(field_array(root, "tokenizer", "added_tokens", &added));
    ERR_RETURN(field_object(root, "tokenizer", "post_processor", &post));
    ERR_RETURN(field_object(root, "tokenizer", "decoder", &decoder));
    if (!model && !made) return err_user("the key \"model\" is missing");
    if (!made) ERR_RETURN(token_model_load(model, &h->model));
    ERR_RETURN(normalizer_load(normalizer, &h->normalizer));
    ERR_RETURN(pretokenizer_load(pre, &h->pre));
    ERR_RETURN(added_load(added, h->normalizer, token_model_vocab(&h->model),
                          (AddedOptions){c->extra_tokens, c->num_extra_tokens, made != NULL}, &h->added));
    ERR_RETURN(decoder_load(decoder, &h->decoder));
    int32_t model_limit = vocab_limit(token_model_vocab(&h->model)),
            added_limit = vocab_limit(added_vocab(h->added));
    t->vocab_size = model_limit > added_limit ? model_limit : added_limit;
    if (!t->vocab_size) return err_user("the vocabulary is empty");
    return post_load(post, t->vocab_size, &h->post);
}

/* Returns the id of the first special token among the names in a NULL-terminated list, or -1 if there is
 * none. */
static int32_t usual(const Tokenizer *t, const char *const *names) {
    for (; *names; names++) {
        const int32_t id = hf_token_id(t, *names);
        if (id >= 0 && hf_is_special(t, id)) return id;
    }
    return -1;
}

int32_t hf_usual_eod(const Tokenizer *t) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<EOT>", NULL};
    return usual(t, names);
}

/* hf_take_usual is needed if no tokenizer_config.json names the tokens. For example, train-tokenizer does not
 * write a tokenizer_config.json. */
void hf_take_usual(Tokenizer *t) {
    static const char *const bos[] = {"<s>", "<bos>", NULL}, *const pad[] = {"<pad>", "[PAD]", NULL};
    if (t->bos < 0) t->bos = usual(t, bos);
    if (t->pad < 0) t->pad = usual(t, pad);
}

void hf_put_around(Tokenizer *t, int32_t before, int32_t after) {
    Post *post = &((Hf *)t->impl)->post;
    post->before.n = post->after.n = 0;
    if (before >= 0) ids_add(&post->before, before, 0, 0);
    if (after >= 0) ids_add(&post->after, after, 0, 0);
}

void hf_split_special(Tokenizer *t) { ((Hf *)t->impl)->splits_special = true; }

/* The state while one text is encoded. added_split calls encode_raw and encode_normalized for each stretch of text. */
typedef struct Encoding {
    const Hf *h;
    unsigned flags;
    const char *text;   /* the complete text */
    Aligned normalized; /* the stretch of text between two added tokens */
    Matcher *matcher;
    PreTokenizerWork *pre;
    TokenModelWork model;
    Ids *out;
    Err err;
} Encoding;

/* Returns the origin of a part, as NormalizedString::convert_offsets does. An empty part is shifted by the
 * start of the text's origin. A part outside the text is returned unchanged. */
static Origin origin_of(View v, Origin part) {
    if (part.begin == part.end && v.n) return (Origin){v.at[0].begin + part.begin, v.at[0].begin + part.end};
    if (part.begin >= part.end || part.end > v.n) return part;
    return (Origin){v.at[part.begin].begin, v.at[part.end - 1].end};
}

static void encode_piece(void *arg, View piece) {
    Encoding *e = arg;
    const size_t before = e->out->n;
    token_model_encode(&e->h->model, &e->model, piece.text, piece.n, e->out);
    for (size_t i = before; e->out->spans && i < e->out->n; i++)
        e->out->at[i] = origin_of(piece, e->out->at[i]);
}

static void encode_normalized(void *arg, int32_t id, size_t begin, size_t end) {
    Encoding *e = arg;
    if (e->err.code) return;
    const View v = view_slice(aligned_view(&e->normalized), begin, end);
    const Origin all = e->out->spans ? origin_of(v, (Origin){0, (uint32_t)v.n}) : (Origin){0, 0};
    if (id >= 0)
        ids_add(e->out, id, all.begin, all.end);
    else
        e->err = pretokenizer_run(e->h->pre, e->pre, e->matcher, v, encode_piece, e);
}

static void encode_raw(void *arg, int32_t id, size_t begin, size_t end) {
    Encoding *e = arg;
    if (e->err.code) return;
    if (id >= 0) {
        ids_add(e->out, id, begin, end);
        return;
    }
    e->err =
        normalizer_run(e->h->normalizer, e->matcher, e->text + begin, end - begin, begin, &e->normalized);
    const View v = aligned_view(&e->normalized);
    if (!e->err.code)
        added_split(e->h->added, true, e->flags & TOKENIZER_SPECIAL_AS_TEXT, v.text, v.n, encode_normalized,
                    e);
}

/* Converts a span from bytes to characters, as BytesToCharOffsetConverter does. As in
 * BytesToCharOffsetConverter, a span that begins past the end of the text is not converted. A span that begins
 * inside the text but ends past the end of the text gets a length of two characters. */
static Origin in_characters(const uint32_t *characters, size_t n, Origin at) {
    if (at.begin >= n) return at;
    const uint32_t begin = characters[at.begin];
    if (at.end < n) return (Origin){begin, characters[at.end]};
    return (Origin){begin, at.end == n ? characters[n - 1] + 1 : begin + 2};
}

/* Returns whether the character is a space, or represents a blank in byte-level vocabularies. */
static bool is_blank(uint32_t c) { return c == byte_to_char(' ') || unicode_is_space(c); }

/* Removes the blanks at the ends of a token from its span (process_offsets in pre_tokenizers/byte_level.rs). A single
 * blank at the start of a text is kept if the pre-tokenizer may have added it. */
static Origin trim(const Post *post, const char *token, size_t n, bool is_first, Origin at) {
    uint32_t c, leading = 0, trailing = 0;
    if (!post->n_trims) return at; /* a tiktoken token can be invalid UTF-8 */
    for (size_t i = 0, width; i < n && (width = utf8_next(token + i, &c), is_blank(c)); i += width) leading++;
    for (size_t i = n; i && (utf8_next(token + utf8_prev(token, i), &c), is_blank(c));
         i = utf8_prev(token, i))
        trailing++;
    for (size_t k = 0; k < post->n_trims; k++) {
        const bool stays = leading == 1 && post->trims[k].prefix && (is_first || !at.begin);
        if (!stays) at.begin = at.begin + leading < at.end ? at.begin + leading : at.end;
        if (trailing && at.end >= trailing)
            at.end = at.end - trailing > at.begin ? at.end - trailing : at.begin;
    }
    return at;
}

/* Converts spans of bytes to the spans that the `tokenizers` library returns. An added token's span may include
 * adjacent blanks of the text. */
static void finish_spans(const Tokenizer *t, const char *text, size_t n, Ids *ids, size_t first) {
    const Hf *h = t->impl;
    uint32_t *characters = utf8_characters(text, n);
    for (size_t i = first; i < ids->n; i++) {
        const Origin at = ids->at[i];
        size_t length = 0;
        const char *token = hf_token_text(t, ids->v[i], &length);
        const bool added = at.begin <= at.end && at.end <= n && added_text(h->added, ids->v[i], &(size_t){0});
        ids->at[i] = trim(&h->post, added ? text + at.begin : token, added ? at.end - at.begin : length,
                          i == first, in_characters(characters, n, at));
    }
    free(characters);
}

Err hf_encode(const Tokenizer *t, unsigned flags, const char *text, size_t n, Ids *out) {
    const Hf *h = t->impl;
    Str repaired = {0};
    if (h->splits_special) flags |= TOKENIZER_SPECIAL_AS_TEXT;
    if (!utf8_valid(text, n)) {
        utf8_repair(text, n, &repaired);
        text = repaired.s, n = repaired.len;
    }
    Encoding e = {.h = h,
                  .flags = flags,
                  .text = text,
                  .matcher = matcher_new(),
                  .pre = pretokenizer_work_new(h->pre),
                  .normalized.tracks = out->spans || pretokenizer_needs_origins(h->pre),
                  .out = out};
    bool around = flags & TOKENIZER_ADD_SPECIAL;
    for (size_t i = 0; around && i < h->post.before.n; i++) ids_add(out, h->post.before.v[i], 0, 0);
    const size_t first = out->n;
    added_split(h->added, false, flags & TOKENIZER_SPECIAL_AS_TEXT, text, n, encode_raw, &e);
    if (out->spans && !e.err.code) finish_spans(t, text, n, out, first);
    for (size_t i = 0; around && i < h->post.after.n; i++) ids_add(out, h->post.after.v[i], 0, 0);
    matcher_free(e.matcher);
    pretokenizer_work_free(e.pre);
    token_model_work_free(&e.model);
    aligned_free(&e.normalized), str_free(&repaired);
    return e.err;
}

static Err decode_each(const Tokenizer *t, unsigned flags, const int32_t *ids, size_t n, Str *out,
                       size_t *starts) {
    if (!decoder_joins_bytes(((const Hf *)t->impl)->decoder))
        return err_user("token offsets can be computed only for a tokenizer.json whose decoder is ByteLevel");
    for (size_t i = 0; i < n; i++) {
        starts[i] = out->len;
        ERR_RETURN(hf_decode(t, flags, ids + i, 1, out, NULL));
    }
    return ERR_OK;
}

Err hf_decode(const Tokenizer *t, unsigned flags, const int32_t *ids, size_t n, Str *out, size_t *starts) {
    if (starts) return decode_each(t, flags, ids, n, out, starts);
    const Hf *h = t->impl;
    Texts tokens = {0};
    for (size_t i = 0; i < n; i++) {
        size_t length;
        if (flags & TOKENIZER_SKIP_SPECIAL && hf_is_special(t, ids[i])) continue;
        const char *text = added_text(h->added, ids[i], &length);
        if (!text) text = vocab_text(token_model_vocab(&h->model), ids[i], &length);
        if (text) texts_add(&tokens, text, length);
    }
    Matcher *matcher = matcher_new();
    Err e = decoder_run(h->decoder, matcher, &tokens, out);
    matcher_free(matcher);
    texts_free(&tokens);
    return e;
}
