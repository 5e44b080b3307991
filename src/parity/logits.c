#include "parity/logits.h"

/* The fields of the logits: all but those of losses. */
static FieldSet inputs(const Model *m) {
    return m->plan.sample.fields & ~(FIELD_SET(labels) | FIELD_SET(loss_mask) | FIELD_SET(sentence_labels));
}

static Tensor field_tensor(Device *d, const Batch *b, FieldId f) {
    int64_t dim[3];
    const int n = batch_dims(b, f, dim);
    Tensor x = tensor_make(NULL, I64, n, dim);
    x.data = device_alloc(d, tensor_bytes(&x), "a batch");
    device_write(d, x.data, b->field[f], tensor_bytes(&x));
    return x;
}

/* y [s, b, vocabulary and padding] -> out [b, s, vocab] */
static void read_logits(Device *d, const Tensor *y, int64_t vocab, double *out) {
    const DType type = (DType)y->dtype;
    const int64_t s = y->dim[0], b = y->dim[1];
    DeviceView view = device_view(d, y->data, tensor_bytes(y), VIEW_READ);
    for (int64_t p = 0; p < s; p++)
        for (int64_t i = 0; i < b; i++)
            dtype_convert(out + (i * s + p) * vocab, F64,
                          (char *)view.data + (size_t)((p * b + i) * y->dim[2]) * dtype_size(type), type,
                          (size_t)vocab);
    device_view_end(&view);
}

void logits_compute(const Model *m, const RunContext *context, const MicrobatchContext *microbatch,
                    const Batch *b, TapeTrace *trace, void *trace_arg, double *out) {
    Device *device = context->device;
    Tensor field[FIELDS];
    Feed feed = {.tokens = NULL};
    for (int f = 0; f < FIELDS; f++) {
        if (!fields_have(inputs(m), f)) continue;
        field[f] = field_tensor(device, b, (FieldId)f);
        feed.field[f] = &field[f];
    }
    Space *slot = space_new(device, "activation", SPACE_UNPLANNED),
          *transient = space_new(device, "transient", SPACE_UNPLANNED);
    Tape *tape = tape_new(context, slot, transient);
    tape_trace(tape, trace, trace_arg);
    tape_begin(tape, microbatch);
    const Tensor *y = model_forward(tape, m, &feed);
    read_logits(device, y, m->plan.head->outputs, out);
    tape_free(tape);
    space_free(slot), space_free(transient);
    for (int f = 0; f < FIELDS; f++)
        if (feed.field[f]) device_release(device, field[f].data, tensor_bytes(&field[f]));
}
