/* Tests asynchronous copies that overlap with kernels, on a given device. Each copy must see the results of
 * earlier kernels, and work that waits for the copy must see its result, even in a recorded graph. */
#pragma once

#include <string.h>

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "unit/cmocka_all.h"

/* The size is so large that a copy takes longer than the kernels that must not overtake it. */
enum { BESIDE_ELEMENTS = 8 << 20, BESIDE_ROUNDS = 3 };

typedef struct Beside {
    Device *device;
    Tensor work, out; /* data that is copied to the host and back; [ROUNDS, n] the data after each round */
    char *host;
    DeviceEvent *away, *back;
} Beside;

static inline void beside_fill(const Beside *b, double value) {
    Tensor y = b->work;
    const FillAttr fill = {value};
    call_run(&OPS[OP_fill], &(Call){.out = {&y}, .attr = &fill, .device = b->device});
}

/* Copies the values 1 .. ROUNDS to the host, and overwrites each value as soon as its copy is complete. The
 * values are copied back in reverse order. A kernel, which may begin while the previous kernel still runs,
 * writes the square of each value to its row of `out`. */
static inline void beside_run(const Beside *b) {
    const size_t bytes = tensor_bytes(&b->work);
    const ActivationAttr square = {.kind = ACT_SQUARED_RELU};
    Tensor work = b->work;
    for (int i = 0; i < BESIDE_ROUNDS; i++) {
        if (i) device_wait_event(b->device, b->away);
        beside_fill(b, i + 1);
        device_copy_async(b->device, b->host + (size_t)i * bytes, b->work.data, bytes, b->away);
    }
    device_wait_event(b->device, b->away);
    beside_fill(b, 9);
    for (int i = BESIDE_ROUNDS; i-- > 0;) {
        device_copy_async(b->device, b->work.data, b->host + (size_t)i * bytes, bytes, b->back);
        device_wait_event(b->device, b->back);
        Tensor row = work;
        row.data = (char *)b->out.data + (size_t)i * bytes;
        call_run(&OPS[OP_activation],
                 &(Call){.in = {&work}, .out = {&row}, .attr = &square, .device = b->device});
    }
}

/* Checks `out`, then clears it. */
static inline void beside_check(const Beside *b) {
    DeviceView got = device_view(b->device, b->out.data, tensor_bytes(&b->out), VIEW_READ | VIEW_WRITE);
    const float *x = got.data;
    for (int64_t i = 0; i < BESIDE_ROUNDS * (int64_t)BESIDE_ELEMENTS; i++) {
        const float value = (float)(1 + i / BESIDE_ELEMENTS);
        if (x[i] != value * value)
            fail_msg("element %lld of what came back, squared, is %g", (long long)i, (double)x[i]);
    }
    memset(got.data, 0, got.bytes);
    device_view_end(&got);
}

static inline void copies_run_beside(Device *d) {
    Beside b = {.device = d, .work = tensor_make(NULL, F32, 1, (int64_t[]){BESIDE_ELEMENTS})};
    b.out = tensor_make(NULL, F32, 2, (int64_t[]){BESIDE_ROUNDS, BESIDE_ELEMENTS});
    const size_t bytes = tensor_bytes(&b.work);
    b.work.data = device_alloc(d, bytes, "a test");
    b.out.data = device_alloc(d, BESIDE_ROUNDS * bytes, "a test");
    b.host = device_host_alloc(d, BESIDE_ROUNDS * bytes, "a test");
    b.away = device_event_new(d), b.back = device_event_new(d);
    OpProfile *profile = d->profile;
    d->profile = NULL; /* timing would add events between kernels, and is not possible in a recording */
    beside_run(&b);
    d->profile = profile;
    beside_check(&b);
    if (d->kind == DEVICE_CUDA) {
        d->profile = NULL;
        device_graph_begin(d);
        beside_run(&b);
        DeviceGraph *g = device_graph_end(d);
        d->profile = profile;
        for (int i = 0; i < 2; i++) {
            device_graph_launch(d, g);
            beside_check(&b);
        }
        device_graph_free(d, g);
    }
    device_event_free(d, b.away), device_event_free(d, b.back);
    device_host_release(d, b.host, BESIDE_ROUNDS * bytes);
    device_release(d, b.work.data, bytes), device_release(d, b.out.data, BESIDE_ROUNDS * bytes);
}
