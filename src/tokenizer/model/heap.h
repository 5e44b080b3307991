/* A binary heap of numbers. heap_pop removes and returns the smallest number. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Heap { /* must be zero-initialized; the caller releases v with free() */
    uint64_t *v;
    size_t n, cap;
} Heap;

void heap_push(Heap *, uint64_t key);
uint64_t heap_pop(Heap *); /* requires n > 0 */
