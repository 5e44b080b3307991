/* A map from byte strings to numbers that is searched byte by byte, which finds all keys at the beginning of a text. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Trie Trie;

enum { TRIE_ROOT = 0, TRIE_NONE = -1 };

Trie *trie_new(void);
void trie_free(Trie *); /* NULL is fine */
/* value >= 0; replaces the value of a key that exists already. */
void trie_add(Trie *, const char *key, size_t n, int32_t value);
/* The node after one more byte, TRIE_NONE if no key continues so. */
int32_t trie_child(const Trie *, int32_t node, char byte);
/* The value of the key that ends at the node, TRIE_NONE if none does. */
int32_t trie_value(const Trie *, int32_t node);
