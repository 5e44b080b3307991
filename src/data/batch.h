/* Samples and batches of samples. The structs Sample and Batch have one array for each field in
 * fields.def. */
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

/* The value kinds in the last column of fields.def. VALUE_LENGTH_x equals EXTENT_x. */
typedef enum FieldValue {
#define EXTENT(NAME, ...) VALUE_LENGTH_##NAME,
#include "data/extents.def"
#undef EXTENT
    VALUE_ID, /* batch_draw fills fields of this kind and of the next three kinds */
    VALUE_LABEL,
    VALUE_TYPE,
    VALUE_CLASS,
    VALUE_INDEX, /* batch_draw does not draw values of this kind and of the next three kinds */
    VALUE_START,
    VALUE_WEIGHT,
    VALUE_AHEAD
} FieldValue;

/* One row of fields.def. */
typedef struct FieldInfo {
    const char *name;
    size_t bytes; /* size of one value in bytes */
    bool is_integer;
    FieldExtent extent;
    FieldValue value;
} FieldInfo;
const FieldInfo *field_info(FieldId);
bool extent_is_cut(FieldExtent); /* whether the extent is split across context-parallel ranks */

/* A set of fields. */
typedef uint32_t FieldSet;
#define ALL_FIELDS      ((UINT32_C(1) << FIELDS) - 1)
#define FIELD_SET(name) (UINT32_C(1) << FIELD_##name)
/* The fields that a decoder-only model reads. */
#define GPT_FIELDS                                                                                           \
    (FIELD_SET(tokens) | FIELD_SET(labels) | FIELD_SET(position_ids) | FIELD_SET(document_start) |           \
     FIELD_SET(loss_mask))
/* The fields that batch_look_ahead fills. */
#define AHEAD_FIELDS (FIELD_SET(tokens_ahead) | FIELD_SET(labels_ahead) | FIELD_SET(loss_mask_ahead))
static inline bool fields_have(FieldSet fields, int field) { return fields >> field & 1; }

/* Returns the fields, among those given, that a forward pass without losses reads. */
FieldSet fields_inputs(FieldSet);

/* The sizes of a sample's fields. */
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
    int64_t width[FIELDS]; /* number of values per element; 0 means 1 */
} SampleShape;
/* Returns the number of values that a sample has in a field. */
int64_t shape_columns(const SampleShape *, FieldId);
/* Returns the shape of a sample's slice on one of `ranks` context-parallel ranks. */
SampleShape shape_slice(SampleShape, int ranks);

/* One sample: a row of each field, in the caller's memory. Members are NULL for fields that the batch lacks. */
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

/* A batch of b samples. */
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
    int64_t *indices; /* [b], the indices of the samples in their dataset */
} Batch;

/* Allocates a batch and sets all elements to 0. */
Batch batch_new(int64_t b, SampleShape);
void batch_free(Batch *);
/* Sets all fields to their values for samples without padding or masks. Sets ids to 0. */
void batch_reset(const Batch *);
/* Like batch_reset, but draws random ids and labels below `vocab`, and sets token types and classes so that both values
 * occur. The values depend only on key, number and shape. */
void batch_draw(const Batch *, uint64_t key, uint64_t number, int64_t vocab);
/* Fills the look-ahead fields, if the batch has any, from tokens, labels and loss_mask. A look-ahead element is 0 if it
 * would lie beyond the end of the sample or document (document_start). */
void batch_look_ahead(const Batch *);
/* Copies sample k of `from`, except its look-ahead fields, to row i of a batch with the same shape. `from`
 * may have fields that the batch lacks. */
void batch_copy(const Batch *, int64_t i, const Batch *from, int64_t k);
/* Returns the index of an integer field's first value outside [low, end), or -1 if there is none. */
int64_t batch_outside(const Batch *, FieldId, int64_t low, int64_t end);
/* Returns the number of values in each element of a field. */
int64_t batch_width(const Batch *, FieldId);
/* Writes a field's dimensions: b, the extent (unless it is SAMPLES), and the width (if it exceeds 1). Returns the
 * number of dimensions. */
int batch_dims(const Batch *, FieldId, int64_t dim[3]);
/* Returns samples [first, first + n) as a view of the batch's memory. */
Batch batch_rows(const Batch *, int64_t first, int64_t n);
Sample batch_sample(const Batch *, int64_t i);
/* Returns a copy of the columns that belong to context-parallel rank `rank` of `ranks` (base/zigzag.h). The
 * copy is in the arena, so the caller must not free it. If ranks > 1, CUT extents must be multiples of 2 *
 * ranks. Each rank gets all columns of a field whose extent is WHOLE or SAMPLES. */
Batch batch_slice(const Batch *, int ranks, int rank, Arena *);
