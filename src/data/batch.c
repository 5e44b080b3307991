#include "data/batch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/philox.h"
#include "base/zigzag.h"

#define FIELD(name, type, ...)                                                                               \
    _Static_assert(_Generic((type)0, int64_t : 1, float : 1, default : 0), #name ": int64_t or float");
#include "data/fields.def"
#undef FIELD

_Static_assert(FIELDS <= 8 * sizeof(FieldSet), "a field has no bit in a FieldSet");

const FieldInfo *field_info(FieldId field) {
    static const FieldInfo INFO[FIELDS] = {
#define FIELD(name, type, extent, value)                                                                     \
    {#name, sizeof(type), _Generic((type)0, int64_t : true, default : false), EXTENT_##extent, VALUE_##value},
#include "data/fields.def"
#undef FIELD
    };
    return &INFO[field];
}

bool extent_is_cut(FieldExtent extent) {
    enum { WHOLE, CUT };
    static const bool IS_CUT[] = {
#define EXTENT(NAME, member, cut) cut,
#include "data/extents.def"
#undef EXTENT
        [EXTENT_SAMPLES] = WHOLE};
    return IS_CUT[extent];
}

FieldSet fields_inputs(FieldSet fields) {
    for (int f = 0; f < FIELDS; f++) {
        const FieldValue value = field_info((FieldId)f)->value;
        if (value == VALUE_LABEL || value == VALUE_CLASS || value >= VALUE_WEIGHT)
            fields &= ~(UINT32_C(1) << f);
    }
    return fields;
}

static int64_t width_of(const SampleShape *s, FieldId field) { return s->width[field] ? s->width[field] : 1; }

static int64_t extent_of(const SampleShape *s, FieldExtent extent) {
    return extent == EXTENT_SAMPLES ? 1 : s->extent[extent];
}

int64_t shape_columns(const SampleShape *s, FieldId field) {
    return extent_of(s, field_info(field)->extent) * width_of(s, field);
}

SampleShape shape_slice(SampleShape s, int ranks) {
    for (int e = 0; e < EXTENTS; e++)
        if (extent_is_cut((FieldExtent)e)) s.extent[e] /= ranks;
    return s;
}

int64_t batch_width(const Batch *b, FieldId field) { return width_of(&b->shape, field); }

int batch_dims(const Batch *b, FieldId field, int64_t dim[3]) {
    const FieldExtent extent = field_info(field)->extent;
    int n = 0;
    dim[n++] = b->b;
    if (extent != EXTENT_SAMPLES) dim[n++] = b->shape.extent[extent];
    if (width_of(&b->shape, field) > 1) dim[n++] = b->shape.width[field];
    return n;
}

static size_t field_size(const Batch *b, FieldId f) {
    return (size_t)(b->b * shape_columns(&b->shape, f)) * field_info(f)->bytes;
}

Batch batch_new(int64_t b, SampleShape shape) {
    CHECK(b >= 1 && shape.positions >= 1 && shape.encoder >= 0, "a batch of %" PRId64 " x %" PRId64, b,
          shape.positions);
    Batch x = {.b = b, .shape = shape};
    x.indices = mem_zero((size_t)b, sizeof *x.indices);
    for (int f = 0; f < FIELDS; f++)
        if (fields_have(shape.fields, f)) x.field[f] = mem_zero(field_size(&x, (FieldId)f), 1);
    return x;
}

void batch_reset(const Batch *b) {
    for (int f = 0; f < FIELDS; f++) {
        const FieldValue value = field_info((FieldId)f)->value;
        const int64_t columns = shape_columns(&b->shape, (FieldId)f), width = width_of(&b->shape, (FieldId)f);
        for (int64_t i = 0; b->field[f] && i < b->b * columns; i++)
            if (!field_info((FieldId)f)->is_integer)
                ((float *)b->field[f])[i] = value == VALUE_WEIGHT;
            else
                ((int64_t *)b->field[f])[i] = value == VALUE_INDEX   ? i % columns / width
                                              : (int)value < EXTENTS ? b->shape.extent[value]
                                                                     : 0;
    }
}

void batch_look_ahead(const Batch *b) {
    const int64_t s = b->shape.positions, n = width_of(&b->shape, FIELD_tokens_ahead);
    for (int64_t i = 0; b->tokens_ahead && i < b->b * s * n; i++) {
        const int64_t at = i / n, ahead = at + i % n + 1;
        const bool inside = ahead / s == at / s && !(b->document_start && b->document_start[ahead] > at % s);
        b->tokens_ahead[i] = inside ? b->tokens[ahead] : 0;
        b->labels_ahead[i] = inside ? b->labels[ahead] : 0;
        b->loss_mask_ahead[i] = inside ? b->loss_mask[ahead] : 0;
    }
}

/* Returns the value that batch_draw stores at index i of a field. The value belongs to sample i / columns. */
static int64_t drawn(FieldValue value, const Philox4 *p, int64_t i, int64_t columns, int64_t vocab) {
    return value == VALUE_ID      ? p->v[0] % vocab
           : value == VALUE_LABEL ? p->v[1] % vocab
           : value == VALUE_TYPE  ? i % columns >= columns / 2
                                  : i % 2;
}

void batch_draw(const Batch *b, uint64_t key, uint64_t number, int64_t vocab) {
    batch_reset(b);
    for (int f = 0; f < FIELDS; f++) {
        const FieldValue value = field_info((FieldId)f)->value;
        const int64_t columns = shape_columns(&b->shape, (FieldId)f);
        const bool draws = b->field[f] && value >= VALUE_ID && value < VALUE_INDEX;
        for (int64_t i = 0; draws && i < b->b * columns; i++) {
            const Philox4 p = philox4x32(key, number, (uint64_t)i);
            ((int64_t *)b->field[f])[i] = drawn(value, &p, i, columns, vocab);
        }
    }
    batch_look_ahead(b);
}

void batch_free(Batch *x) {
    for (int f = 0; f < FIELDS; f++) free(x->field[f]);
    free(x->indices);
    *x = (Batch){0};
}

static void *row(const Batch *b, int field, int64_t i) {
    if (!fields_have(b->shape.fields, field)) return NULL;
    const FieldId f = (FieldId)field;
    return (char *)b->field[f] + (size_t)(i * shape_columns(&b->shape, f)) * field_info(f)->bytes;
}

void batch_copy(const Batch *b, int64_t i, const Batch *from, int64_t k) {
    for (int f = 0; f < FIELDS; f++)
        if (fields_have(b->shape.fields & ~AHEAD_FIELDS, f))
            memcpy(row(b, f, i), row(from, f, k),
                   (size_t)shape_columns(&b->shape, (FieldId)f) * field_info((FieldId)f)->bytes);
}

int64_t batch_outside(const Batch *b, FieldId field, int64_t low, int64_t end) {
    const int64_t n = b->b * shape_columns(&b->shape, field), *x = b->field[field];
    for (int64_t i = 0; i < n; i++)
        if (x[i] < low || x[i] >= end) return i;
    return -1;
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

/* Copies the columns of sample i that belong to the slice. */
static void slice_row(const Batch *from, const SequenceSlice *slice, FieldId field, int64_t i,
                      const Batch *to) {
    const int64_t elements = extent_of(&to->shape, field_info(field)->extent);
    const size_t size = field_info(field)->bytes * (size_t)width_of(&to->shape, field);
    for (int64_t j = 0, run; j < elements; j += run) {
        run = slice_run(slice, j, elements - j);
        memcpy((char *)row(to, field, i) + (size_t)j * size,
               (const char *)row(from, field, i) + (size_t)slice_position(slice, j) * size,
               (size_t)run * size);
    }
}

Batch batch_slice(const Batch *b, int ranks, int rank, Arena *arena) {
    Batch x = {.b = b->b, .shape = shape_slice(b->shape, ranks)};
    const size_t indices = (size_t)x.b * sizeof *x.indices;
    x.indices = memcpy(arena_alloc(arena, indices), b->indices, indices);
    for (int f = 0; f < FIELDS; f++) {
        const FieldId field = (FieldId)f;
        const FieldExtent extent = field_info(field)->extent;
        const bool cut = extent_is_cut(extent);
        const SequenceSlice slice =
            slice_zigzag(extent_of(&b->shape, extent), cut ? ranks : 1, cut ? rank : 0);
        if (!fields_have(x.shape.fields, f)) continue;
        x.field[f] = arena_alloc(arena, field_size(&x, field));
        for (int64_t i = 0; i < x.b; i++) slice_row(b, &slice, field, i, &x);
    }
    return x;
}
