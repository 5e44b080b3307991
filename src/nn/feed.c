#include "nn/feed.h"

#include "base/fault.h"

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

void feed_write(Feed *feed, Tensor field[FIELDS], Device *device, const Batch *b, char *memory) {
    for (int f = 0; f < FIELDS; f++) {
        if (!fields_have(b->shape.fields, f)) continue;
        CHECK(field_info((FieldId)f)->is_integer, "the field %s is not an integer field",
              field_info((FieldId)f)->name);
        field[f] = tensor_of(b, f, memory);
        feed->field[f] = &field[f];
        device_write(device, memory, b->field[f], tensor_bytes(&field[f]));
        memory += tensor_bytes(&field[f]);
    }
}
