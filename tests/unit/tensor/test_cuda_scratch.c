/* Tests that a GPU's scratch memory keeps its address when it grows, and is no larger than the largest request. The
 * exit status is 77 if there is no GPU. */
#include "unit/gpu_main.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "tensor/cuda.h"

#define MB ((size_t)1 << 20)
#define GB ((size_t)1 << 30)
enum { GARBAGE = 0xA5 };

static Device *gpu(void) {
    Device *d;
    const Err e = device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .threads = 1}, &d);
    if (e.code) fail_msg("%s", e.msg);
    return d;
}

/* ---- graphs ---- */

/* Copies `from` to `to` through scratch memory. */
typedef struct Work {
    Device *device;
    char *from, *to;
    size_t bytes;
} Work;

static void work(void *arg) {
    const Work *w = arg;
    void *scratch = cuda_scratch(w->device, w->bytes);
    device_copy(w->device, scratch, w->from, w->bytes);
    device_copy(w->device, w->to, scratch, w->bytes);
}

static Work work_new(Device *d, size_t bytes) {
    return (Work){d, device_alloc(d, bytes, "a test"), device_alloc(d, bytes, "a test"), bytes};
}

static void work_free(Work *w) {
    device_release(w->device, w->from, w->bytes);
    device_release(w->device, w->to, w->bytes);
}

static void set(Device *d, void *at, int value, size_t bytes) {
    DeviceView v = device_view(d, at, bytes, VIEW_WRITE);
    memset(v.data, value, bytes);
    device_view_end(&v);
}

static void expect(const char *what, Device *d, const void *at, int value, size_t bytes) {
    DeviceView v = device_view(d, at, bytes, VIEW_READ);
    const unsigned char *got = v.data;
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != value) fail_msg("byte %zu of %s is %d, not %d", i, what, got[i], value);
    device_view_end(&v);
}

static void replay(const Work *w, DeviceGraph *g, int value) {
    set(w->device, w->from, value, w->bytes);
    device_graph_launch(w->device, g);
    expect("what the graph has copied", w->device, w->to, value, w->bytes);
}

/* A recording contains the address of the scratch memory, so the address must not change. */
TEST(recorded_work_survives_growth) {
    Device *d = gpu();
    Work small = work_new(d, 8 * MB), large = work_new(d, 40 * MB);
    DeviceRecording r = {0};
    set(d, small.from, 1, small.bytes);
    device_replay(d, &r, work, &small);
    expect("what was copied op by op", d, small.to, 1, small.bytes);
    assert_int_equal(d->graph_replays, 0);
    device_replay(d, &r, work, &small);
    assert_int_equal(d->graph_replays, 1);
    replay(&small, r.graph, 2);
    const void *scratch = cuda_scratch(d, small.bytes);
    set(d, large.from, 3, large.bytes);
    work(&large);
    expect("what was copied beside a recording", d, large.to, 3, large.bytes);
    assert_ptr_equal(cuda_scratch(d, large.bytes), scratch);
    char *block = device_alloc(d, small.bytes, "a test");
    set(d, block, GARBAGE, small.bytes);
    replay(&small, r.graph, 4);
    expect("somebody else's memory", d, block, GARBAGE, small.bytes);
    device_release(d, block, small.bytes);
    device_recording_drop(d, &r);
    work_free(&small), work_free(&large);
    device_free(d);
}

/* ---- memory use ---- */

/* Asserts that the memory used since `before` is as planned, within a thousandth. */
static void expect_taken(const Device *d, size_t before, size_t planned) {
    const double taken = (double)before - (double)device_memory_available(d);
    if (!(fabs(taken - (double)planned) <= 1e-3 * (double)planned))
        fail_msg("%.0f bytes of the GPU's memory are taken, %zu were asked for", taken, planned);
}

TEST(growth_takes_only_the_difference) {
    Device *d = gpu();
    cuda_scratch(d, MB);
    device_wait(d);
    const size_t before = device_memory_available(d);
    device_reserve_scratch(d, 4 * GB);
    expect_taken(d, before, 4 * GB);
    device_reserve_scratch(d, 6 * GB);
    expect_taken(d, before, 6 * GB);
    device_reserve_scratch(d, 5 * GB);
    expect_taken(d, before, 6 * GB);
    device_free(d);
}
