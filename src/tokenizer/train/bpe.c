/* A word is a list of token ids. `pairs` contains the number of occurrences of each pair of adjacent ids. The queue
 * contains the pairs in descending order of their counts. Each entry in the queue lists the words that contain the
 * pair. When a pair reaches the front, its count in the queue may be outdated, so it is compared with the current
 * count. */
#include "tokenizer/train/bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "tokenizer/file/tiktoken.h"
#include "tokenizer/model/vocab.h"
#include "tokenizer/text/pretokenize.h"

enum { BYTES = 256, PROGRESS_EVERY = 1000 };

typedef struct Places { /* indices of words, in ascending order */
    int32_t *v;
    size_t n, cap;
} Places;

typedef struct Pair {
    uint64_t key; /* left id << 32 | right id */
    int64_t count;
    Places fresh;   /* words that have gained the pair since it was last queued */
    int64_t merged; /* 1 + index in the list of merges; 0 if the pair has not been merged */
} Pair;

typedef struct Queued {
    int64_t count;
    uint64_t key;
    Places places;
} Queued;

typedef struct Word {
    int32_t *ids;
    size_t n;
} Word;

typedef struct Trainer {
    const Words *words;
    Vocab *tokens;
    Word *lists; /* [words] */
    int32_t *ids;
    Pair *pairs;
    size_t num_pairs, pairs_cap;
    uint32_t *slots; /* pair + 1; 0 if the slot is free */
    size_t mask;
    uint32_t *touched; /* indices of the pairs whose `fresh` is not empty */
    size_t num_touched, touched_cap;
    Queued *queue; /* a binary heap */
    size_t queue_n, queue_cap;
    uint64_t *merges; /* keys of the merged pairs; UINT64_MAX if the same pair was merged again later */
    size_t num_merges, merges_cap;
} Trainer;

Err bpe_words(const char *pattern, Words **out) {
    const char *regex = NULL;
    if (strcmp(pattern, "gpt2")) ERR_RETURN(tiktoken_pattern(pattern, &regex));
    json_t *pre = regex ? json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b,s:b}]}", "type", "Sequence",
                                    "pretokenizers", "type", "Split", "pattern", "Regex", regex, "behavior",
                                    "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0,
                                    "trim_offsets", 1, "use_regex", 0)
                        : json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                                    "trim_offsets", 1, "use_regex", 1);
    return words_new(NULL, pre, out);
}

static void free_trainer(Trainer *t) {
    vocab_free(t->tokens);
    for (size_t i = 0; i < t->num_pairs; i++) free(t->pairs[i].fresh.v);
    for (size_t i = 0; i < t->queue_n; i++) free(t->queue[i].places.v);
    free(t->lists), free(t->ids), free(t->pairs), free(t->slots), free(t->touched);
    free(t->queue), free(t->merges);
}

/* ---- the queue: pairs by descending count, and then by ascending ids ---- */

static bool comes_first(const Queued *a, const Queued *b) {
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void enqueue(Trainer *t, Queued q) {
    if (t->queue_n == t->queue_cap)
        t->queue = mem_grow(t->queue, t->queue_cap = t->queue_cap * 2 + 1024, sizeof *t->queue);
    size_t i = t->queue_n++;
    for (; i && comes_first(&q, &t->queue[(i - 1) / 2]); i = (i - 1) / 2) t->queue[i] = t->queue[(i - 1) / 2];
    t->queue[i] = q;
}

static Queued dequeue(Trainer *t) {
    const Queued top = t->queue[0], last = t->queue[--t->queue_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < t->queue_n; i = child) {
        if (child + 1 < t->queue_n && comes_first(&t->queue[child + 1], &t->queue[child])) child++;
        if (!comes_first(&t->queue[child], &last)) break;
        t->queue[i] = t->queue[child];
    }
    t->queue[i] = last;
    return top;
}

/* ---- pairs ---- */

static size_t slot_of(const Trainer *t, uint64_t key) {
    size_t slot = hash64(&key, sizeof key, 0) & t->mask;
    while (t->slots[slot] && t->pairs[t->slots[slot] - 1].key != key) slot = (slot + 1) & t->mask;
    return slot;
}

static Pair *pair_at(Trainer *t, int32_t left, int32_t right) {
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (t->num_pairs * 2 >= t->mask) {
        t->mask = t->mask ? t->mask * 2 + 1 : 4095;
        free(t->slots);
        t->slots = mem_zero(t->mask + 1, sizeof *t->slots);
        for (size_t i = 0; i < t->num_pairs; i++) t->slots[slot_of(t, t->pairs[i].key)] = (uint32_t)i + 1;
    }
    const size_t slot = slot_of(t, key);
    if (!t->slots[slot]) {
        if (t->num_pairs == t->pairs_cap)
            t->pairs = mem_grow(t->pairs, t->pairs_cap = t->pairs_cap * 2 + 1024, sizeof *t->pairs);
        t->pairs[t->num_pairs++] = (Pair){.key = key};
        t->slots[slot] = (uint32_t)t->num_pairs;
    }
    return &t->pairs[t->slots[slot] - 1];
}

/* Adds `count` occurrences of the pair, which is part of `word`. */
static void change(Trainer *t, int32_t left, int32_t right, int64_t count, int32_t word) {
    Pair *p = pair_at(t, left, right);
    p->count += count;
    if (count < 0) return;
    if (!p->fresh.n) {
        if (t->num_touched == t->touched_cap)
            t->touched = mem_grow(t->touched, t->touched_cap = t->touched_cap * 2 + 1024, sizeof *t->touched);
        t->touched[t->num_touched++] = (uint32_t)(p - t->pairs);
    } else if (p->fresh.v[p->fresh.n - 1] == word)
        return;
    if (p->fresh.n == p->fresh.cap)
        p->fresh.v = mem_grow(p->fresh.v, p->fresh.cap = p->fresh.cap * 2 + 4, sizeof *p->fresh.v);
    p->fresh.v[p->fresh.n++] = word;
}

static void queue_touched(Trainer *t) {
    for (size_t i = 0; i < t->num_touched; i++) {
        Pair *p = &t->pairs[t->touched[i]];
        if (p->count > 0)
            enqueue(t, (Queued){p->count, p->key, p->fresh});
        else
            free(p->fresh.v);
        p->fresh = (Places){0};
    }
    t->num_touched = 0;
}

/* ---- training ---- */

static Err add_token(Trainer *t, const char *text, size_t n, int32_t *id) {
    *id = vocab_id(t->tokens, text, n);
    if (*id >= 0) return ERR_OK;
    *id = vocab_limit(t->tokens);
    return vocab_add(t->tokens, text, n, *id);
}

/* Adds the special tokens, and then the characters that represent bytes, in the order of the characters. */
static Err add_alphabet(Trainer *t, const Training *c) {
    int32_t id;
    t->tokens = vocab_new();
    for (size_t i = 0; i < c->num_special; i++) {
        if (!*c->special[i]) return err_user("a special token is empty");
        ERR_RETURN(add_token(t, c->special[i], strlen(c->special[i]), &id));
    }
    for (uint32_t character = 0; character < 0x144; character++) {
        if (char_to_byte(character) < 0) continue;
        Str s = {0};
        utf8_put(&s, character);
        Err e = add_token(t, s.s, s.len, &id);
        str_free(&s);
        ERR_RETURN(e);
    }
    if (vocab_count(t->tokens) <= (size_t)c->vocab_size) return ERR_OK;
    return err_user("--vocab-size %lld is below the number of special tokens and bytes, %zu: raise it",
                    (long long)c->vocab_size, vocab_count(t->tokens));
}

static void split_words(Trainer *t) {
    const int32_t words = words_number(t->words);
    size_t symbols = 0, n;
    for (int32_t w = 0; w < words; w++) {
        const char *text = words_text(t->words, w, &n);
        symbols += utf8_count(text, n);
    }
    t->ids = mem_alloc((symbols + 1) * sizeof *t->ids);
    t->lists = mem_alloc(((size_t)words + 1) * sizeof *t->lists);
    symbols = 0;
    for (int32_t w = 0; w < words; w++) {
        const char *text = words_text(t->words, w, &n);
        Word *word = &t->lists[w];
        *word = (Word){t->ids + symbols, 0};
        for (size_t i = 0, width; i < n; i += width) {
            uint32_t c;
            width = utf8_next(text + i, &c);
            word->ids[word->n++] = vocab_id(t->tokens, text + i, width);
            if (word->n > 1)
                change(t, word->ids[word->n - 2], word->ids[word->n - 1], words_count(t->words, w), w);
        }
        symbols += word->n;
    }
    queue_touched(t);
}

static void merge_word(Trainer *t, int32_t w, int32_t left, int32_t right, int32_t made) {
    Word *word = &t->lists[w];
    const int64_t count = words_count(t->words, w);
    int32_t *ids = word->ids;
    size_t kept = 0;
    for (size_t i = 0; i < word->n; kept++) {
        if (ids[i] != left || i + 1 == word->n || ids[i + 1] != right) {
            ids[kept] = ids[i++];
            continue;
        }
        if (kept) {
            change(t, ids[kept - 1], left, -count, w);
            change(t, ids[kept - 1], made, count, w);
        }
        i += 2;
        if (i < word->n) {
            change(t, right, ids[i], -count, w);
            change(t, made, ids[i], count, w);
        }
        ids[kept] = made;
    }
    word->n = kept;
}

/* Appends a merge. If a pair is merged twice, it gets the rank of the second merge. */
static void note_merge(Trainer *t, Pair *p) {
    if (p->merged) t->merges[p->merged - 1] = UINT64_MAX;
    if (t->num_merges == t->merges_cap)
        t->merges = mem_grow(t->merges, t->merges_cap = t->merges_cap * 2 + 1024, sizeof *t->merges);
    t->merges[t->num_merges++] = p->key;
    p->merged = (int64_t)t->num_merges;
}

static Err merge_pair(Trainer *t, const Queued *top) {
    const int32_t left = (int32_t)(top->key >> 32), right = (int32_t)(uint32_t)top->key;
    size_t n;
    int32_t made;
    Str text = {0};
    for (int side = 0; side < 2; side++) {
        const char *half = vocab_text(t->tokens, side ? right : left, &n);
        str_add(&text, half, n);
    }
    Err e = add_token(t, text.s, text.len, &made);
    str_free(&text);
    if (e.code) return e;
    note_merge(t, pair_at(t, left, right));
    for (size_t i = 0; i < top->places.n; i++) merge_word(t, top->places.v[i], left, right, made);
    queue_touched(t);
    return ERR_OK;
}

static Err merge_all(Trainer *t, const Training *c) {
    Err e = ERR_OK;
    while (vocab_count(t->tokens) < (size_t)c->vocab_size && t->queue_n && !e.code) {
        Queued top = dequeue(t);
        const int64_t count = pair_at(t, (int32_t)(top.key >> 32), (int32_t)(uint32_t)top.key)->count;
        if (top.count != count) {
            top.count = count;
            enqueue(t, top);
            continue;
        }
        const bool enough = count >= 1 && count >= c->min_frequency;
        if (enough) e = merge_pair(t, &top);
        free(top.places.v);
        if (!enough) break;
        if (c->progress && t->num_merges % PROGRESS_EVERY == 0)
            c->progress(c->ctx, (int64_t)vocab_count(t->tokens));
    }
    return e;
}

static json_t *tokenizer_json(const Trainer *t, const Training *c) {
    json_t *vocab = json_object(), *merges = json_array();
    for (int32_t id = 0; id < vocab_limit(t->tokens); id++) {
        size_t n;
        const char *text = vocab_text(t->tokens, id, &n);
        json_object_setn_new(vocab, text, n, json_integer(id));
    }
    for (size_t i = 0; i < t->num_merges; i++)
        if (t->merges[i] != UINT64_MAX)
            json_array_append_new(merges,
                                  json_pack("[o,o]", training_token(t->tokens, (int32_t)(t->merges[i] >> 32)),
                                            training_token(t->tokens, (int32_t)(uint32_t)t->merges[i])));
    json_t *decoder = json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 1,
                                "trim_offsets", 1, "use_regex", 1);
    json_t *model = json_pack("{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:b,s:o,s:o}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges", merges);
    return training_json(t->words, c, t->tokens, decoder, model);
}

Err bpe_train(const Words *words, const Training *c, json_t **out, int64_t *tokens) {
    Trainer t = {.words = words};
    Err e = add_alphabet(&t, c);
    if (!e.code) {
        split_words(&t);
        e = merge_all(&t, c);
    }
    if (!e.code) {
        *tokens = (int64_t)vocab_count(t.tokens);
        *out = tokenizer_json(&t, c);
    }
    free_trainer(&t);
    return e;
}
