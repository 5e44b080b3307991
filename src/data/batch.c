#include "data/batch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/zigzag.h"

#define FIELD(name, type)                                                                                    \
    _Static_assert(_Generic((type)0, int64_t : 1, float : 1, default : 0), #name ": int64_t or float");
#include "data/fields.def"
#undef FIELD

size_t field_bytes(FieldId field) {
    static const size_t BYTES[FIELDS] = {
#define FIELD(name, type) sizeof(type),
#include "data/fields.def"
#undef FIELD
    };
    return BYTES[field];
}

bool field_is_integer(FieldId field) {
    static const bool INTEGER[FIELDS] = {
#define FIELD(name, type) _Generic((type)0, int64_t : true, default : false),
#include "data/fields.def"
#undef FIELD
    };
    return INTEGER[field];
}

Batch batch_new(int64_t b, int64_t s) {
    CHECK(b >= 1 && s >= 1, "a batch of %" PRId64 " x %" PRId64, b, s);
    Batch x = {.b = b, .s = s, .indices = mem_zero((size_t)b, sizeof *x.indices)};
    for (int f = 0; f < FIELDS; f++) x.field[f] = mem_zero((size_t)b * (size_t)s, field_bytes(f));
    return x;
}

void batch_free(Batch *x) {
    for (int f = 0; f < FIELDS; f++) free(x->field[f]);
    free(x->indices);
    *x = (Batch){0};
}

static void *row(const Batch *b, int field, int64_t i) {
    return (char *)b->field[field] + (size_t)(i * b->s) * field_bytes(field);
}

Batch batch_rows(const Batch *b, int64_t first, int64_t n) {
    Batch rows = {.b = n, .s = b->s, .indices = b->indices + first};
    for (int f = 0; f < FIELDS; f++) rows.field[f] = row(b, f, first);
    return rows;
}

Sample batch_sample(const Batch *b, int64_t i) {
    Sample sample;
    for (int f = 0; f < FIELDS; f++) sample.field[f] = row(b, f, i);
    return sample;
}

/* Copies this rank's columns of sample i. */
static void slice_row(const Batch *from, const SequenceSlice *slice, int field, int64_t i, const Batch *to) {
    const size_t size = field_bytes(field);
    for (int64_t j = 0, run; j < to->s; j += run) {
        run = slice_run(slice, j, to->s - j);
        memcpy((char *)row(to, field, i) + (size_t)j * size,
               (const char *)row(from, field, i) + (size_t)slice_position(slice, j) * size,
               (size_t)run * size);
    }
}

Batch batch_slice(const Batch *b, int ranks, int rank, Arena *arena) {
    const SequenceSlice slice = slice_zigzag(b->s, ranks, rank);
    Batch x = {.b = b->b, .s = b->s / ranks};
    const size_t indices = (size_t)x.b * sizeof *x.indices;
    x.indices = memcpy(arena_alloc(arena, indices), b->indices, indices);
    for (int f = 0; f < FIELDS; f++) {
        x.field[f] = arena_alloc(arena, (size_t)(x.b * x.s) * field_bytes(f));
        for (int64_t i = 0; i < x.b; i++) slice_row(b, &slice, f, i, &x);
    }
    return x;
}
