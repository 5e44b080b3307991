/* A binary heap of numbers; heap_pop returns the least. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Heap { /* initially zero; release v with free() */
    uint64_t *v;
    size_t n, cap;
} Heap;

void heap_push(Heap *, uint64_t key);
uint64_t heap_pop(Heap *); /* n > 0 */
