#include "parity/logits.h"

#include <stdlib.h>

/* Converts y [s, b, vocabulary and padding] to out [b, s, vocab]. */
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
    Batch inputs = *b;
    inputs.shape.fields = fields_inputs(m->plan.sample.fields);
    const size_t bytes = feed_bytes(&inputs);
    char *memory = device_alloc(device, bytes, "a batch"), *host = mem_alloc(bytes + 1);
    Tensor field[FIELDS];
    Feed feed = {.tokens = NULL};
    feed_write(&feed, field, &inputs, memory, host);
    device_write(device, memory, host, bytes);
    free(host);
    Space *slot = space_new(device, "activation", SPACE_UNPLANNED),
          *transient = space_new(device, "transient", SPACE_UNPLANNED);
    Tape *tape = tape_new(context, slot, transient);
    tape_trace(tape, trace, trace_arg);
    tape_begin(tape, microbatch);
    const Tensor *y = model_forward(tape, m, &feed);
    read_logits(device, y, m->plan.head->outputs, out);
    tape_free(tape);
    space_free(slot), space_free(transient);
    device_release(device, memory, bytes);
}
