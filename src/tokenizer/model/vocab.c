/* The hash table uses open addressing, and hashes texts with XXH3. All texts are in one buffer. */
#include "tokenizer/model/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "tokenizer/text/field.h"

typedef struct Entry {
    size_t at;
    uint32_t n;
    int32_t id;
} Entry;

struct Vocab {
    Str bytes;
    Entry *entries;
    size_t count, cap;
    uint32_t *slots; /* entry + 1; 0 if the slot is free */
    size_t mask;     /* number of slots - 1; the number of slots is a power of two >= 2 * count */
    uint32_t *by_id; /* entry + 1, or 0 if the id has no token */
    size_t limit, by_id_cap;
};

Vocab *vocab_new(void) {
    Vocab *v = mem_zero(1, sizeof *v);
    v->mask = 1023;
    v->slots = mem_zero(v->mask + 1, sizeof *v->slots);
    return v;
}

void vocab_free(Vocab *v) {
    if (!v) return;
    str_free(&v->bytes);
    free(v->entries), free(v->slots), free(v->by_id), free(v);
}

/* Returns the slot of the text, or the free slot where the text would be inserted. */
static size_t find(const Vocab *v, const char *text, size_t n) {
    size_t slot = hash64(text, n, 0) & v->mask;
    for (; v->slots[slot]; slot = (slot + 1) & v->mask) {
        const Entry *e = &v->entries[v->slots[slot] - 1];
        if (e->n == n && !memcmp(v->bytes.s + e->at, text, n)) break;
    }
    return slot;
}

static void rehash(Vocab *v) {
    v->mask = v->mask * 2 + 1;
    free(v->slots);
    v->slots = mem_zero(v->mask + 1, sizeof *v->slots);
    for (size_t i = 0; i < v->count; i++) {
        const Entry *e = &v->entries[i];
        v->slots[find(v, v->bytes.s + e->at, e->n)] = (uint32_t)i + 1;
    }
}

Err vocab_add(Vocab *v, const char *text, size_t n, int64_t id) {
    if (id < 0 || id >= VOCAB_ID_LIMIT)
        return err_user("token '%.60s' has id %lld; ids must be in [0, %d)", text, (long long)id,
                        VOCAB_ID_LIMIT);
    if (n > UINT32_MAX) return err_user("a token of %zu bytes is too long", n);
    if ((size_t)id < v->limit && v->by_id[id])
        return err_user("token '%.60s' has id %lld, which belongs to another token", text, (long long)id);
    size_t slot = find(v, text, n);
    if (v->slots[slot]) return err_user("token '%.60s' appears twice", text);
    if (v->count == v->cap) v->entries = mem_grow(v->entries, v->cap = v->cap * 2 + 64, sizeof *v->entries);
    if ((size_t)id >= v->by_id_cap) {
        size_t cap = (size_t)id + (size_t)id / 2 + 64;
        v->by_id = mem_grow(v->by_id, cap, sizeof *v->by_id);
        memset(v->by_id + v->by_id_cap, 0, (cap - v->by_id_cap) * sizeof *v->by_id);
        v->by_id_cap = cap;
    }
    v->entries[v->count++] = (Entry){v->bytes.len, (uint32_t)n, (int32_t)id};
    str_add(&v->bytes, text, n);
    v->slots[slot] = v->by_id[id] = (uint32_t)v->count;
    if ((size_t)id >= v->limit) v->limit = (size_t)id + 1;
    if (v->count * 2 > v->mask) rehash(v);
    return ERR_OK;
}

int32_t vocab_id(const Vocab *v, const char *text, size_t n) {
    uint32_t entry = v->slots[find(v, text, n)];
    return entry ? v->entries[entry - 1].id : -1;
}

const char *vocab_text(const Vocab *v, int32_t id, size_t *n) {
    if (id < 0 || (size_t)id >= v->limit || !v->by_id[id]) return NULL;
    const Entry *e = &v->entries[v->by_id[id] - 1];
    *n = e->n;
    return v->bytes.s + e->at;
}

size_t vocab_count(const Vocab *v) { return v->count; }
int32_t vocab_limit(const Vocab *v) { return (int32_t)v->limit; }

Err vocab_load(Vocab *v, const json_t *model) {
    const json_t *vocab;
    ERR_RETURN(field_object(model, "model", "vocab", &vocab));
    if (!vocab) return err_user("model.vocab is missing");
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)vocab, text, id) {
        if (!json_is_integer(id))
            return err_user("model.vocab: the id of token '%.60s' must be an integer", text);
        ERR_RETURN(vocab_add(v, text, strlen(text), json_integer_value(id)));
    }
    return ERR_OK;
}
