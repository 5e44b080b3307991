#include "validate/logits.h"

void logits_compute(const Model *m, const RunContext *context, const MicrobatchContext *microbatch,
                    const int64_t *tokens, const int64_t *positions, int64_t b, int64_t s, TapeTrace *trace,
                    void *trace_arg, double *out) {
    Device *device = context->device;
    const int64_t dim[] = {b, s}, vocab = m->derived->vocab_size;
    Tensor ids = tensor_make(NULL, I64, 2, dim), places = ids;
    const size_t bytes = tensor_bytes(&ids);
    ids.data = device_alloc(device, 2 * bytes, "token ids");
    places.data = (char *)ids.data + bytes;
    device_write(device, ids.data, tokens, bytes);
    device_write(device, places.data, positions, bytes);
    Space *slot = space_new(device, "activation", SPACE_UNPLANNED),
          *transient = space_new(device, "transient", SPACE_UNPLANNED);
    Tape *tape = tape_new(context, slot, transient);
    tape_trace(tape, trace, trace_arg);
    tape_begin(tape, microbatch);
    const Tensor *y = model_forward(tape, m, &(Feed){.tokens = &ids, .position_ids = &places});
    const DType type = (DType)y->dtype;
    DeviceView view = device_view(device, y->data, tensor_bytes(y), VIEW_READ);
    for (int64_t p = 0; p < s; p++)
        for (int64_t i = 0; i < b; i++)
            dtype_convert(out + (i * s + p) * vocab, F64,
                          (char *)view.data + (size_t)((p * b + i) * y->dim[2]) * dtype_size(type), type,
                          (size_t)vocab);
    device_view_end(&view);
    tape_free(tape);
    space_free(slot), space_free(transient);
    device_release(device, ids.data, 2 * bytes);
}
