/* Samples and batches: arrays of every field of fields.def. */
#ifndef ISOTRON_DATA_BATCH_H
#define ISOTRON_DATA_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

typedef enum FieldId {
#define FIELD(name, type) FIELD_##name,
#include "data/fields.def"
#undef FIELD
    FIELDS
} FieldId;

size_t field_bytes(FieldId); /* of an element */
bool field_is_integer(FieldId);

/* One sample: rows of [s] elements, the caller's. */
typedef struct Sample {
    union {
        struct {
#define FIELD(name, type) type *name;
#include "data/fields.def"
#undef FIELD
        };
        void *field[FIELDS];
    };
} Sample;

/* b samples, layout [b, s]. */
typedef struct Batch {
    int64_t b, s;
    union {
        struct {
#define FIELD(name, type) type *name;
#include "data/fields.def"
#undef FIELD
        };
        void *field[FIELDS];
    };
    int64_t *indices; /* [b], the numbers of the samples */
} Batch;

Batch batch_new(int64_t b, int64_t s);
void batch_free(Batch *);
/* Samples [first, first + n), in the same memory. */
Batch batch_rows(const Batch *, int64_t first, int64_t n);
Sample batch_sample(const Batch *, int64_t i);
/* The columns of context-parallel rank `rank` of `ranks` (base/zigzag.h; one rank has all), in the arena's
 * memory: do not free. s is a multiple of 2 * ranks. */
Batch batch_slice(const Batch *, int ranks, int rank, Arena *);

#endif
