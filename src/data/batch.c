#include "data/batch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/philox.h"
#include "base/zigzag.h"

#define FIELD(name, type, extent)                                                                            \
    _Static_assert(_Generic((type)0, int64_t : 1, float : 1, default : 0), #name ": int64_t or float");
#include "data/fields.def"
#undef FIELD

_Static_assert(FIELDS <= 8 * sizeof(FieldSet), "a field has no bit in a FieldSet");

size_t field_bytes(FieldId field) {
    static const size_t BYTES[FIELDS] = {
#define FIELD(name, type, extent) sizeof(type),
#include "data/fields.def"
#undef FIELD
    };
    return BYTES[field];
}

bool field_is_integer(FieldId field) {
    static const bool INTEGER[FIELDS] = {
#define FIELD(name, type, extent) _Generic((type)0, int64_t : true, default : false),
#include "data/fields.def"
#undef FIELD
    };
    return INTEGER[field];
}

FieldExtent field_extent(FieldId field) {
    static const FieldExtent EXTENT[FIELDS] = {
#define FIELD(name, type, extent) EXTENT_##extent,
#include "data/fields.def"
#undef FIELD
    };
    return EXTENT[field];
}

int64_t batch_columns(const Batch *b, FieldId field) {
    switch (field_extent(field)) {
    case EXTENT_POSITIONS:
        return b->s;
    case EXTENT_ENCODER:
        return b->encoder_s;
    default:
        return 1;
    }
}

Batch batch_new(int64_t b, SampleShape shape) {
    CHECK(b >= 1 && shape.positions >= 1 && shape.encoder >= 0, "a batch of %" PRId64 " x %" PRId64, b,
          shape.positions);
    Batch x = {.b = b, .s = shape.positions, .encoder_s = shape.encoder, .fields = shape.fields};
    x.indices = mem_zero((size_t)b, sizeof *x.indices);
    for (int f = 0; f < FIELDS; f++)
        if (fields_have(x.fields, f))
            x.field[f] = mem_zero((size_t)(b * batch_columns(&x, (FieldId)f)), field_bytes((FieldId)f));
    return x;
}

/* Element i of a field, of sample i / columns. */
static int64_t drawn(FieldId field, const Philox4 *p, int64_t i, int64_t columns, int64_t vocab) {
    switch (field) {
    case FIELD_tokens:
    case FIELD_encoder_tokens:
        return p->v[0] % vocab;
    case FIELD_labels:
        return p->v[1] % vocab;
    case FIELD_position_ids:
    case FIELD_encoder_position_ids:
        return i % columns;
    case FIELD_token_types:
        return i % columns >= columns / 2;
    case FIELD_sentence_labels:
        return i % 2;
    default:
        return 0;
    }
}

void batch_draw(const Batch *b, uint64_t key, uint64_t number, int64_t vocab) {
    for (int f = 0; f < FIELDS; f++) {
        const int64_t columns = batch_columns(b, (FieldId)f);
        for (int64_t i = 0; b->field[f] && i < b->b * columns; i++) {
            const Philox4 p = philox4x32(key, number, (uint64_t)i);
            if (field_is_integer((FieldId)f))
                ((int64_t *)b->field[f])[i] = drawn((FieldId)f, &p, i, columns, vocab);
            else
                ((float *)b->field[f])[i] = 1;
        }
    }
    for (int64_t i = 0; i < b->b; i++) {
        if (b->lengths) b->lengths[i] = b->s;
        if (b->encoder_lengths) b->encoder_lengths[i] = b->encoder_s;
    }
}

void batch_free(Batch *x) {
    for (int f = 0; f < FIELDS; f++) free(x->field[f]);
    free(x->indices);
    *x = (Batch){0};
}

static void *row(const Batch *b, int field, int64_t i) {
    if (!fields_have(b->fields, field)) return NULL;
    const FieldId f = (FieldId)field;
    return (char *)b->field[f] + (size_t)(i * batch_columns(b, f)) * field_bytes(f);
}

Batch batch_rows(const Batch *b, int64_t first, int64_t n) {
    Batch rows = *b;
    rows.b = n, rows.indices = b->indices + first;
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
    const size_t size = field_bytes((FieldId)field);
    const int64_t columns = batch_columns(to, (FieldId)field);
    for (int64_t j = 0, run; j < columns; j += run) {
        run = slice_run(slice, j, columns - j);
        memcpy((char *)row(to, field, i) + (size_t)j * size,
               (const char *)row(from, field, i) + (size_t)slice_position(slice, j) * size,
               (size_t)run * size);
    }
}

Batch batch_slice(const Batch *b, int ranks, int rank, Arena *arena) {
    const SequenceSlice slices[] = {[EXTENT_POSITIONS] = slice_zigzag(b->s, ranks, rank),
                                    [EXTENT_ENCODER] = slice_zigzag(b->encoder_s, ranks, rank),
                                    [EXTENT_SAMPLES] = slice_zigzag(1, 1, 0)};
    Batch x = {.b = b->b, .s = b->s / ranks, .encoder_s = b->encoder_s / ranks, .fields = b->fields};
    const size_t indices = (size_t)x.b * sizeof *x.indices;
    x.indices = memcpy(arena_alloc(arena, indices), b->indices, indices);
    for (int f = 0; f < FIELDS; f++) {
        const FieldId field = (FieldId)f;
        if (!fields_have(x.fields, f)) continue;
        x.field[f] = arena_alloc(arena, (size_t)(x.b * batch_columns(&x, field)) * field_bytes(field));
        for (int64_t i = 0; i < x.b; i++) slice_row(b, &slices[field_extent(field)], f, i, &x);
    }
    return x;
}
