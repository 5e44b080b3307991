/* All nodes share one hash table, which maps a node and a byte to the child node. */
#include "tokenizer/model/trie.h"

#include <stdlib.h>

#include "base/mem.h"

typedef struct Edge {
    uint64_t key;  /* (node << 8 | byte) + 1; 0 if the slot is free */
    int32_t child; /* the child node, which is never the root */
} Edge;

struct Trie {
    Edge *edges;
    size_t mask; /* number of slots - 1; the number of slots is a power of two >= 2 * nodes */
    int32_t *values;
    size_t nodes, cap;
};

static int32_t new_node(Trie *t) {
    if (t->nodes == t->cap) t->values = mem_grow(t->values, t->cap = t->cap * 2 + 1024, sizeof *t->values);
    t->values[t->nodes] = TRIE_NONE;
    return (int32_t)t->nodes++;
}

Trie *trie_new(void) {
    Trie *t = mem_zero(1, sizeof *t);
    t->mask = 2047;
    t->edges = mem_zero(t->mask + 1, sizeof *t->edges);
    new_node(t);
    return t;
}

void trie_free(Trie *t) {
    if (!t) return;
    free(t->edges), free(t->values), free(t);
}

static uint64_t key_of(int32_t node, char byte) {
    return ((uint64_t)(uint32_t)node << 8 | (unsigned char)byte) + 1;
}

static Edge *find(const Trie *t, uint64_t key) {
    size_t slot = (key * 0x9E3779B97F4A7C15u) >> 24 & t->mask;
    while (t->edges[slot].key && t->edges[slot].key != key) slot = (slot + 1) & t->mask;
    return &t->edges[slot];
}

static void rehash(Trie *t) {
    Edge *old = t->edges;
    size_t slots = t->mask + 1;
    t->mask = t->mask * 2 + 1;
    t->edges = mem_zero(t->mask + 1, sizeof *t->edges);
    for (size_t i = 0; i < slots; i++)
        if (old[i].key) *find(t, old[i].key) = old[i];
    free(old);
}

void trie_add(Trie *t, const char *key, size_t n, int32_t value) {
    int32_t node = TRIE_ROOT;
    for (size_t i = 0; i < n; i++) {
        Edge *edge = find(t, key_of(node, key[i]));
        if (edge->key) {
            node = edge->child;
            continue;
        }
        *edge = (Edge){key_of(node, key[i]), new_node(t)};
        node = edge->child;
        if (t->nodes * 2 > t->mask) rehash(t);
    }
    t->values[node] = value;
}

int32_t trie_child(const Trie *t, int32_t node, char byte) {
    const Edge *edge = find(t, key_of(node, byte));
    return edge->key ? edge->child : TRIE_NONE;
}

int32_t trie_value(const Trie *t, int32_t node) { return t->values[node]; }
