#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/fault.h"

static void *checked(void *p, size_t bytes) {
    CHECK(p || !bytes, "out of host memory: %s were requested", bytes_text((double)bytes).s);
    return p;
}

void *mem_alloc(size_t bytes) { return checked(malloc(bytes ? bytes : 1), bytes); }

void *mem_zero(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size ? size : 1);
    CHECK(p, "out of host memory: %s were requested", bytes_text((double)count * (double)size).s);
    return p;
}

void *mem_grow(void *old, size_t count, size_t size) {
    CHECK(!size || count <= SIZE_MAX / size, "size overflow: %zu x %zu bytes", count, size);
    size_t bytes = count * size;
    return checked(realloc(old, bytes ? bytes : 1), bytes);
}

void *mem_aligned(size_t bytes) { return checked(aligned_alloc(64, (bytes + 64) / 64 * 64), bytes); }

void *mem_copy(const void *from, size_t bytes) {
    void *to = mem_alloc(bytes + 1);
    if (bytes) memcpy(to, from, bytes);
    return to;
}

char *mem_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(mem_alloc(n), s, n);
}

static char *format(Arena *a, const char *fmt, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    CHECK(n >= 0, "bad format string '%s'", fmt);
    char *s = a ? arena_alloc(a, (size_t)n + 1) : mem_alloc((size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

char *mem_printf(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char *s = format(NULL, fmt, args);
    va_end(args);
    return s;
}

typedef struct Chunk {
    struct Chunk *next;
    size_t cap, used;
    _Alignas(16) unsigned char bytes[];
} Chunk;

struct Arena {
    Chunk *first, *now;
};

enum { CHUNK = 64 * 1024 };

static Chunk *chunk_new(size_t bytes) {
    size_t cap = bytes > CHUNK ? bytes : CHUNK;
    Chunk *c = mem_alloc(sizeof(Chunk) + cap);
    *c = (Chunk){.cap = cap};
    return c;
}

Arena *arena_new(void) {
    Arena *a = mem_zero(1, sizeof *a);
    a->first = a->now = chunk_new(0);
    return a;
}

void arena_free(Arena *a) {
    if (!a) return;
    for (Chunk *c = a->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

void arena_reset(Arena *a) {
    for (Chunk *c = a->first; c; c = c->next) c->used = 0;
    a->now = a->first;
}

void *arena_alloc(Arena *a, size_t bytes) {
    CHECK(bytes < SIZE_MAX / 2, "size overflow: %zu bytes", bytes);
    bytes = (bytes + 15) / 16 * 16;
    while (a->now->cap - a->now->used < bytes) {
        Chunk *next = a->now->next;
        if (!next || next->cap < bytes) {
            next = chunk_new(bytes);
            next->next = a->now->next;
            a->now->next = next;
        }
        a->now = next;
    }
    void *p = a->now->bytes + a->now->used;
    a->now->used += bytes;
    return memset(p, 0, bytes);
}

char *arena_printf(Arena *a, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char *s = format(a, fmt, args);
    va_end(args);
    return s;
}
