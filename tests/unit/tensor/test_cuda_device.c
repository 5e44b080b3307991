/* Tests the host part of a GPU device (src/tensor/cuda.c) without a GPU. */
#include "unit/cmocka_all.h"

#include <string.h>

#include "base/err.h"
#include "tensor/call.h"
#include "tensor/cuda.h"
#include "unit/expect_fault.h"
#include "unit/tensor/cudart_stand_in.h"

/* ---- shared helpers ---- */

static Device *open_rank(int rank) {
    Device *d;
    const size_t room = gpu.room;
    gpu.room = PAGE; /* an open device owns some memory */
    const Err e = device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .rank = rank, .threads = 1}, &d);
    gpu.room = room;
    if (e.code) fail_msg("%s", e.msg);
    return d;
}

static Device *new_gpu(void) {
    memset(&gpu, 0, sizeof gpu);
    gpu.gpus = 1, gpu.room = 1000, gpu.most_backed = (size_t)3 * PAGE;
    return open_rank(0);
}

static void free_gpu(Device *d) {
    device_free(d);
    assert_int_equal(gpu.live, 0);
    assert_int_equal(gpu.backed, 0);
}

/* ---- tests ---- */

TEST(without_a_gpu_the_reason_is_said) {
    static const struct {
        cudaError_t count;
        const char *reason;
    } CASES[] = {
        {cudaSuccess, "this machine has no usable GPU: no CUDA-capable device is detected ("},
        {cudaErrorInsufficientDriver, "this machine has no usable GPU: CUDA driver version is insufficient"}};
    for (int i = 0; i < 2; i++) {
        Device *d = (Device *)&gpu;
        memset(&gpu, 0, sizeof gpu);
        gpu.count = CASES[i].count;
        const Err e = device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .threads = 1}, &d);
        assert_true(e.code && !d && gpu.live == 0);
        if (!strstr(e.msg, CASES[i].reason)) fail_msg("%s", e.msg);
    }
}

TEST(ranks_share_the_gpus) {
    Device *d[5];
    memset(&gpu, 0, sizeof gpu);
    gpu.gpus = 2;
    for (int rank = 0; rank < 5; rank++) {
        d[rank] = open_rank(rank);
        assert_int_equal(cuda_of(d[rank])->ordinal, rank % 2);
        assert_int_equal(cuda_of(d[rank])->multiprocessors, 132 + rank % 2);
        assert_true(cuda_of(d[rank])->stream != cuda_of(d[0])->stream || rank == 0);
    }
    for (int rank = 0; rank < 5; rank++) { /* whichever device the thread used before */
        device_wait(d[rank]);
        assert_int_equal(gpu.current, rank % 2);
    }
    for (int rank = 0; rank < 5; rank++) device_free(d[rank]);
    assert_int_equal(gpu.live, 0);
}

TEST(exclusive_gpus_are_noticed) {
    memset(&gpu, 0, sizeof gpu);
    gpu.gpus = 1;
    Device *shared = open_rank(0);
    gpu.compute_mode = cudaComputeModeExclusiveProcess;
    Device *exclusive = open_rank(0);
    assert_true(!shared->exclusive && exclusive->exclusive);
    device_free(shared);
    device_free(exclusive);
}

TEST(gpus_without_peer_access_are_noticed) {
    memset(&gpu, 0, sizeof gpu);
    gpu.gpus = 3, gpu.secluded = 2;
    Device *lacks = open_rank(0), *has = open_rank(1);
    assert_true(lacks->lacks_peers && !has->lacks_peers);
    device_free(lacks), device_free(has);
}

/* A kernel that continues after it has reported an invalid operand may access invalid memory. */
TEST(an_assert_is_reported_although_the_gpu_has_failed) {
    Device *d = new_gpu();
    DeviceAssert *c = cuda_of(d)->failure;
    device_wait(d);
    gpu.streams = cudaErrorIllegalAddress;
    EXPECT_FAULT("cudaErrorIllegalAddress", device_wait(d));
    c->raised = 1; /* the GPU failed after the kernel set `raised` and before it wrote the message */
    EXPECT_FAULT("cudaErrorIllegalAddress", device_wait(d));
    c->message = "label %lld of token %lld", c->value[0] = 7, c->value[1] = 11;
    EXPECT_FAULT("label 7 of token 11", device_wait(d));
    gpu.streams = cudaSuccess;
    EXPECT_FAULT("label 7 of token 11", device_wait(d));
    c->raised = 0;
    free_gpu(d);
}

TEST(memory_that_is_not_there_is_named) {
    Device *d = new_gpu();
    EXPECT_FAULT("cannot allocate 1001 B for a table", device_alloc(d, 1001, "a table"));
    EXPECT_FAULT("cannot allocate 1001 B of host memory for a table", device_host_alloc(d, 1001, "a table"));
    EXPECT_FAULT("the GPU does not have 96.0 MiB of free memory for a kernel's scratch memory",
                 device_reserve_scratch(d, ((size_t)3 * PAGE) + 1));
    free_gpu(d);
}

TEST(pages_come_as_they_are_reached) {
    Device *d = new_gpu();
    Space *s = space_new(d, "cache", SPACE_UNPLANNED);
    assert_int_equal(gpu.backed, 0);
    space_take(s, PAGE - SPACE_ALIGN);
    assert_int_equal(gpu.backed, PAGE);
    space_take(s, SPACE_ALIGN);
    assert_int_equal(gpu.backed, PAGE);
    space_take(s, 1);
    assert_int_equal(gpu.backed, (size_t)2 * PAGE);
    EXPECT_FAULT("cannot allocate 128.0 MiB for cache memory: only 96.0 MiB could be allocated",
                 space_take(s, (size_t)3 * PAGE));
    assert_int_equal(gpu.backed, (size_t)3 * PAGE);
    space_free(s);
    free_gpu(d);
}

/* Masks have one bit per copy. Copies on the compute stream represent kernels. */
TEST(async_copies_wait_and_are_waited_for) {
    Device *d = new_gpu();
    DeviceEvent *e = device_event_new(d);
    char to[1], from[1];
    device_copy(d, to, from, 1);
    device_copy_async(d, to, from, 1, e); /* number 1 */
    device_copy(d, to, from, 1);
    device_copy_async(d, to, from, 1, e); /* number 3 */
    device_copy(d, to, from, 1);
    assert_int_equal(gpu.before[1], 1 << 0);
    assert_int_equal(gpu.before[2], 1 << 0); /* does not wait for copy 1 */
    assert_int_equal(gpu.before[3], 1 << 0 | 1 << 1 | 1 << 2);
    assert_int_equal(gpu.before[4], 1 << 0 | 1 << 2);
    gpu.waited = 0;
    device_wait(d);
    assert_int_equal(gpu.waited, (1 << 5) - 1);
    device_wait_event(d, e);
    device_copy(d, to, from, 1);
    assert_int_equal(gpu.before[5], (1 << 5) - 1);
    device_event_free(d, e);
    free_gpu(d);
}

/* Masks of copies, as above. A library copies on its own stream. */
TEST(streams_follow_and_are_followed) {
    Device *d = new_gpu();
    DeviceStream *s = device_stream_new(d);
    DeviceEvent *e = device_event_new(d);
    cudaStream_t handle = device_stream_handle(d, s);
    char to[1], from[1];
    assert_int_equal(gpu.priority, -5);
    device_copy(d, to, from, 1);
    device_stream_follow(d, s);
    device_copy(d, to, from, 1);
    cudaMemcpyAsync(to, from, 1, cudaMemcpyDefault, handle); /* number 2 */
    device_stream_record(d, s, e);
    device_copy(d, to, from, 1);
    assert_int_equal(gpu.before[2], 1 << 0);
    assert_int_equal(gpu.before[3], 1 << 0 | 1 << 1);
    assert_false(device_event_happened(d, e));
    device_wait_event(d, e);
    device_copy(d, to, from, 1);
    assert_int_equal(gpu.before[4], (1 << 4) - 1);
    gpu.waited = 0;
    device_stream_free(d, s);
    assert_int_equal(gpu.waited, 1 << 0 | 1 << 2);
    assert_true(device_event_happened(d, e));
    device_event_free(d, e);
    free_gpu(d);
}

static void nothing(const Call *c) { (void)c; }
static void work(void *device) { cuda_scratch(device, 10); }

/* Closing a device must free recordings, scratch memory that has grown, events and timers of ops. */
TEST(everything_is_given_back) {
    Device *d = new_gpu();
    OpProfile profile[2] = {{0}};
    DeviceRecording r = {0};
    DeviceEvent *e = device_event_new(d);
    void *block = device_alloc(d, 100, "a test"), *host = device_host_alloc(d, 100, "a test");
    for (int i = 0; i < 3; i++) device_replay(d, &r, work, d);
    assert_int_equal(d->graph_replays, 2);
    const void *scratch = cuda_scratch(d, 20);
    assert_ptr_equal(cuda_scratch(d, PAGE), scratch); /* scratch memory grows in place */
    assert_int_equal(gpu.backed, PAGE);
    d->profile = profile;
    const OpDef op = {.name = "op", .number = 1, .cuda = nothing};
    for (int i = 0; i < 1000; i++) call_run(&op, &(Call){.device = d});
    device_wait(d);
    assert_true(profile[1].calls == 1000 && profile[1].ns == 1000 * 500000 && !profile[0].calls);
    device_wait(d); /* counted once */
    assert_int_equal(profile[1].calls, 1000);
    d->profile = NULL;
    device_recording_drop(d, &r);
    device_release(d, block, 100), device_host_release(d, host, 100);
    device_event_free(d, e);
    free_gpu(d);
}
