#include "tokenizer/model/wordpiece.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/model/trie.h"
#include "tokenizer/text/field.h"

enum { USUAL_LONGEST = 100 }; /* the default of `longest` */

struct WordPiece {
    Vocab *vocab;
    /* `starts` contains all tokens; `continuations` contains the tokens that begin with the prefix, without the
     * prefix */
    Trie *starts, *continuations;
    int64_t longest; /* maximum number of characters in a word; longer words become unknown */
    int32_t unk;
};

void wordpiece_free(WordPiece *w) {
    if (!w) return;
    vocab_free(w->vocab);
    trie_free(w->starts), trie_free(w->continuations);
    free(w);
}

const Vocab *wordpiece_vocab(const WordPiece *w) { return w->vocab; }

/* Reads the vocabulary and unk_token of a WordPiece or WordLevel model. */
static Err load_words(const json_t *model, const char *usual_unk, WordPiece *w) {
    const char *unk = usual_unk;
    size_t n = strlen(unk);
    w->vocab = vocab_new();
    ERR_RETURN(vocab_load(w->vocab, model));
    if (json_object_get(model, "unk_token")) ERR_RETURN(field_text(model, "model", "unk_token", &unk, &n));
    w->unk = vocab_id(w->vocab, unk, n);
    return w->unk >= 0 ? ERR_OK : err_user("model.unk_token '%.60s' is not in the vocabulary", unk);
}

static Err load_pieces(const json_t *model, WordPiece *w) {
    const char *prefix = "##";
    size_t n = strlen(prefix);
    ERR_RETURN(load_words(model, "[UNK]", w));
    if (json_object_get(model, "continuing_subword_prefix"))
        ERR_RETURN(field_text(model, "model", "continuing_subword_prefix", &prefix, &n));
    w->longest = USUAL_LONGEST;
    if (json_object_get(model, "max_input_chars_per_word"))
        ERR_RETURN(field_int(model, "model", "max_input_chars_per_word", &w->longest));
    w->starts = trie_new();
    w->continuations = trie_new();
    for (int32_t id = 0; id < vocab_limit(w->vocab); id++) {
        size_t bytes;
        const char *text = vocab_text(w->vocab, id, &bytes);
        if (!text) continue;
        trie_add(w->starts, text, bytes, id);
        if (bytes >= n && !memcmp(text, prefix, n)) trie_add(w->continuations, text + n, bytes - n, id);
    }
    return ERR_OK;
}

static Err finish(Err e, WordPiece *w, WordPiece **out) {
    if (e.code)
        wordpiece_free(w);
    else
        *out = w;
    return e;
}

Err wordpiece_load(const json_t *model, WordPiece **out) {
    WordPiece *w = mem_zero(1, sizeof *w);
    return finish(load_pieces(model, w), w, out);
}

Err wordlevel_load(const json_t *model, WordPiece **out) {
    WordPiece *w = mem_zero(1, sizeof *w);
    return finish(load_words(model, "<unk>", w), w, out);
}

void wordpiece_encode(const WordPiece *w, const char *piece, size_t n, Ids *out) {
    if (!w->starts) {
        int32_t id = vocab_id(w->vocab, piece, n);
        ids_add(out, id >= 0 ? id : w->unk, 0, n);
        return;
    }
    const size_t before = out->n, whole = n;
    size_t done = 0;
    if ((int64_t)utf8_count(piece, n) > w->longest) n = 0;
    while (done < n) {
        const Trie *trie = done ? w->continuations : w->starts;
        int32_t node = TRIE_ROOT, id = TRIE_NONE;
        size_t end = done;
        for (size_t i = done; i < n && (node = trie_child(trie, node, piece[i])) != TRIE_NONE; i++)
            if (trie_value(trie, node) != TRIE_NONE) id = trie_value(trie, node), end = i + 1;
        if (id == TRIE_NONE) break;
        ids_add(out, id, done, end);
        done = end;
    }
    if (done == n && n) return;
    out->n = before;
    ids_add(out, w->unk, 0, whole);
}
