#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "comm/transport.h"

int comm_members(const CommKey *key) { return key->src >= 0 ? 2 : key->group.size; }

int comm_member(const CommKey *key, int i) {
    return mesh_member(&key->group, key->src < 0 ? i : i == 0 ? key->src : key->dst);
}

static CommEntry *probe(const CommTable *t, const CommKey *key) {
    size_t i = hash64(key, sizeof *key, 0);
    for (;; i++) {
        CommEntry *e = &t->entry[i & (t->capacity - 1)];
        if (!e->value || !memcmp(&e->key, key, sizeof *key)) return e;
    }
}

/* Enlarges the table. At most half of the entries are used, so that every probe sequence is short and ends. */
static void grow(CommTable *t) {
    CommTable larger = {.count = t->count, .capacity = t->capacity ? 2 * t->capacity : 16};
    larger.entry = mem_zero(larger.capacity, sizeof *larger.entry);
    for (size_t i = 0; i < t->capacity; i++)
        if (t->entry[i].value) *probe(&larger, &t->entry[i].key) = t->entry[i];
    free(t->entry);
    *t = larger;
}

void **comm_lookup(CommTable *t, const CommKey *key) {
    if (2 * t->count >= t->capacity) grow(t);
    CommEntry *e = probe(t, key);
    if (!e->value) {
        e->key = *key;
        t->count++;
    }
    return &e->value;
}
