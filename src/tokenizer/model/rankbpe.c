#include "tokenizer/model/rankbpe.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/utf8.h"

struct RankBpe {
    Vocab *vocab;
    uint32_t *ranks;
    Trie *frozen;
    bool whole;
};

typedef struct Part {
    const char *text;
    int32_t n; /* number of bytes, or 0 if the part was merged into its left neighbour */
    int32_t prev, next;
    bool frozen;
} Part;

RankBpe *rankbpe_new(Vocab *vocab, uint32_t *ranks, bool whole, Trie *frozen) {
    RankBpe *b = mem_alloc(sizeof *b);
    *b = (RankBpe){vocab, ranks, frozen, whole};
    return b;
}

void rankbpe_free(RankBpe *b) {
    if (!b) return;
    vocab_free(b->vocab);
    trie_free(b->frozen);
    free(b->ranks), free(b);
}

const Vocab *rankbpe_vocab(const RankBpe *b) { return b->vocab; }

void rank_work_free(RankWork *w) { free(w->parts), free(w->heap.v); }

/* Returns the length in bytes of the longest frozen token at the start of the text, or 0 if there is none. */
static size_t frozen_prefix(const Trie *t, const char *text, size_t n) {
    size_t longest = 0;
    int32_t node = TRIE_ROOT;
    for (size_t i = 0; t && i < n && (node = trie_child(t, node, text[i])) != TRIE_NONE; i++)
        if (trie_value(t, node) != TRIE_NONE) longest = i + 1;
    return longest;
}

static int32_t split(const RankBpe *b, Part *parts, const char *text, size_t n) {
    int32_t count = 0;
    for (size_t i = 0, width; i < n; i += width, count++) {
        uint32_t c;
        size_t frozen = frozen_prefix(b->frozen, text + i, n - i);
        width = frozen ? frozen : utf8_next(text + i, &c);
        parts[count] = (Part){text + i, (int32_t)width, count - 1, count + 1, frozen > 0};
    }
    parts[count - 1].next = -1;
    return count;
}

/* Returns the rank of the token that this part and the next part form, or RANK_NEVER if there is none. */
static uint32_t rank_at(const RankBpe *b, const Part *parts, int32_t left) {
    const Part *l = &parts[left];
    if (!l->n || l->next < 0 || l->frozen || parts[l->next].frozen) return RANK_NEVER;
    int32_t id = vocab_id(b->vocab, l->text, (size_t)l->n + (size_t)parts[l->next].n);
    return id < 0 ? RANK_NEVER : b->ranks[id];
}

static void propose(const RankBpe *b, RankWork *w, int32_t left) {
    if (left < 0) return;
    uint32_t rank = rank_at(b, w->parts, left);
    if (rank != RANK_NEVER) heap_push(&w->heap, (uint64_t)rank << 32 | (uint32_t)left);
}

void rankbpe_encode(const RankBpe *b, RankWork *w, const char *piece, size_t n, TokenFn *fn, void *arg) {
    CHECK(n < INT32_MAX, "a pre-token of %zu bytes is too long", n);
    int32_t id = b->whole ? vocab_id(b->vocab, piece, n) : -1;
    if (id >= 0) fn(arg, piece, n, id);
    if (id >= 0 || !n) return;
    if (n > w->cap) w->parts = mem_grow(w->parts, w->cap = 2 * n + 64, sizeof *w->parts);
    Part *p = w->parts;
    const int32_t count = split(b, p, piece, n);
    w->heap.n = 0;
    for (int32_t i = 0; i < count; i++) propose(b, w, i);
    while (w->heap.n) {
        const uint64_t top = heap_pop(&w->heap);
        const int32_t left = (int32_t)(uint32_t)top;
        if (rank_at(b, p, left) != top >> 32) continue; /* the pair has changed since it was queued */
        const int32_t right = p[left].next;
        p[left].n += p[right].n;
        p[right].n = 0;
        p[left].next = p[right].next;
        if (p[left].next >= 0) p[p[left].next].prev = left;
        propose(b, w, p[left].prev);
        propose(b, w, left);
    }
    for (int32_t i = 0; i >= 0; i = p[i].next)
        fn(arg, p[i].text, (size_t)p[i].n, vocab_id(b->vocab, p[i].text, (size_t)p[i].n));
}
