/* Host memory. Running out of memory is a fault, so no function returns NULL. Release the memory with
 * free(). */
#pragma once

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes);                        /* uninitialized */
void *mem_zero(size_t count, size_t size);            /* zeroed; checks count * size for overflow */
void *mem_grow(void *old, size_t count, size_t size); /* like realloc; checks count * size for overflow */
void *mem_aligned(size_t bytes);                      /* 64-byte aligned, uninitialized */
void *mem_copy(const void *from, size_t bytes);       /* copies the bytes; `bytes` may be 0 */
char *mem_strdup(const char *s);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A bump arena. Allocations that have the same lifetime (a run, a step, a request) are released together. */
typedef struct Arena Arena;
Arena *arena_new(void);
void arena_free(Arena *);
void arena_reset(Arena *);                /* discards all allocations, but keeps the memory for reuse */
void *arena_alloc(Arena *, size_t bytes); /* zeroed, 16-byte aligned, valid until reset or free */
char *arena_printf(Arena *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
