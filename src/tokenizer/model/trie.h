/* Maps byte strings to numbers. A byte-by-byte search finds all keys that are prefixes of a text. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Trie Trie;

enum { TRIE_ROOT = 0, TRIE_NONE = -1 };

Trie *trie_new(void);
void trie_free(Trie *); /* NULL is fine */
/* Adds a key with a value >= 0, or replaces the value of an existing key. */
void trie_add(Trie *, const char *key, size_t n, int32_t value);
/* Returns the child of a node for the next byte, or TRIE_NONE if no key continues with this byte. */
int32_t trie_child(const Trie *, int32_t node, char byte);
/* Returns the value of the key that ends at the node, or TRIE_NONE if no key ends there. */
int32_t trie_value(const Trie *, int32_t node);
