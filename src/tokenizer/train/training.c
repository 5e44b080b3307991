#include "tokenizer/train/training.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "tokenizer/text/normalize.h"
#include "tokenizer/text/pretokenize.h"

struct Words {
    json_t *normalizer_json, *pre_json;
    Normalizer *normalizer;
    PreTokenizer *pre;
    PreTokenizerWork *work;
    Matcher *matcher;
    Vocab *vocab;
    int64_t *counts; /* the count of each word, indexed by its id in `vocab` */
    size_t cap;
    Err err;
};

Err words_new(json_t *normalizer, json_t *pre_tokenizer, Words **out) {
    Words *w = mem_zero(1, sizeof *w);
    w->normalizer_json = normalizer, w->pre_json = pre_tokenizer;
    w->matcher = matcher_new();
    w->vocab = vocab_new();
    Err e = normalizer_load(normalizer, &w->normalizer);
    if (!e.code) e = pretokenizer_load(pre_tokenizer, &w->pre);
    if (e.code) return words_free(w), e;
    w->work = pretokenizer_work_new(w->pre);
    *out = w;
    return ERR_OK;
}

void words_free(Words *w) {
    if (!w) return;
    json_decref(w->normalizer_json), json_decref(w->pre_json);
    normalizer_free(w->normalizer);
    pretokenizer_free(w->pre);
    pretokenizer_work_free(w->work);
    matcher_free(w->matcher);
    vocab_free(w->vocab);
    free(w->counts), free(w);
}

static void count_word(void *arg, View v) {
    const char *piece = v.text;
    const size_t n = v.n;
    Words *w = arg;
    if (w->err.code) return;
    int32_t id = vocab_id(w->vocab, piece, n);
    if (id < 0) {
        id = vocab_limit(w->vocab);
        if (id == VOCAB_ID_LIMIT)
            w->err = err_user("the text has more than %d different words; train on a part of the text",
                              VOCAB_ID_LIMIT);
        else
            w->err = vocab_add(w->vocab, piece, n, id);
        if (w->err.code) return;
        if ((size_t)id >= w->cap)
            w->counts = mem_grow(w->counts, w->cap = w->cap * 2 + 1024, sizeof *w->counts);
        w->counts[id] = 0;
    }
    w->counts[id]++;
}

Err words_add(Words *w, const char *text, size_t n) {
    Str repaired = {0};
    Aligned normal = {.tracks = pretokenizer_needs_origins(w->pre)};
    if (!utf8_valid(text, n)) {
        utf8_repair(text, n, &repaired);
        text = repaired.s, n = repaired.len;
    }
    Err e = normalizer_run(w->normalizer, w->matcher, text, n, 0, &normal);
    for (size_t i = 0; i < normal.count; i++)
        /* as in the `tokenizers` library, each piece counts as the start of a text */
        normal.at[i] = (Origin){0, 0};
    if (!e.code) e = pretokenizer_run(w->pre, w->work, w->matcher, aligned_view(&normal), count_word, w);
    str_free(&repaired), aligned_free(&normal);
    return e.code ? e : w->err;
}

int32_t words_number(const Words *w) { return vocab_limit(w->vocab); }
const char *words_text(const Words *w, int32_t word, size_t *n) { return vocab_text(w->vocab, word, n); }
int64_t words_count(const Words *w, int32_t word) { return w->counts[word]; }

json_t *training_token(const Vocab *vocab, int32_t id) {
    size_t n;
    const char *text = vocab_text(vocab, id, &n);
    return json_stringn(text, n);
}

json_t *training_json(const Words *w, const Training *c, const Vocab *vocab, json_t *decoder, json_t *model) {
    json_t *added = json_array();
    for (size_t i = 0; i < c->num_special; i++)
        json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id",
                                               vocab_id(vocab, c->special[i], strlen(c->special[i])),
                                               "content", c->special[i], "single_word", 0, "lstrip", 0,
                                               "rstrip", 0, "normalized", 0, "special", 1));
    return json_pack("{s:s,s:n,s:n,s:o,s:O?,s:O,s:n,s:o,s:o}", "version", "1.0", "truncation", "padding",
                     "added_tokens", added, "normalizer", w->normalizer_json, "pre_tokenizer", w->pre_json,
                     "post_processor", "decoder", decoder, "model", model);
}
