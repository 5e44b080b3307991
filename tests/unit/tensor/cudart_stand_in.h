/* A mock of CUDA's runtime and driver, for tests without a GPU. It counts allocations, can exhaust its
 * memory, has streams that can fail, and records the order of copies. */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "unit/cmocka_all.h"

enum { PAGE = 32 << 20 };

static struct {
    int gpus, current;
    cudaError_t count, streams; /* results of cudaGetDeviceCount, and of waiting for a stream */
    int live;                   /* number of live memory blocks, streams, events and recordings */
    int copies;                 /* number of copies so far */
    unsigned before[32];        /* mask of the copies that precede each copy */
    unsigned waited;            /* mask of the copies that the host has waited for */
    size_t backed, most_backed; /* bytes of reserved addresses that have memory; maximum */
    size_t room;                /* size of the largest available block */
    int secluded;               /* a GPU that GPU 0 cannot access, or 0 if there is none */
    int priority;               /* priority of the last stream that was created with one */
    int compute_mode;           /* cudaComputeMode of all GPUs */
} gpu;

static void *take(size_t bytes) {
    if (bytes > gpu.room) return NULL;
    gpu.live++;
    return calloc(1, sizeof(unsigned)); /* a Seen, or memory that must not be accessed */
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
cudaError_t cudaDeviceCanAccessPeer(int *can, int ordinal, int peer) {
    *can = ordinal || !gpu.secluded || peer != gpu.secluded;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
    gpu.current = ordinal;
    return gpu.streams;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int ordinal) {
    *p = (struct cudaDeviceProp){.name = "NVIDIA GPU",
                                 .major = 9,
                                 .multiProcessorCount = 132 + ordinal,
                                 .totalGlobalMem = (size_t)10 * PAGE - 1};
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal) {
    (void)ordinal;
    *value = attribute == cudaDevAttrComputeMode ? gpu.compute_mode : 0;
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
/* Mapped memory is allocated, because the host reads DeviceAssert from it. */
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    *p = flags & cudaHostAllocMapped ? calloc(1, bytes) : NULL;
    if (*p)
        gpu.live++;
    else
        *p = take(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *p) { return give(p); }

/* For a stream, the copies that precede its next work; for an event, the copies that preceded it on its
 * stream. */
typedef struct Seen {
    unsigned copies;
} Seen;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    (void)flags;
    *s = (cudaStream_t)take(0);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = 0, *highest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    gpu.priority = priority;
    return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { return give(s); }
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    gpu.waited |= ((Seen *)s)->copies;
    return gpu.streams;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    Seen *seen = (Seen *)s;
    (void)to, (void)from, (void)bytes, (void)kind;
    gpu.before[gpu.copies] = seen->copies;
    seen->copies |= 1u << gpu.copies++;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) {
    *e = (cudaEvent_t)take(0);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    (void)flags;
    return cudaEventCreate(e);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) { return give(e); }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    ((Seen *)e)->copies = ((Seen *)s)->copies;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    (void)flags;
    ((Seen *)s)->copies |= ((Seen *)e)->copies;
    return cudaSuccess;
}
/* Work counts as complete when the host has waited for it. */
cudaError_t cudaEventQuery(cudaEvent_t e) {
    return ((Seen *)e)->copies & ~gpu.waited ? cudaErrorNotReady : cudaSuccess;
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

/* ---- the driver: pages of an address space ---- */

static CUresult reserve(CUdeviceptr *p, size_t bytes, size_t align, CUdeviceptr at,
                        unsigned long long flags) {
    (void)align, (void)at, (void)flags;
    assert_int_equal(bytes, (size_t)10 * PAGE); /* the address space is as large as the GPU's memory */
    gpu.live++;
    *p = PAGE;
    return CUDA_SUCCESS;
}
static CUresult unreserve(CUdeviceptr p, size_t bytes) {
    assert_true(p == PAGE && bytes == (size_t)10 * PAGE);
    gpu.live--;
    return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *what,
                       unsigned long long flags) {
    (void)flags;
    assert_int_equal(bytes % ((size_t)2 << 20), 0); /* the granularity of a real GPU */
    assert_int_equal(what->location.id, gpu.current);
    *h = 1;
    return gpu.backed + bytes <= gpu.most_backed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult map(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle h,
                    unsigned long long flags) {
    (void)offset, (void)h, (void)flags;
    assert_int_equal(p, (CUdeviceptr)PAGE + gpu.backed); /* the next page */
    gpu.backed += bytes;
    return CUDA_SUCCESS;
}
static CUresult unmap(CUdeviceptr p, size_t bytes) {
    (void)p;
    gpu.backed -= bytes;
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
