/* What the host does for a GPU (src/tensor/cuda.c), without one: a stand-in for CUDA's runtime and driver
 * takes their place. It counts what is taken and can run out of it, and its streams can fail. */
#include "unit/cmocka_all.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tensor/backend.h"
#include "tensor/cuda.h"
#include "unit/expect_fault.h"

/* ---- the stand-in ---- */

enum { PAGE = 32 << 20 };

static struct {
    int gpus, current;
    cudaError_t count, streams; /* what counting GPUs and waiting for a stream return */
    int live;                   /* blocks of memory, streams, events, recordings */
    int pages, most_pages;      /* that have memory; that can have some */
    size_t room;                /* the largest block that there is */
} gpu;

static void *take(size_t bytes) {
    if (bytes > gpu.room) return NULL;
    gpu.live++;
    return calloc(1, 1); /* nobody touches it */
}

static cudaError_t give(void *p) {
    if (p) gpu.live--;
    free(p);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n) {
    *n = gpu.gpus;
    return gpu.count;
}
cudaError_t cudaSetDevice(int ordinal) {
    gpu.current = ordinal;
    return gpu.streams;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int ordinal) {
    *p = (struct cudaDeviceProp){.name = "NVIDIA GPU", .major = 9, .multiProcessorCount = 132 + ordinal};
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

cudaError_t cudaMalloc(void **p, size_t bytes) {
    *p = take(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) { return give(p); }
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    (void)p, (void)value, (void)bytes, (void)s;
    return cudaSuccess;
}
/* The complaint is the host's to read. */
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    *p = flags & cudaHostAllocMapped ? malloc(bytes) : NULL;
    if (*p)
        gpu.live++;
    else
        *p = take(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *p) { return give(p); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    (void)flags;
    *s = take(0);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { return give(s); }
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    return gpu.streams;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) {
    *e = take(0);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    (void)flags;
    return cudaEventCreate(e);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) { return give(e); }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)e, (void)s;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    *ms = begin != end ? 0.5f : 0;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    (void)s, (void)mode;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    (void)s;
    *g = take(0);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags) {
    (void)g, (void)flags;
    *x = take(0);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return give(g); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) { return give(x); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
    (void)x, (void)s;
    return cudaSuccess;
}

/* ---- its driver: pages of an address space ---- */

static CUresult reserve(CUdeviceptr *p, size_t bytes, size_t align, CUdeviceptr at,
                        unsigned long long flags) {
    (void)align, (void)at, (void)flags;
    assert_int_equal(bytes % PAGE, 0);
    gpu.live++;
    *p = PAGE;
    return CUDA_SUCCESS;
}
static CUresult unreserve(CUdeviceptr p, size_t bytes) {
    assert_true(p == PAGE && bytes % PAGE == 0);
    gpu.live--;
    return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *what,
                       unsigned long long flags) {
    (void)flags;
    assert_int_equal(bytes, PAGE);
    assert_int_equal(what->location.id, gpu.current);
    *h = 1;
    return gpu.pages < gpu.most_pages ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult map(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle h,
                    unsigned long long flags) {
    (void)offset, (void)h, (void)flags;
    assert_int_equal(p, (CUdeviceptr)PAGE * (CUdeviceptr)(1 + gpu.pages)); /* the next one */
    assert_int_equal(bytes, PAGE);
    gpu.pages++;
    return CUDA_SUCCESS;
}
static CUresult unmap(CUdeviceptr p, size_t bytes) {
    (void)p;
    assert_int_equal(bytes, PAGE);
    gpu.pages--;
    return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle h) {
    (void)h;
    return CUDA_SUCCESS;
}
static CUresult allow(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *to, size_t n) {
    (void)p, (void)bytes, (void)to, (void)n;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    static const struct {
        const char *name;
        void (*is)(void);
    } HAS[] = {{"cuMemAddressReserve", (void (*)(void))reserve},
               {"cuMemAddressFree", (void (*)(void))unreserve},
               {"cuMemCreate", (void (*)(void))create},
               {"cuMemMap", (void (*)(void))map},
               {"cuMemUnmap", (void (*)(void))unmap},
               {"cuMemRelease", (void (*)(void))release},
               {"cuMemSetAccess", (void (*)(void))allow}};
    (void)version, (void)flags;
    *f = NULL;
    for (size_t i = 0; i < sizeof HAS / sizeof *HAS; i++)
        if (!strcmp(name, HAS[i].name)) memcpy(f, &HAS[i].is, sizeof *f);
    *found = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* ---- what tests share ---- */

static Device *open_rank(int rank) {
    Device *d;
    const Err e = device_open(true, rank, 1, &d);
    if (e.code) fail_msg("%s", e.msg);
    return d;
}

static Device *new_gpu(void) {
    memset(&gpu, 0, sizeof gpu);
    gpu.gpus = 1, gpu.room = 1000, gpu.most_pages = 3;
    return open_rank(0);
}

static void free_gpu(Device *d) {
    device_free(d);
    assert_int_equal(gpu.live, 0);
    assert_int_equal(gpu.pages, 0);
}

/* ---- tests ---- */

static void without_a_gpu_the_reason_is_said(void **state) {
    (void)state;
    static const struct {
        cudaError_t count;
        const char *reason;
    } CASES[] = {
        {cudaSuccess, "this machine shows no GPU: no CUDA-capable device is detected ("},
        {cudaErrorInsufficientDriver, "this machine shows no GPU: CUDA driver version is insufficient"}};
    for (int i = 0; i < 2; i++) {
        Device *d = (Device *)&gpu;
        memset(&gpu, 0, sizeof gpu);
        gpu.count = CASES[i].count;
        const Err e = device_open(true, 0, 1, &d);
        assert_true(e.code && !d && gpu.live == 0);
        if (!strstr(e.msg, CASES[i].reason)) fail_msg("%s", e.msg);
    }
}

static void ranks_share_the_gpus(void **state) {
    (void)state;
    Device *d[5];
    memset(&gpu, 0, sizeof gpu);
    gpu.gpus = 2;
    for (int rank = 0; rank < 5; rank++) {
        d[rank] = open_rank(rank);
        assert_int_equal(d[rank]->cuda->ordinal, rank % 2);
        assert_int_equal(d[rank]->cuda->multiprocessors, 132 + rank % 2);
        assert_true(d[rank]->cuda->stream != d[0]->cuda->stream || rank == 0);
    }
    for (int rank = 0; rank < 5; rank++) { /* whatever device the thread had last */
        device_wait(d[rank]);
        assert_int_equal(gpu.current, rank % 2);
    }
    for (int rank = 0; rank < 5; rank++) device_free(d[rank]);
    assert_int_equal(gpu.live, 0);
}

/* A kernel that goes on with an operand that it complained of may touch what is not there. */
static void a_complaint_is_said_although_the_gpu_has_failed(void **state) {
    (void)state;
    Device *d = new_gpu();
    CudaComplaint *c = d->cuda->complaint;
    device_wait(d);
    gpu.streams = cudaErrorIllegalAddress;
    EXPECT_FAULT("cudaErrorIllegalAddress", device_wait(d));
    c->raised = 1; /* and it failed before the kernel could say what */
    EXPECT_FAULT("cudaErrorIllegalAddress", device_wait(d));
    c->sentence = "label %lld of token %lld", c->value[0] = 7, c->value[1] = 11;
    EXPECT_FAULT("label 7 of token 11", device_wait(d));
    gpu.streams = cudaSuccess;
    EXPECT_FAULT("label 7 of token 11", device_wait(d));
    c->raised = 0;
    free_gpu(d);
}

static void memory_that_is_not_there_is_named(void **state) {
    (void)state;
    Device *d = new_gpu();
    EXPECT_FAULT("cannot allocate 1001 bytes for a table", device_alloc(d, 1001, "a table"));
    EXPECT_FAULT("cannot allocate 1001 bytes of host memory for a table",
                 device_host_alloc(d, 1001, "a table"));
    EXPECT_FAULT("the GPU has no 1001 bytes left for a kernel's scratch memory", device_provide(d, 1001));
    free_gpu(d);
}

static void pages_come_as_they_are_reached(void **state) {
    (void)state;
    Device *d = new_gpu();
    Space *s = space_new(d, "cache", SPACE_UNPLANNED);
    assert_int_equal(gpu.pages, 0);
    space_take(s, PAGE - SPACE_ALIGN);
    assert_int_equal(gpu.pages, 1);
    space_take(s, SPACE_ALIGN);
    assert_int_equal(gpu.pages, 1);
    space_take(s, 1);
    assert_int_equal(gpu.pages, 2);
    EXPECT_FAULT("cannot allocate 134217984 bytes for cache memory, of which 100663296 are there",
                 space_take(s, (size_t)3 * PAGE));
    assert_int_equal(gpu.pages, 3);
    space_free(s);
    free_gpu(d);
}

static void work(void *device) { cuda_scratch(device, 10); }

/* Recordings, scratch memory that they outlive, events, times of ops. */
static void everything_is_given_back(void **state) {
    (void)state;
    Device *d = new_gpu();
    OpProfile profile[2] = {{0}};
    DeviceRecording r = {0};
    DeviceEvent *e = device_event_new(d);
    void *block = device_alloc(d, 100, "a test"), *host = device_host_alloc(d, 100, "a test");
    for (int i = 0; i < 3; i++) device_replay(d, &r, work, d);
    assert_int_equal(d->plays, 2);
    cuda_scratch(d, 20), cuda_scratch(d, 30);
    assert_int_equal(d->cuda->n_outgrown, 2);
    d->profile = profile;
    for (int i = 0; i < 1000; i++) d->backend->begin(d, "op"), d->backend->end(d, 1);
    device_wait(d);
    assert_true(profile[1].calls == 1000 && profile[1].ns == 1000 * 500000 && !profile[0].calls);
    device_wait(d); /* counted once */
    assert_int_equal(profile[1].calls, 1000);
    d->profile = NULL;
    device_recording_drop(d, &r);
    assert_int_equal(d->cuda->n_outgrown, 0);
    device_release(d, block, 100), device_host_release(d, host, 100);
    device_event_free(d, e);
    free_gpu(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_gpu_the_reason_is_said),
        cmocka_unit_test(ranks_share_the_gpus),
        cmocka_unit_test(a_complaint_is_said_although_the_gpu_has_failed),
        cmocka_unit_test(memory_that_is_not_there_is_named),
        cmocka_unit_test(pages_come_as_they_are_reached),
        cmocka_unit_test(everything_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
