#include "tokenizer/model/heap.h"

#include "base/mem.h"

void heap_push(Heap *h, uint64_t key) {
    if (h->n == h->cap) h->v = mem_grow(h->v, h->cap = h->cap * 2 + 64, sizeof *h->v);
    size_t i = h->n++;
    for (; i && h->v[(i - 1) / 2] > key; i = (i - 1) / 2) h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = key;
}

uint64_t heap_pop(Heap *h) {
    uint64_t top = h->v[0], last = h->v[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->v[child + 1] < h->v[child]) child++;
        if (h->v[child] >= last) break;
        h->v[i] = h->v[child];
    }
    h->v[i] = last;
    return top;
}
