/* Samples and batches: arrays of fields of fields.def. */
#pragma once

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

typedef enum FieldExtent {
#define EXTENT(NAME, ...) EXTENT_##NAME,
#include "data/extents.def"
#undef EXTENT
    EXTENT_SAMPLES,
    EXTENTS = EXTENT_SAMPLES
} FieldExtent;

/* The last column of fields.def. A length has the number of the extent that it counts. */
typedef enum FieldValue {
#define EXTENT(NAME, ...) VALUE_LENGTH_##NAME,
#include "data/extents.def"
#undef EXTENT
    VALUE_ID, /* the first of those that batch_draw draws */
    VALUE_LABEL,
    VALUE_TYPE,
    VALUE_CLASS,
    VALUE_INDEX, /* the first of those that a batch without padding or masks determines */
    VALUE_START,
    VALUE_WEIGHT
} FieldValue;

/* A row of fields.def. */
typedef struct FieldInfo {
    const char *name;
    size_t bytes; /* of a number */
    bool is_integer;
    FieldExtent extent;
    FieldValue value;
} FieldInfo;
const FieldInfo *field_info(FieldId);
bool extent_is_cut(FieldExtent); /* over context-parallel ranks */

/* A set of fields. */
typedef uint32_t FieldSet;
#define ALL_FIELDS      ((UINT32_C(1) << FIELDS) - 1)
#define FIELD_SET(name) (UINT32_C(1) << FIELD_##name)
/* The fields that a decoder reads. */
#define GPT_FIELDS                                                                                           \
    (FIELD_SET(tokens) | FIELD_SET(labels) | FIELD_SET(position_ids) | FIELD_SET(document_start) |           \
     FIELD_SET(loss_mask))
static inline bool fields_have(FieldSet fields, int field) { return fields >> field & 1; }

/* The fields of the set that a forward without losses reads. */
FieldSet fields_inputs(FieldSet);

/* The fields of a sample and their sizes. */
typedef struct SampleShape {
    union {
        struct {
#define EXTENT(NAME, member, ...) int64_t member;
#include "data/extents.def"
#undef EXTENT
        };
        int64_t extent[EXTENTS];
    };
    FieldSet fields;
    int64_t width[FIELDS]; /* numbers in an element; 0: 1 */
} SampleShape;
/* The numbers that a sample has in a field. */
int64_t shape_columns(const SampleShape *, FieldId);
/* The shape of each of `ranks` context-parallel ranks. */
SampleShape shape_slice(SampleShape, int ranks);

/* One sample: rows of the fields, the caller's; NULL: not in the set. */
typedef struct Sample {
    union {
        struct {
#define FIELD(name, type, ...) type *name;
#include "data/fields.def"
#undef FIELD
        };
        void *field[FIELDS];
    };
} Sample;

/* b samples. */
typedef struct Batch {
    int64_t b;
    SampleShape shape;
    union {
        struct {
#define FIELD(name, type, ...) type *name;
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
/* Sets the values of a batch without padding or masks; ids are 0. */
void batch_reset(const Batch *);
/* The same with random ids below `vocab`, labels, types and classes. They depend only on key, number and shape. */
void batch_draw(const Batch *, uint64_t key, uint64_t number, int64_t vocab);
/* Copies sample k of `from` to row i of a batch of the same shape; `from` may have more fields. */
void batch_copy(const Batch *, int64_t i, const Batch *from, int64_t k);
/* The index of the first number of an integer field that is outside [low, end); -1: there is none. */
int64_t batch_outside(const Batch *, FieldId, int64_t low, int64_t end);
/* The dimensions of a field, [b] or [b, extent] or, if elements are wide, [b, extent, width]. Returns their number. */
int batch_dims(const Batch *, FieldId, int64_t dim[3]);
/* Samples [first, first + n), in the same memory. */
Batch batch_rows(const Batch *, int64_t first, int64_t n);
Sample batch_sample(const Batch *, int64_t i);
/* The columns of context-parallel rank `rank` of `ranks` (base/zigzag.h; one rank has all), in the arena's
 * memory: do not free. Extents that are cut are multiples of 2 * ranks. A rank has all of the others. */
Batch batch_slice(const Batch *, int ranks, int rank, Arena *);
