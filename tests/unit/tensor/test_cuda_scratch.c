/* Scratch memory of a GPU that grows: what a graph may use stays as it is, and nothing else is kept.
 * Without a GPU: exit status 77. */
#include "unit/cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "tensor/cuda.h"

#define MB ((size_t)1 << 20)
#define GB ((size_t)1 << 30)
enum { GARBAGE = 0xA5, BLOCKS = 8 };

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

/* Freed memory is reused for the next blocks of the same size. */
static void recorded_work_keeps_its_scratch_memory(void **state) {
    (void)state;
    Device *d = gpu();
    Work small = work_new(d, 8 * MB), large = work_new(d, 40 * MB);
    DeviceRecording r = {0};
    char *block[BLOCKS];
    set(d, small.from, 1, small.bytes);
    device_replay(d, &r, work, &small);
    expect("what was copied op by op", d, small.to, 1, small.bytes);
    assert_int_equal(d->graph_replays, 0);
    device_replay(d, &r, work, &small);
    assert_int_equal(d->graph_replays, 1);
    replay(&small, r.graph, 2);
    set(d, large.from, 3, large.bytes);
    work(&large);
    expect("what was copied beside a recording", d, large.to, 3, large.bytes);
    assert_int_equal(cuda_of(d)->n_outgrown, 1);
    set(d, cuda_scratch(d, large.bytes), GARBAGE, large.bytes);
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = device_alloc(d, small.bytes, "a test");
        set(d, block[i], GARBAGE, small.bytes);
    }
    replay(&small, r.graph, 4);
    for (int i = 0; i < BLOCKS; i++) {
        expect("somebody else's memory", d, block[i], GARBAGE, small.bytes);
        device_release(d, block[i], small.bytes);
    }
    expect("the scratch memory of other work", d, cuda_scratch(d, large.bytes), GARBAGE, large.bytes);
    device_recording_drop(d, &r);
    assert_int_equal(cuda_of(d)->n_outgrown, 0);
    work_free(&small), work_free(&large);
    device_free(d);
}

/* The last recording ends what is kept for all, in whatever order they end; the device, what is left. */
static void memory_is_kept_until_the_last_recording_ends(void **state) {
    (void)state;
    Device *d = gpu();
    Work w = work_new(d, MB);
    DeviceRecording first = {true, NULL}, second = {true, NULL};
    cuda_scratch(d, MB);
    device_replay(d, &first, work, &w);
    cuda_scratch(d, 2 * MB);
    device_replay(d, &second, work, &w);
    cuda_scratch(d, 4 * MB);
    assert_int_equal(cuda_of(d)->n_outgrown, 2);
    device_recording_drop(d, &first);
    assert_int_equal(cuda_of(d)->n_outgrown, 2);
    replay(&w, second.graph, 5);
    device_recording_drop(d, &second);
    assert_int_equal(cuda_of(d)->n_outgrown, 0);
    device_replay(d, &first, work, &w);
    cuda_scratch(d, 8 * MB);
    assert_int_equal(cuda_of(d)->n_outgrown, 1);
    replay(&w, first.graph, 6);
    device_recording_drop(d, &first);
    work_free(&w);
    device_free(d);
}

/* ---- memory that is taken ---- */

/* From `before` on, in bytes; to a thousandth. */
static void expect_taken(const Device *d, size_t before, size_t planned) {
    const double taken = (double)before - (double)device_memory_available(d);
    if (!(fabs(taken - (double)planned) <= 1e-3 * (double)planned))
        fail_msg("%.0f bytes of the GPU's memory are taken, %zu were asked for", taken, planned);
}

static void without_recordings_nothing_is_kept(void **state) {
    (void)state;
    Device *d = gpu();
    Work w = work_new(d, MB);
    DeviceRecording r = {0};
    for (int i = 0; i < 2; i++) device_replay(d, &r, work, &w); /* takes what the driver takes but once */
    device_wait(d);
    device_recording_drop(d, &r);
    const size_t before = device_memory_available(d);
    device_reserve_scratch(d, 4 * GB);
    expect_taken(d, before, 4 * GB);
    device_reserve_scratch(d, 6 * GB);
    assert_int_equal(cuda_of(d)->n_outgrown, 0);
    expect_taken(d, before, 6 * GB);
    device_replay(d, &r, work, &w);
    device_reserve_scratch(d, 8 * GB);
    expect_taken(d, before, (6 + 8) * GB);
    device_recording_drop(d, &r);
    expect_taken(d, before, 8 * GB);
    work_free(&w);
    device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_work_keeps_its_scratch_memory),
        cmocka_unit_test(memory_is_kept_until_the_last_recording_ends),
        cmocka_unit_test(without_recordings_nothing_is_kept),
    };
    Device *d;
    const Err e = device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .threads = 1}, &d);
    if (e.code) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    device_free(d);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
