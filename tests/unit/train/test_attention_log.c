/* Tests a dry run's report on attention: one line for each kind of layer and direction, and no line on the CPU. */
#include "unit/cmocka_all.h"

#include <string.h>

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tensor/backend.h"
#include "train/attention_log.h"

#define OWN "own kernels, which keep all probabilities in memory: --attention-backend unfused\n"

static const AttentionAttr WHOLE = {.window_left = WINDOW_OFF}, WINDOW = {.window_left = 127},
                           CHUNKS = {.window_left = WINDOW_OFF, .chunk_size = 64};

static const char *own_kernels(const OpDef *op, const Call *c) {
    (void)op, (void)c;
    return "own kernels";
}

/* A GPU device with only the functions that the log calls, and a null device that plans for it. */
static const DeviceBackend GPU = {.path = own_kernels};
static const Device TARGET = {.kind = DEVICE_CUDA, .backend = &GPU};

static void hear(AttentionLog *log, Device *d, OpNumber op, const AttentionAttr *a) {
    const Call call = {.attr = a, .device = d};
    attention_log(log, &OPS[op], &call);
}

TEST(lines_for_kinds_and_directions) {
    AttentionLog log = {""};
    Device *gpu = device_null_for(&TARGET);
    for (int layer = 0; layer < 2; layer++) {
        hear(&log, gpu, OP_attention_unfused, &WHOLE);
        hear(&log, gpu, OP_attention_unfused, &WINDOW);
        hear(&log, gpu, OP_add, NULL);
    }
    hear(&log, gpu, OP_attention_unfused_grad, &CHUNKS);
    hear(&log, gpu, OP_attention_unfused_grad, &WINDOW);
    hear(&log, gpu, OP_attention_unfused_grad, &WHOLE);
    assert_string_equal(log.text,
                        "attention, forward: " OWN "attention in a window of 128 keys, forward: " OWN
                        "attention in chunks of 64 keys, backward: " OWN
                        "attention in a window of 128 keys, backward: " OWN "attention, backward: " OWN);
    device_free(gpu);
}

TEST(what_does_not_fit_is_said) {
    AttentionLog log = {""};
    Device *gpu = device_null_for(&TARGET);
    for (int64_t i = 0; i < 200; i++) {
        const AttentionAttr window = {.window_left = i};
        hear(&log, gpu, OP_attention_unfused, &window);
    }
    const char *last = strstr(log.text, "attention: ");
    assert_true(strlen(log.text) < sizeof log.text && last);
    assert_string_equal(last, "attention: this list has no space for the other kinds of layers\n");
    device_free(gpu);
}

TEST(nothing_on_the_cpu) {
    AttentionLog log = {""};
    Device *cpu = device_cpu(1), *null[] = {device_null(), device_null_for(cpu)};
    for (int i = 0; i < 2; i++) {
        hear(&log, null[i], OP_attention, &WHOLE);
        hear(&log, null[i], OP_attention_unfused, &WHOLE);
        device_free(null[i]);
    }
    device_free(cpu);
    assert_string_equal(log.text, "");
}
