#include "tokenizer/model/token_model.h"

#include <string.h>

Err token_model_load(const json_t *object, TokenModel *out) {
    const json_t *named = json_object_get(object, "type");
    const char *type = !named || json_is_null(named) ? "BPE" : json_string_value(named);
    if (!type) return err_user("model.type must be a string");
    if (!strcmp(type, "BPE")) return bpe_load(object, &out->bpe);
    if (!strcmp(type, "WordPiece")) return wordpiece_load(object, &out->words);
    if (!strcmp(type, "WordLevel")) return wordlevel_load(object, &out->words);
    if (!strcmp(type, "Unigram")) return unigram_load(object, &out->unigram);
    return err_user("model.type '%.60s' is not supported; the supported types are BPE, WordPiece, WordLevel "
                    "and Unigram",
                    type);
}

void token_model_free(TokenModel *m) {
    bpe_free(m->bpe);
    wordpiece_free(m->words);
    unigram_free(m->unigram);
    rankbpe_free(m->ranked);
}

const Vocab *token_model_vocab(const TokenModel *m) {
    if (m->ranked) return rankbpe_vocab(m->ranked);
    return m->bpe ? bpe_vocab(m->bpe) : m->words ? wordpiece_vocab(m->words) : unigram_vocab(m->unigram);
}

void token_model_work_free(TokenModelWork *w) {
    bpe_work_free(&w->bpe);
    unigram_work_free(&w->unigram);
    rank_work_free(&w->ranked);
}

typedef struct Ranked {
    const char *piece;
    Ids *out;
} Ranked;

static void add_token(void *arg, const char *text, size_t n, int32_t id) {
    const Ranked *r = arg;
    const size_t begin = (size_t)(text - r->piece);
    if (id >= 0) ids_add(r->out, id, begin, begin + n);
}

void token_model_encode(const TokenModel *m, TokenModelWork *w, const char *piece, size_t n, Ids *out) {
    if (m->bpe)
        bpe_encode(m->bpe, &w->bpe, piece, n, out);
    else if (m->words)
        wordpiece_encode(m->words, piece, n, out);
    else if (m->ranked)
        rankbpe_encode(m->ranked, &w->ranked, piece, n, add_token, &(Ranked){piece, out});
    else
        unigram_encode(m->unigram, &w->unigram, piece, n, out);
}
