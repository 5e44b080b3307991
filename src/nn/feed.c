#include "nn/feed.h"

#include <string.h>

#include "base/fault.h"
#include "ops/residual.h"

/* Returns [b, s]: value `column` of each element of a field [b, s, n]. */
static Tensor *column_of(Tape *t, Tensor *field, int64_t column) {
    if (!field || field->ndim < 3) return field;
    Tensor *out = tape_alloc(t, sizeof *out), *x = tape_alloc(t, sizeof *x);
    *x = tensor_slice(field, 2, column, 1);
    *out = *op_contiguous(t, x);
    out->ndim = 2;
    return out;
}

Feed *feed_fields(Tape *t, const Feed *feed, const FeedField *fields, int n) {
    Feed *own = tape_alloc(t, sizeof *own);
    *own = *feed;
    if (n) memset(own->field, 0, sizeof own->field);
    for (int i = 0; i < n; i++)
        own->field[fields[i].name] = column_of(t, feed->field[fields[i].field], fields[i].column);
    return own;
}

static Tensor tensor_of(const Batch *b, int field, char *memory) {
    int64_t dim[3];
    const int n = batch_dims(b, (FieldId)field, dim);
    return tensor_make(memory, I64, n, dim);
}

size_t feed_bytes(const Batch *b) {
    size_t bytes = 0;
    for (int f = 0; f < FIELDS; f++) {
        const Tensor x = tensor_of(b, f, NULL);
        if (fields_have(b->shape.fields, f)) bytes += tensor_bytes(&x);
    }
    return bytes;
}

void feed_write(Feed *feed, Tensor field[FIELDS], const Batch *b, char *memory, char *host) {
    for (int f = 0; f < FIELDS; f++) {
        if (!fields_have(b->shape.fields, f)) continue;
        CHECK(field_info((FieldId)f)->is_integer, "the field %s is not an integer field",
              field_info((FieldId)f)->name);
        field[f] = tensor_of(b, f, memory);
        feed->field[f] = &field[f];
        memcpy(host, b->field[f], tensor_bytes(&field[f]));
        memory += tensor_bytes(&field[f]), host += tensor_bytes(&field[f]);
    }
}
