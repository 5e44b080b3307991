#include "tokenizer/model.h"

#include <string.h>

Err model_load(const json_t *object, Model *out) {
    const json_t *named = json_object_get(object, "type");
    const char *type = !named || json_is_null(named) ? "BPE" : json_string_value(named);
    if (!type) return err_user("model.type must be a string");
    if (!strcmp(type, "BPE")) return bpe_load(object, &out->bpe);
    if (!strcmp(type, "WordPiece")) return wordpiece_load(object, &out->words);
    if (!strcmp(type, "WordLevel")) return wordlevel_load(object, &out->words);
    if (!strcmp(type, "Unigram")) return unigram_load(object, &out->unigram);
    return err_user("model.type '%.60s' is not supported; BPE, WordPiece, WordLevel and Unigram are", type);
}

void token_model_free(Model *m) {
    bpe_free(m->bpe);
    wordpiece_free(m->words);
    unigram_free(m->unigram);
}

const Vocab *model_vocab(const Model *m) {
    return m->bpe ? bpe_vocab(m->bpe) : m->words ? wordpiece_vocab(m->words) : unigram_vocab(m->unigram);
}

void model_work_free(ModelWork *w) {
    bpe_work_free(&w->bpe);
    unigram_work_free(&w->unigram);
}

void model_encode(const Model *m, ModelWork *w, const char *piece, size_t n, Ids *out) {
    if (m->bpe)
        bpe_encode(m->bpe, &w->bpe, piece, n, out);
    else if (m->words)
        wordpiece_encode(m->words, piece, n, out);
    else
        unigram_encode(m->unigram, &w->unigram, piece, n, out);
}
