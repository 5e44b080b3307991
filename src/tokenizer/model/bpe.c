#include "tokenizer/model/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/text/field.h"

enum { DIRECT = 512, NONE = -1 }; /* all characters that represent bytes are below DIRECT */

typedef struct Merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
    int32_t id; /* id of the merged token, or NONE if the slot is free */
} Merge;

struct Bpe {
    Vocab *vocab;
    Merge *merges; /* hash table with open addressing */
    size_t mask;
    int32_t *by_rank;       /* the id of the merged token for each rank */
    int32_t direct[DIRECT]; /* ids of the one-character tokens below DIRECT */
    int32_t bytes[256];     /* the ids of the tokens <0x00> ... <0xFF> */
    int32_t unk;
    bool fuse_unk, byte_fallback, ignore_merges;
};

typedef struct Symbol {
    int32_t id; /* NONE if the symbol was merged into its left neighbour */
    int32_t prev, next;
    int32_t n; /* bytes */
} Symbol;

void ids_add(Ids *ids, int32_t id, size_t begin, size_t end) {
    if (ids->n == ids->cap) {
        ids->v = mem_grow(ids->v, ids->cap = ids->cap * 2 + 64, sizeof *ids->v);
        if (ids->spans) ids->at = mem_grow(ids->at, ids->cap, sizeof *ids->at);
    }
    if (ids->spans) ids->at[ids->n] = (Origin){(uint32_t)begin, (uint32_t)end};
    ids->v[ids->n++] = id;
}

void ids_free(Ids *ids) { free(ids->v), free(ids->at); }

void bpe_free(Bpe *b) {
    if (!b) return;
    vocab_free(b->vocab);
    free(b->merges), free(b->by_rank), free(b);
}

const Vocab *bpe_vocab(const Bpe *b) { return b->vocab; }

void bpe_work_free(BpeWork *w) { free(w->symbols), free(w->heap.v); }

static Merge *merge_slot(const Bpe *b, uint64_t pair) {
    size_t slot = hash64(&pair, sizeof pair, 0) & b->mask;
    while (b->merges[slot].id != NONE && b->merges[slot].pair != pair) slot = (slot + 1) & b->mask;
    return &b->merges[slot];
}

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static Err load_characters(Bpe *b, const json_t *model) {
    ERR_RETURN(vocab_load(b->vocab, model));
    for (uint32_t c = 0; c < DIRECT; c++) {
        Str s = {0};
        utf8_put(&s, c);
        b->direct[c] = vocab_id(b->vocab, s.s, s.len);
        str_free(&s);
    }
    return ERR_OK;
}

/* Reads a merge, "left right" or ["left", "right"]. In the list form, tokens may contain blanks. */
static Err merge_texts(const json_t *merge, size_t rank, const char *text[2], size_t n[2]) {
    if (json_is_string(merge)) {
        text[0] = json_string_value(merge);
        const char *blank = strchr(text[0], ' ');
        if (blank && !strchr(blank + 1, ' ')) {
            text[1] = blank + 1;
            n[0] = (size_t)(blank - text[0]);
            n[1] = json_string_length(merge) - n[0] - 1;
            return ERR_OK;
        }
    } else if (json_array_size(merge) == 2) {
        for (size_t side = 0; side < 2; side++) {
            const json_t *s = json_array_get(merge, side);
            text[side] = json_string_value(s);
            n[side] = json_string_length(s);
        }
        if (text[0] && text[1]) return ERR_OK;
    }
    return err_user("merge %zu must be two tokens, as \"left right\" or [\"left\", \"right\"]", rank);
}

static Err load_merges(Bpe *b, const json_t *model) {
    const json_t *merges;
    ERR_RETURN(field_array(model, "model", "merges", &merges));
    if (!merges) return err_user("model.merges is missing");
    size_t count = json_array_size(merges), slots = 16;
    while (slots < count * 2) slots *= 2;
    b->mask = slots - 1;
    b->merges = mem_alloc(slots * sizeof *b->merges);
    for (size_t i = 0; i < slots; i++) b->merges[i].id = NONE;
    b->by_rank = mem_zero(count + 1, sizeof *b->by_rank);
    Str joined = {0};
    Err e = ERR_OK;
    for (size_t rank = 0; rank < count && !e.code; rank++) {
        const char *text[2] = {NULL};
        size_t n[2] = {0};
        e = merge_texts(json_array_get(merges, rank), rank, text, n);
        if (e.code) break;
        str_clear(&joined);
        str_add(&joined, text[0], n[0]);
        str_add(&joined, text[1], n[1]);
        int32_t left = vocab_id(b->vocab, text[0], n[0]), right = vocab_id(b->vocab, text[1], n[1]);
        int32_t id = vocab_id(b->vocab, joined.s, joined.len);
        if (left < 0 || right < 0 || id < 0)
            e = err_user(
                "merge %zu makes '%.60s' from two tokens, but the vocabulary lacks at least one of the three",
                rank, joined.s);
        else
            *merge_slot(b, pair_of(left, right)) = (Merge){pair_of(left, right), (uint32_t)rank, id};
        b->by_rank[rank] = id;
    }
    str_free(&joined);
    return e;
}

static Err load_options(Bpe *b, const json_t *model) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (affix && !json_is_null(affix) && (!json_is_string(affix) || json_string_length(affix)))
            return err_user("model.%s is not supported: BPE must be byte-level or use byte_fallback",
                            affixes[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return err_user("model.dropout makes encoding random and is not supported; set it to null");
    ERR_RETURN(field_bool(model, "model", "fuse_unk", false, &b->fuse_unk));
    ERR_RETURN(field_bool(model, "model", "byte_fallback", false, &b->byte_fallback));
    ERR_RETURN(field_bool(model, "model", "ignore_merges", false, &b->ignore_merges));
    const json_t *unk = json_object_get(model, "unk_token");
    if (unk && !json_is_null(unk)) {
        const char *text;
        size_t n;
        ERR_RETURN(field_text(model, "model", "unk_token", &text, &n));
        b->unk = vocab_id(b->vocab, text, n);
        if (b->unk < 0) return err_user("model.unk_token '%.60s' is not in the vocabulary", text);
    }
    for (int c = 0; c < 256; c++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", c);
        b->bytes[c] = b->byte_fallback ? vocab_id(b->vocab, name, 6) : NONE;
    }
    return ERR_OK;
}

Err bpe_load(const json_t *model, Bpe **out) {
    Bpe *b = mem_zero(1, sizeof *b);
    b->vocab = vocab_new();
    b->unk = NONE;
    Err e = load_characters(b, model);
    if (!e.code) e = load_merges(b, model);
    if (!e.code) e = load_options(b, model);
    if (e.code)
        bpe_free(b);
    else
        *out = b;
    return e;
}

static void propose(const Bpe *b, BpeWork *w, int32_t left) {
    int32_t right = w->symbols[left].next;
    const Merge *m = merge_slot(b, pair_of(w->symbols[left].id, w->symbols[right].id));
    if (m->id != NONE) heap_push(&w->heap, (uint64_t)m->rank << 32 | (uint32_t)left);
}

static size_t add_symbol(BpeWork *w, size_t count, int32_t id, size_t n) {
    w->symbols[count] = (Symbol){id, (int32_t)count - 1, (int32_t)count + 1, (int32_t)n};
    return count + 1;
}

/* Makes one symbol per character. A character that is not a token is replaced by its byte tokens
 * (byte_fallback) or by unk, or is dropped if there is no unk. `pending` is the length in bytes of the last
 * unk, which subsequent unknown characters can extend. As in the `tokenizers` library, byte tokens do not cause
 * a pending unk to be added before them. */
static size_t split(const Bpe *b, BpeWork *w, const char *s, size_t n) {
    size_t count = 0, pending = 0;
    for (size_t i = 0, width; i < n; i += width) {
        uint32_t c;
        width = utf8_next(s + i, &c);
        int32_t id = c < DIRECT ? b->direct[c] : vocab_id(b->vocab, s + i, width);
        if (id != NONE) {
            if (pending) count = add_symbol(w, count, b->unk, pending);
            pending = 0;
            count = add_symbol(w, count, id, width);
            continue;
        }
        size_t known = 0;
        while (known < width && b->bytes[(unsigned char)s[i + known]] != NONE) known++;
        if (known == width) {
            for (size_t k = 0; k < width; k++)
                count = add_symbol(w, count, b->bytes[(unsigned char)s[i + k]], 1);
        } else if (b->unk != NONE) {
            if (pending && !b->fuse_unk) count = add_symbol(w, count, b->unk, pending), pending = 0;
            pending += width;
        }
    }
    return pending ? add_symbol(w, count, b->unk, pending) : count;
}

void bpe_encode(const Bpe *b, BpeWork *w, const char *piece, size_t n, Ids *out) {
    CHECK(n < INT32_MAX, "a pre-token of %zu bytes is too long", n);
    int32_t whole = b->ignore_merges ? vocab_id(b->vocab, piece, n) : NONE;
    if (whole != NONE) {
        ids_add(out, whole, 0, n);
        return;
    }
    if (n + 1 > w->symbol_cap)
        w->symbols = mem_grow(w->symbols, w->symbol_cap = 2 * n + 64, sizeof *w->symbols);
    size_t count = split(b, w, piece, n);
    Symbol *s = w->symbols;
    w->heap.n = 0;
    for (size_t i = 0; i + 1 < count; i++) propose(b, w, (int32_t)i);
    while (w->heap.n) {
        uint64_t top = heap_pop(&w->heap);
        int32_t left = (int32_t)(uint32_t)top, right = s[left].next, id = b->by_rank[top >> 32];
        if (s[left].id == NONE || (size_t)right >= count) continue;
        if (merge_slot(b, pair_of(s[left].id, s[right].id))->id != id)
            continue; /* the pair has changed since it was queued */
        s[left].id = id;
        s[left].next = s[right].next;
        s[left].n += s[right].n;
        s[right].id = NONE;
        if ((size_t)s[left].next < count) {
            s[s[left].next].prev = left;
            propose(b, w, left);
        }
        if (s[left].prev >= 0) propose(b, w, s[left].prev);
    }
    size_t at = 0; /* as in the `tokenizers` library, dropped characters do not count in spans */
    for (size_t i = 0; i < count; i++)
        if (s[i].id != NONE) ids_add(out, s[i].id, at, at + (size_t)s[i].n), at += (size_t)s[i].n;
}
