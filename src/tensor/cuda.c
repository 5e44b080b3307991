#include "tensor/cuda.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/backend.h"

void cuda_check(cudaError_t e, const char *call, const char *file, int line) {
    if (e != cudaSuccess) fault(file, line, call, "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
}

/* The device of a thread is a setting of CUDA's, and ranks that share a process may have several. */
static Cuda *use(const Device *d) {
    CUDA_CHECK(cudaSetDevice(d->cuda->ordinal));
    return d->cuda;
}

/* ---- times of ops ---- */

typedef struct CudaTimes {
    struct Timed {
        cudaEvent_t begin, end;
        OpProfile *to; /* the op's, in the profile that was attached when it ran */
    } * at;
    int64_t n, capacity; /* used; with events */
} CudaTimes;

static struct Timed *next_timed(Cuda *c) {
    if (!c->times) c->times = mem_zero(1, sizeof *c->times);
    CudaTimes *t = c->times;
    if (t->n == t->capacity) {
        t->at = mem_grow(t->at, (size_t)(2 * t->capacity + 256), sizeof *t->at);
        for (const int64_t end = 2 * t->capacity + 256; t->capacity < end; t->capacity++) {
            CUDA_CHECK(cudaEventCreate(&t->at[t->capacity].begin));
            CUDA_CHECK(cudaEventCreate(&t->at[t->capacity].end));
        }
    }
    return &t->at[t->n];
}

static void begin(Device *d, const char *op) {
    nvtxRangePushA(op);
    if (d->profile) CUDA_CHECK(cudaEventRecord(next_timed(d->cuda)->begin, d->cuda->stream));
}

static void end(Device *d, int op) {
    if (d->profile) {
        struct Timed *t = &d->cuda->times->at[d->cuda->times->n++];
        t->to = &d->profile[op];
        CUDA_CHECK(cudaEventRecord(t->end, d->cuda->stream));
    }
    nvtxRangePop();
}

/* After all of them have happened. */
static void add_times(Device *d) {
    CudaTimes *t = d->cuda->times;
    for (int64_t i = 0; i < t->n; i++) {
        float ms;
        CUDA_CHECK(cudaEventElapsedTime(&ms, t->at[i].begin, t->at[i].end));
        t->at[i].to->calls++;
        t->at[i].to->ns += (int64_t)((double)ms * 1e6);
    }
    t->n = 0;
}

static void free_times(CudaTimes *t) {
    for (int64_t i = 0; t && i < t->capacity; i++) {
        CUDA_CHECK(cudaEventDestroy(t->at[i].begin));
        CUDA_CHECK(cudaEventDestroy(t->at[i].end));
    }
    if (t) free(t->at);
    free(t);
}

/* ---- memory ---- */

static cudaError_t wait_for_streams(const Cuda *c) {
    cudaError_t e = cudaSetDevice(c->ordinal);
    if (e == cudaSuccess) e = cudaStreamSynchronize(c->stream);
    return e == cudaSuccess ? cudaStreamSynchronize(c->beside) : e;
}

/* A failure comes first: what it names may be why the GPU has failed since. */
static void wait(Device *d) {
    const Cuda *c = d->cuda;
    const DeviceAssert *w = c->failure;
    const cudaError_t e = wait_for_streams(c);
    if (w->raised && w->message)
        fault(__FILE__, __LINE__, "a kernel's operands", w->message, w->value[0], w->value[1]);
    cuda_check(e, "waiting for the GPU", __FILE__, __LINE__);
    if (c->times) add_times(d);
}

static void *take(Device *d, size_t bytes) {
    const Cuda *c = use(d);
    void *p;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, c->stream));
    return p;
}

static void give(Device *d, void *p, size_t bytes) {
    (void)bytes;
    wait(d);
    CUDA_CHECK(cudaFree(p));
}

static void cuda_copy(Device *d, void *to, const void *from, size_t bytes) {
    const Cuda *c = use(d);
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->stream));
}

static size_t available(const Device *d) {
    size_t n, total;
    use(d);
    CUDA_CHECK(cudaMemGetInfo(&n, &total));
    return n;
}

static size_t memory(const Device *d) { return d->cuda->memory; }

static void describe(const Device *d, char *buffer, size_t n) {
    const Cuda *c = d->cuda;
    snprintf(buffer, n, "%s (GPU %d, sm_%d, %d multiprocessors, %.0f GiB)", c->name, c->ordinal,
             c->capability, c->multiprocessors, (double)c->memory / 0x1p30);
}

/* ---- scratch memory ---- */

static void keep_scratch(Cuda *c) {
    c->outgrown = mem_grow(c->outgrown, c->n_outgrown + 1, sizeof *c->outgrown);
    c->outgrown[c->n_outgrown++] = c->scratch;
}

static void free_outgrown(Cuda *c) {
    for (size_t i = 0; i < c->n_outgrown; i++) CUDA_CHECK(cudaFree(c->outgrown[i]));
    free(c->outgrown);
    c->outgrown = NULL, c->n_outgrown = 0;
}

void *cuda_scratch(const Device *of, size_t bytes) {
    Device *d = (Device *)of;
    Cuda *c = d->cuda;
    if (bytes <= c->scratch_bytes) return c->scratch;
    wait(d);
    if (c->graphs)
        keep_scratch(c);
    else
        CUDA_CHECK(cudaFree(c->scratch));
    c->scratch = take(d, bytes);
    CHECK(c->scratch, "the GPU has no %zu bytes left for a kernel's scratch memory", bytes);
    c->scratch_bytes = bytes;
    return c->scratch;
}

static void provide(Device *d, size_t scratch) { cuda_scratch(d, scratch); }

static void close_device(Device *d) {
    Cuda *c = use(d);
    wait(d);
    for (int i = 0; i < CUDA_LIBRARIES; i++)
        if (c->state[i].at) c->state[i].free(c->state[i].at);
    free_times(c->times);
    CUDA_CHECK(cudaFree(c->scratch));
    free_outgrown(c);
    CUDA_CHECK(cudaFreeHost(c->failure));
    CUDA_CHECK(cudaEventDestroy(c->fork));
    CUDA_CHECK(cudaStreamDestroy(c->beside));
    CUDA_CHECK(cudaStreamDestroy(c->stream));
    free(c);
}

/* ---- copies beside the kernels ---- */

static void *take_host(Device *d, size_t bytes) {
    void *p;
    use(d);
    if (cudaHostAlloc(&p, bytes, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return p;
}

static void give_host(Device *d, void *p, size_t bytes) {
    (void)bytes;
    wait(d);
    CUDA_CHECK(cudaFreeHost(p));
}

struct DeviceEvent {
    cudaEvent_t at; /* in the stream of copies */
};

static DeviceEvent *event(Device *d) {
    DeviceEvent *e = mem_zero(1, sizeof *e);
    use(d);
    CUDA_CHECK(cudaEventCreateWithFlags(&e->at, cudaEventDisableTiming));
    return e;
}

static void no_event(Device *d, DeviceEvent *e) {
    wait(d);
    CUDA_CHECK(cudaEventDestroy(e->at));
    free(e);
}

/* By way of events alone, so that recording one stream records the other with it. */
static void copy_beside(Device *d, void *to, const void *from, size_t bytes, DeviceEvent *done) {
    const Cuda *c = use(d);
    CUDA_CHECK(cudaEventRecord(c->fork, c->stream));
    CUDA_CHECK(cudaStreamWaitEvent(c->beside, c->fork, 0));
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->beside));
    CUDA_CHECK(cudaEventRecord(done->at, c->beside));
}

static void after(Device *d, DeviceEvent *e) { CUDA_CHECK(cudaStreamWaitEvent(use(d)->stream, e->at, 0)); }

/* ---- graphs ---- */

struct DeviceGraph {
    cudaGraphExec_t exec;
};

static void record(Device *d) {
    CUDA_CHECK(cudaStreamBeginCapture(use(d)->stream, cudaStreamCaptureModeThreadLocal));
}

static DeviceGraph *recorded(Device *d) {
    DeviceGraph *g = mem_zero(1, sizeof *g);
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamEndCapture(use(d)->stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&g->exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    d->cuda->graphs++;
    return g;
}

static void play(Device *d, DeviceGraph *g) { CUDA_CHECK(cudaGraphLaunch(g->exec, use(d)->stream)); }

static void forget(Device *d, DeviceGraph *g) {
    wait(d);
    CUDA_CHECK(cudaGraphExecDestroy(g->exec));
    if (!--d->cuda->graphs) free_outgrown(d->cuda);
    free(g);
}

/* ---- address space: the driver's interface, which the runtime finds ---- */

static void *entry(const char *name) {
    void *f = NULL;
    enum cudaDriverEntryPointQueryResult found;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &f, CUDART_VERSION, cudaEnableDefault, &found));
    CHECK(f, "the driver of the GPU has no %s", name);
    return f;
}

static void driver_check(CUresult e, const char *call) {
    CHECK(e == CUDA_SUCCESS, "%s: error %d of the driver", call, (int)e);
}

#define DRIVER_RESULT(name, version, ...) ((PFN_##name##version)entry(#name))(__VA_ARGS__)
#define DRIVER(name, version, ...)        driver_check(DRIVER_RESULT(name, version, __VA_ARGS__), #name)

enum { PAGE = 32 << 20 };

static void *reserve(Device *d, size_t bytes) {
    CUdeviceptr p;
    use(d);
    DRIVER(cuMemAddressReserve, _v10020, &p, (bytes + PAGE - 1) / PAGE * PAGE, 0, 0, 0);
    return (void *)(uintptr_t)p;
}

static size_t back(Device *d, char *base, size_t from, size_t to) {
    const Cuda *c = use(d);
    const CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->ordinal}};
    const CUmemAccessDesc access = {what.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t at = from;
    for (; at < to; at += PAGE) {
        const CUdeviceptr p = (CUdeviceptr)(uintptr_t)(base + at);
        CUmemGenericAllocationHandle page;
        const CUresult taken = DRIVER_RESULT(cuMemCreate, _v10020, &page, PAGE, &what, 0);
        if (taken == CUDA_ERROR_OUT_OF_MEMORY) break;
        driver_check(taken, "cuMemCreate");
        DRIVER(cuMemMap, _v10020, p, PAGE, 0, page, 0);
        DRIVER(cuMemRelease, _v10020, page); /* it lives as long as it is mapped */
        DRIVER(cuMemSetAccess, _v10020, p, PAGE, &access, 1);
    }
    CUDA_CHECK(cudaMemsetAsync(base + from, 0, at - from, c->stream));
    return at - from;
}

static void unreserve(Device *d, char *base, size_t bytes, size_t backed) {
    wait(d);
    for (size_t at = 0; at < backed; at += PAGE)
        DRIVER(cuMemUnmap, _v10020, (CUdeviceptr)(uintptr_t)(base + at), PAGE);
    DRIVER(cuMemAddressFree, _v10020, (CUdeviceptr)(uintptr_t)base, (bytes + PAGE - 1) / PAGE * PAGE);
}

/* ---- the device ---- */

static Err count_gpus(int *n) {
    cudaError_t e = cudaGetDeviceCount(n);
    if (e == cudaSuccess && *n == 0) e = cudaErrorNoDevice;
    if (e == cudaSuccess) return ERR_OK;
    return err_user("--device cuda: this machine shows no GPU: %s (nvidia-smi lists those that the driver "
                    "sees, CUDA_VISIBLE_DEVICES those that this process may use); leave --device out to run "
                    "on the CPU",
                    cudaGetErrorString(e));
}

Err device_cuda(int rank, Device **out) {
    static const DeviceBackend GPU = {.apart = true,
                                      .take = take,
                                      .give = give,
                                      .copy = cuda_copy,
                                      .wait = wait,
                                      .available = available,
                                      .memory = memory,
                                      .describe = describe,
                                      .provide = provide,
                                      .record = record,
                                      .recorded = recorded,
                                      .play = play,
                                      .forget = forget,
                                      .begin = begin,
                                      .end = end,
                                      .close = close_device,
                                      .take_host = take_host,
                                      .give_host = give_host,
                                      .event = event,
                                      .no_event = no_event,
                                      .copy_beside = copy_beside,
                                      .after = after,
                                      .reserve = reserve,
                                      .back = back,
                                      .unreserve = unreserve};
    struct cudaDeviceProp p;
    int n = 0;
    *out = NULL;
    ERR_RETURN(count_gpus(&n));
    Cuda *c = mem_zero(1, sizeof *c);
    Device *d = mem_zero(1, sizeof *d);
    *d = (Device){.kind = DEVICE_CUDA, .backend = &GPU, .n_devices = n, .cuda = c};
    c->ordinal = rank % n;
    use(d);
    CUDA_CHECK(cudaGetDeviceProperties(&p, c->ordinal));
    memcpy(c->name, p.name, sizeof c->name - 1);
    c->capability = 10 * p.major + p.minor;
    c->multiprocessors = p.multiProcessorCount;
    d->fp8_products = c->capability >= 89;
    d->fp8_block_products = c->capability == 90; /* as cuBLASLt has them */
    c->memory = p.totalGlobalMem;
    CUDA_CHECK(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&c->beside, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&c->fork, cudaEventDisableTiming));
    CUDA_CHECK(cudaHostAlloc((void **)&c->failure, sizeof *c->failure, cudaHostAllocMapped));
    memset(c->failure, 0, sizeof *c->failure);
    *out = d;
    return ERR_OK;
}
