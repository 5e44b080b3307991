#include "tokenizer/model/unigram.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/model/trie.h"
#include "tokenizer/text/field.h"

enum { NONE = -1 };
static const double UNK_PENALTY = 10;

struct Unigram {
    Vocab *own;
    const Vocab *vocab;
    Trie *trie;
    double *scores; /* by id */
    double unk_score;
    int32_t unk;
    int32_t bytes[256]; /* ids of <0x00> ... <0xFF>, or NONE if there is no byte_fallback */
    bool single;        /* whether scores are summed in single precision, as in SentencePiece */
};

/* The best segmentation of the bytes before a position. `start` is the position of the segmentation's last
 * token. */
typedef struct Best {
    double score;
    int32_t start, id;
} Best;

static Unigram *new_unigram(const Vocab *vocab) {
    Unigram *u = mem_zero(1, sizeof *u);
    u->vocab = vocab;
    u->trie = trie_new();
    u->scores = mem_zero((size_t)vocab_limit(vocab) + 1, sizeof *u->scores);
    for (int c = 0; c < 256; c++) u->bytes[c] = NONE;
    return u;
}

Unigram *unigram_new(const Vocab *vocab, int32_t unk, double unk_score) {
    Unigram *u = new_unigram(vocab);
    u->unk = unk;
    u->unk_score = unk_score;
    u->single = true;
    return u;
}

void unigram_use(Unigram *u, int32_t id, double score) {
    size_t n;
    const char *text = vocab_text(u->vocab, id, &n);
    trie_add(u->trie, text, n, id);
    u->scores[id] = score;
}

void unigram_use_bytes(Unigram *u) {
    for (int c = 0; c < 256; c++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", c);
        u->bytes[c] = vocab_id(u->vocab, name, 6);
    }
}

void unigram_free(Unigram *u) {
    if (!u) return;
    vocab_free(u->own);
    trie_free(u->trie);
    free(u->scores), free(u);
}

const Vocab *unigram_vocab(const Unigram *u) { return u->vocab; }

void unigram_work_free(UnigramWork *w) { free(w->best); }

/* Reads model.vocab, a list of [token, score]. The index of a token is its id. */
static Err load_pieces(const json_t *list, Vocab *vocab) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *piece = json_array_get(list, i), *text = json_array_get(piece, 0);
        if (!json_is_string(text) || !json_is_number(json_array_get(piece, 1)))
            return err_user("model.vocab: entry %zu must be a token and its score", i);
        ERR_RETURN(vocab_add(vocab, json_string_value(text), json_string_length(text), (int64_t)i));
    }
    return ERR_OK;
}

static Err load(const json_t *model, Vocab *vocab, Unigram **out) {
    const json_t *list;
    int64_t unk;
    bool byte_fallback;
    ERR_RETURN(field_array(model, "model", "vocab", &list));
    ERR_RETURN(load_pieces(list, vocab));
    ERR_RETURN(field_int(model, "model", "unk_id", &unk));
    if (unk < 0 || unk >= vocab_limit(vocab))
        return err_user("model.unk_id %lld is not in the vocabulary of %d tokens", (long long)unk,
                        vocab_limit(vocab));
    ERR_RETURN(field_bool(model, "model", "byte_fallback", false, &byte_fallback));
    Unigram *u = *out = new_unigram(vocab);
    double least = INFINITY;
    for (int32_t id = 0; id < vocab_limit(vocab); id++) {
        double score = json_number_value(json_array_get(json_array_get(list, (size_t)id), 1));
        unigram_use(u, id, score);
        least = fmin(least, score);
    }
    u->unk = (int32_t)unk;
    u->unk_score = least - UNK_PENALTY;
    if (byte_fallback) unigram_use_bytes(u);
    return ERR_OK;
}

Err unigram_load(const json_t *model, Unigram **out) {
    Vocab *vocab = vocab_new();
    Err e = load(model, vocab, out);
    if (e.code)
        vocab_free(vocab);
    else
        (*out)->own = vocab;
    return e;
}

static void offer(const Unigram *u, Best *best, double score, size_t start, int32_t id) {
    if (u->single) score = (float)score;
    if (best->id == NONE || score > best->score) *best = (Best){score, (int32_t)start, id};
}

/* Fills best[0 .. n] for a piece of n bytes. */
static void search(const Unigram *u, Best *best, const char *piece, size_t n) {
    best[0] = (Best){0, 0, NONE};
    for (size_t i = 1; i <= n; i++) best[i] = (Best){0, 0, NONE};
    for (size_t start = 0, width; start < n; start += width) {
        uint32_t c;
        const double here = best[start].score;
        bool known = false; /* whether the character at `start` is a token */
        width = utf8_next(piece + start, &c);
        int32_t node = TRIE_ROOT;
        for (size_t i = start; i < n && (node = trie_child(u->trie, node, piece[i])) != TRIE_NONE; i++) {
            int32_t id = trie_value(u->trie, node);
            if (id == TRIE_NONE) continue;
            offer(u, &best[i + 1], u->scores[id] + here, start, id);
            known = known || i + 1 - start == width;
        }
        if (!known) offer(u, &best[start + width], u->unk_score + here, start, u->unk);
    }
}

/* Adds byte tokens, each of which spans [begin, end). In SentencePiece, the last byte token of a character
 * spans the character, and the other byte tokens have empty spans before the character. */
static void add_bytes(const Unigram *u, const char *piece, size_t begin, size_t end, Ids *out) {
    for (size_t i = begin, next; i < end; i = next) {
        uint32_t c;
        next = i + utf8_next(piece + i, &c);
        for (size_t k = i; k < next; k++)
            ids_add(out, u->bytes[(unsigned char)piece[k]], u->single ? i : begin,
                    !u->single      ? end
                    : k + 1 == next ? next
                                    : i);
    }
}

static void add_unknown(const Unigram *u, const char *piece, size_t begin, size_t end, Ids *out) {
    int32_t whole = u->single ? NONE : vocab_id(u->vocab, piece + begin, end - begin);
    bool bytes = whole == NONE;
    for (size_t i = begin; i < end && bytes; i++) bytes = u->bytes[(unsigned char)piece[i]] != NONE;
    if (bytes)
        add_bytes(u, piece, begin, end, out);
    else
        ids_add(out, whole != NONE ? whole : u->unk, begin, end);
}

void unigram_encode(const Unigram *u, UnigramWork *w, const char *piece, size_t n, Ids *out) {
    CHECK(n < INT32_MAX, "a pre-token of %zu bytes is too long", n);
    if (n + 1 > w->cap) w->best = mem_grow(w->best, w->cap = 2 * n + 64, sizeof *w->best);
    search(u, w->best, piece, n);
    /* Reverses the path: best[start].start becomes the end of the token at `start`. */
    int32_t end = (int32_t)n, after = (int32_t)n, id = NONE;
    while (end > 0) {
        const Best last = w->best[end];
        w->best[end].start = after, w->best[end].id = id;
        after = end, id = last.id, end = last.start;
    }
    w->best[0].start = after, w->best[0].id = id;
    for (size_t at = 0, unknown = 0; at < n;) {
        const size_t stop = (size_t)w->best[at].start;
        const bool is_unk = w->best[at].id == u->unk;
        if (!is_unk) ids_add(out, w->best[at].id, at, stop);
        at = stop;
        if (is_unk && at < n && w->best[at].id == u->unk) continue; /* adjacent unknown tokens are merged */
        if (is_unk) add_unknown(u, piece, unknown, at, out);
        unknown = at;
    }
}
