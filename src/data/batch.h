/* Samples and batches: arrays of fields of fields.def. */
#ifndef ISOTRON_DATA_BATCH_H
#define ISOTRON_DATA_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

typedef enum FieldId {
#define FIELD(name, ...) FIELD_##name,
#include "data/fields.def"
#undef FIELD
    FIELDS
} FieldId;

typedef enum FieldExtent { EXTENT_POSITIONS, EXTENT_ENCODER, EXTENT_SAMPLES } FieldExtent;

size_t field_bytes(FieldId); /* of an element */
bool field_is_integer(FieldId);
FieldExtent field_extent(FieldId);

/* A set of fields. */
typedef uint32_t FieldSet;
#define FIELD_SET(name) (UINT32_C(1) << FIELD_##name)
/* The fields that a decoder reads. */
#define GPT_FIELDS                                                                                           \
    (FIELD_SET(tokens) | FIELD_SET(labels) | FIELD_SET(position_ids) | FIELD_SET(document_start) |           \
     FIELD_SET(loss_mask))
static inline bool fields_have(FieldSet fields, int field) { return fields >> field & 1; }

/* The fields of a sample and their sizes. */
typedef struct SampleShape {
    int64_t positions, encoder; /* numbers of positions; encoder 0: none */
    FieldSet fields;
} SampleShape;

/* One sample: rows of the fields, the caller's; NULL: not in the set. */
typedef struct Sample {
    union {
        struct {
#define FIELD(name, type, extent) type *name;
#include "data/fields.def"
#undef FIELD
        };
        void *field[FIELDS];
    };
} Sample;

/* b samples. */
typedef struct Batch {
    int64_t b, s, encoder_s;
    FieldSet fields;
    union {
        struct {
#define FIELD(name, type, extent) type *name;
#include "data/fields.def"
#undef FIELD
        };
        void *field[FIELDS];
    };
    int64_t *indices; /* [b], the numbers of the samples */
} Batch;

/* All elements are 0. */
Batch batch_new(int64_t b, SampleShape);
void batch_free(Batch *);
/* Drawn ids below `vocab`, without padding or masks. The values depend on the keys and the batch's sizes only. */
void batch_draw(const Batch *, uint64_t key, uint64_t number, int64_t vocab);
/* The elements that a sample has in a field of this batch. */
int64_t batch_columns(const Batch *, FieldId);
/* Samples [first, first + n), in the same memory. */
Batch batch_rows(const Batch *, int64_t first, int64_t n);
Sample batch_sample(const Batch *, int64_t i);
/* The columns of context-parallel rank `rank` of `ranks` (base/zigzag.h; one rank has all), in the arena's
 * memory: do not free. Every number of positions is a multiple of 2 * ranks. A rank has all of a field without
 * positions. */
Batch batch_slice(const Batch *, int ranks, int rank, Arena *);

#endif
