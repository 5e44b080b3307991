#include "tensor/cuda.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/mem.h"
#include "tensor/backend.h"

void cuda_check(cudaError_t e, const char *call, const char *file, int line) {
    if (e != cudaSuccess) fault(file, line, call, "%s: %s", cudaGetErrorName(e), cudaGetErrorString(e));
}

/* Makes the device's GPU the current GPU of the calling thread. Ranks that share a process may use several
 * GPUs. */
static Cuda *cuda_use(const Device *d) {
    Cuda *c = cuda_of(d);
    CUDA_CHECK(cudaSetDevice(c->ordinal));
    return c;
}

/* ---- times of ops and spans ---- */

typedef struct CudaTimes {
    struct Timed {
        cudaEvent_t begin, end;
        OpProfile *to; /* the op's entry in the profile that was attached while the op ran */
    } * at;
    int64_t n, capacity; /* number of entries in use, and number of entries whose events exist */
} CudaTimes;

static struct Timed *cuda_next_timed(Cuda *c) {
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

struct DeviceStream {
    cudaStream_t at;
};

static void cuda_span_begin(Device *d, DeviceStream *s) {
    Cuda *c = cuda_use(d);
    CUDA_CHECK(cudaEventRecord(cuda_next_timed(c)->begin, s ? s->at : c->stream));
}

static void cuda_span_end(Device *d, DeviceStream *s, OpProfile *to) {
    Cuda *c = cuda_of(d);
    struct Timed *t = &c->times->at[c->times->n++];
    t->to = to;
    CUDA_CHECK(cudaEventRecord(t->end, s ? s->at : c->stream));
}

/* Names the op for profilers, and measures its time if a profile is attached. */
static void cuda_run(const OpDef *op, const Call *call) {
    Device *d = call->device;
    nvtxRangePushA(op->name);
    if (d->profile) cuda_span_begin(d, NULL);
    op->cuda(call);
    if (d->profile) cuda_span_end(d, NULL, &d->profile[op->number]);
    nvtxRangePop();
}

static size_t cuda_plan(const OpDef *op, const Call *c) { return op->cuda_plans ? op->cuda_plans(c) : 0; }

static const char *cuda_path(const OpDef *op, const Call *c) {
    return op->cuda_path ? op->cuda_path(c) : "own kernels";
}

static unsigned cuda_fp8_gemms(const Device *d) {
    const int capability = cuda_of(d)->capability;
    /* On sm_90, cuBLASLt supports block scales, and grouped_fp8_tiles.cu supports experts. */
    const unsigned more = capability == 90 ? FP8_GEMM_BLOCKS | FP8_GEMM_EXPERTS : 0;
    return capability >= 89 ? FP8_GEMM_WHOLE | more : 0;
}

/* Adds finished measurements to their profiles. Unfinished measurements are kept, because their stream may
 * still be running. */
static void cuda_add_times(Device *d) {
    CudaTimes *t = cuda_of(d)->times;
    int64_t kept = 0;
    for (int64_t i = 0; i < t->n; i++) {
        const struct Timed x = t->at[i];
        float ms;
        const cudaError_t state = cudaEventQuery(x.end);
        if (state == cudaErrorNotReady) {
            t->at[i] = t->at[kept];
            t->at[kept++] = x;
            continue;
        }
        CUDA_CHECK(state);
        CUDA_CHECK(cudaEventElapsedTime(&ms, x.begin, x.end));
        x.to->calls++;
        x.to->ns += (int64_t)((double)ms * 1e6);
    }
    t->n = kept;
}

static void cuda_free_times(CudaTimes *t) {
    for (int64_t i = 0; t && i < t->capacity; i++) {
        CUDA_CHECK(cudaEventDestroy(t->at[i].begin));
        CUDA_CHECK(cudaEventDestroy(t->at[i].end));
    }
    if (t) free(t->at);
    free(t);
}

/* ---- memory ---- */

static cudaError_t cuda_wait_for_streams(const Cuda *c) {
    cudaError_t e = cudaSetDevice(c->ordinal);
    if (e == cudaSuccess) e = cudaStreamSynchronize(c->stream);
    return e == cudaSuccess ? cudaStreamSynchronize(c->copies) : e;
}

/* Waits for the GPU. Checks the DeviceAssert first, because a later GPU failure may be a consequence of the
 * failed assertion. */
static void cuda_wait(Device *d) {
    const Cuda *c = cuda_of(d);
    const DeviceAssert *w = c->failure;
    const cudaError_t e = cuda_wait_for_streams(c);
    if (w->raised && w->message)
        fault(__FILE__, __LINE__, "a kernel's operands", w->message, w->value[0], w->value[1]);
    cuda_check(e, "waiting for the GPU", __FILE__, __LINE__);
    if (c->times) cuda_add_times(d);
}

static void cuda_copy(Device *d, void *to, const void *from, size_t bytes) {
    const Cuda *c = cuda_use(d);
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->stream));
}

static size_t cuda_available(const Device *d) {
    size_t n, total;
    cuda_use(d);
    CUDA_CHECK(cudaMemGetInfo(&n, &total));
    return n;
}

static size_t cuda_memory(const Device *d) { return cuda_of(d)->memory; }

static void cuda_describe(const Device *d, char *buffer, size_t n) {
    const Cuda *c = cuda_of(d);
    snprintf(buffer, n, "%s (GPU %d, sm_%d, %d multiprocessors, %.0f GiB)", c->name, c->ordinal,
             c->capability, c->multiprocessors, (double)c->memory / 0x1p30);
}

/* ---- async copies ---- */

static void *cuda_host_alloc(Device *d, size_t bytes) {
    void *p;
    cuda_use(d);
    if (cudaHostAlloc(&p, bytes, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return p;
}

static void cuda_host_free(Device *d, void *p, size_t bytes) {
    (void)bytes;
    cuda_wait(d);
    CUDA_CHECK(cudaFreeHost(p));
}

struct DeviceEvent {
    cudaEvent_t at;
};

static DeviceEvent *cuda_event_new(Device *d) {
    DeviceEvent *e = mem_zero(1, sizeof *e);
    cuda_use(d);
    CUDA_CHECK(cudaEventCreateWithFlags(&e->at, cudaEventDisableTiming));
    return e;
}

static void cuda_event_free(Device *d, DeviceEvent *e) {
    cuda_wait(d);
    CUDA_CHECK(cudaEventDestroy(e->at));
    free(e);
}

/* Starts an async copy. Only events order the two streams, so that a graph that captures one stream also captures the
 * other. */
static void cuda_copy_async(Device *d, void *to, const void *from, size_t bytes, DeviceEvent *done) {
    const Cuda *c = cuda_use(d);
    CUDA_CHECK(cudaEventRecord(c->fork, c->stream));
    CUDA_CHECK(cudaStreamWaitEvent(c->copies, c->fork, 0));
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->copies));
    CUDA_CHECK(cudaEventRecord(done->at, c->copies));
}

static void cuda_wait_event(Device *d, DeviceEvent *e) {
    CUDA_CHECK(cudaStreamWaitEvent(cuda_use(d)->stream, e->at, 0));
}

static bool cuda_event_happened(Device *d, DeviceEvent *e) {
    cuda_use(d);
    const cudaError_t state = cudaEventQuery(e->at);
    if (state != cudaErrorNotReady) CUDA_CHECK(state);
    return state == cudaSuccess;
}

/* ---- streams ---- */

static DeviceStream *cuda_stream_new(Device *d) {
    DeviceStream *s = mem_zero(1, sizeof *s);
    int lowest, highest;
    cuda_use(d);
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&s->at, cudaStreamNonBlocking, highest));
    return s;
}

static void cuda_stream_free(Device *d, DeviceStream *s) {
    cuda_use(d);
    CUDA_CHECK(cudaStreamSynchronize(s->at));
    CUDA_CHECK(cudaStreamDestroy(s->at));
    free(s);
}

static void *cuda_stream_handle(DeviceStream *s) { return s->at; }

static void cuda_stream_follow(Device *d, DeviceStream *s) {
    const Cuda *c = cuda_use(d);
    CUDA_CHECK(cudaEventRecord(c->fork, c->stream));
    CUDA_CHECK(cudaStreamWaitEvent(s->at, c->fork, 0));
}

static void cuda_stream_record(Device *d, DeviceStream *s, DeviceEvent *e) {
    cuda_use(d);
    CUDA_CHECK(cudaEventRecord(e->at, s->at));
}

/* ---- graphs ---- */

struct DeviceGraph {
    cudaGraphExec_t exec;
};

static void cuda_graph_begin(Device *d) {
    CUDA_CHECK(cudaStreamBeginCapture(cuda_use(d)->stream, cudaStreamCaptureModeThreadLocal));
}

static DeviceGraph *cuda_graph_end(Device *d) {
    DeviceGraph *g = mem_zero(1, sizeof *g);
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamEndCapture(cuda_use(d)->stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&g->exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return g;
}

static void cuda_graph_launch(Device *d, DeviceGraph *g) {
    CUDA_CHECK(cudaGraphLaunch(g->exec, cuda_use(d)->stream));
}

static void cuda_graph_free(Device *d, DeviceGraph *g) {
    cuda_wait(d);
    CUDA_CHECK(cudaGraphExecDestroy(g->exec));
    free(g);
}

/* ---- address space: driver functions, looked up through the runtime ---- */

static void *cuda_driver_entry(const char *name) {
    void *f = NULL;
    enum cudaDriverEntryPointQueryResult found;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &f, CUDART_VERSION, cudaEnableDefault, &found));
    CHECK(f, "the GPU driver has no function %s", name);
    return f;
}

static void cuda_driver_check(CUresult e, const char *call) {
    CHECK(e == CUDA_SUCCESS, "%s: the driver returned error %d", call, (int)e);
}

#define DRIVER_RESULT(name, version, ...) ((PFN_##name##version)cuda_driver_entry(#name))(__VA_ARGS__)
#define DRIVER(name, version, ...)        cuda_driver_check(DRIVER_RESULT(name, version, __VA_ARGS__), #name)

enum { PAGE = 32 << 20 };

static void *cuda_reserve(Device *d, size_t bytes) {
    CUdeviceptr p;
    cuda_use(d);
    DRIVER(cuMemAddressReserve, _v10020, &p, (bytes + PAGE - 1) / PAGE * PAGE, 0, 0, 0);
    return (void *)(uintptr_t)p;
}

/* Allocates zeroed memory for reserved addresses. Returns false if there is not enough memory. */
static bool cuda_map(const Cuda *c, char *at, size_t bytes) {
    const CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = c->exports
                                                                  ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                                  : CU_MEM_HANDLE_TYPE_NONE,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->ordinal}};
    const CUmemAccessDesc access = {what.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUdeviceptr p = (CUdeviceptr)(uintptr_t)at;
    CUmemGenericAllocationHandle memory;
    const CUresult taken = DRIVER_RESULT(cuMemCreate, _v10020, &memory, bytes, &what, 0);
    if (taken == CUDA_ERROR_OUT_OF_MEMORY) return false;
    cuda_driver_check(taken, "cuMemCreate");
    DRIVER(cuMemMap, _v10020, p, bytes, 0, memory, 0);
    DRIVER(cuMemRelease, _v10020, memory); /* the memory remains allocated while it is mapped */
    DRIVER(cuMemSetAccess, _v10020, p, bytes, &access, 1);
    CUDA_CHECK(cudaMemsetAsync(at, 0, bytes, c->stream));
    return true;
}

static size_t cuda_commit(Device *d, char *base, size_t from, size_t to) {
    const Cuda *c = cuda_use(d);
    size_t at = from;
    while (at < to && cuda_map(c, base + at, PAGE)) at += PAGE;
    return at - from;
}

static void cuda_unreserve(Device *d, char *base, size_t bytes, size_t committed) {
    cuda_wait(d);
    for (size_t at = 0; at < committed; at += PAGE)
        DRIVER(cuMemUnmap, _v10020, (CUdeviceptr)(uintptr_t)(base + at), PAGE);
    DRIVER(cuMemAddressFree, _v10020, (CUdeviceptr)(uintptr_t)base, (bytes + PAGE - 1) / PAGE * PAGE);
}

/* ---- blocks ---- */

enum { GRANULE = 2 << 20 }; /* the unit in which the driver allocates memory */

/* Returns whether cudaMalloc must be avoided. cudaMalloc and cudaFree may wait for all GPUs of this process. If
 * NCCL on one of these GPUs waits for this rank, calls to cudaMalloc and cudaFree deadlock. */
static bool cuda_avoids_malloc(const Cuda *c, size_t bytes) {
    return c->has_neighbours || c->exports || bytes >= GRANULE;
}

static size_t cuda_granules(size_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }

static void *cuda_alloc_mapped(Device *d, size_t bytes) {
    char *p = cuda_reserve(d, bytes);
    if (cuda_map(cuda_of(d), p, cuda_granules(bytes))) return p;
    cuda_unreserve(d, p, bytes, 0);
    return NULL;
}

static void *cuda_alloc(Device *d, size_t bytes) {
    const Cuda *c = cuda_use(d);
    void *p;
    if (cuda_avoids_malloc(c, bytes)) return cuda_alloc_mapped(d, bytes);
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, c->stream));
    return p;
}

static void cuda_unmap(char *at, size_t bytes) {
    DRIVER(cuMemUnmap, _v10020, (CUdeviceptr)(uintptr_t)at, bytes);
}

static void cuda_free(Device *d, void *p, size_t bytes) {
    cuda_wait(d);
    if (cuda_avoids_malloc(cuda_of(d), bytes)) {
        cuda_unmap(p, cuda_granules(bytes));
        cuda_unreserve(d, p, bytes, 0);
    } else {
        CUDA_CHECK(cudaFree(p));
    }
}

/* ---- scratch memory ---- */

void *cuda_scratch(const Device *of, size_t bytes) {
    Device *d = (Device *)of;
    Cuda *c = cuda_of(d);
    if (bytes <= c->scratch_bytes) return c->scratch;
    CHECK(!d->recording, "a graph needs %s of scratch memory, but no plan has reserved it",
          bytes_text((double)bytes).s);
    if (!c->scratch) c->scratch = cuda_reserve(d, c->memory);
    const size_t backed = cuda_granules(bytes);
    cuda_use(d);
    CHECK(
        backed <= c->scratch_backed ||
            (backed <= c->memory && cuda_map(c, c->scratch + c->scratch_backed, backed - c->scratch_backed)),
        "the GPU does not have %s of free memory for a kernel's scratch memory", bytes_text((double)bytes).s);
    c->scratch_bytes = bytes;
    if (backed > c->scratch_backed) c->scratch_backed = backed;
    return c->scratch;
}

static void cuda_reserve_scratch(Device *d, size_t scratch) { cuda_scratch(d, scratch); }

/* ---- the device ---- */

static Err cuda_count_gpus(int *n) {
    cudaError_t e = cudaGetDeviceCount(n);
    if (e == cudaSuccess && *n == 0) e = cudaErrorNoDevice;
    if (e == cudaSuccess) return ERR_OK;
    return err_user(
        "--device cuda: this machine has no usable GPU: %s (nvidia-smi lists the GPUs that the driver finds, "
        "and CUDA_VISIBLE_DEVICES selects those that this process may use); remove --device to run on the "
        "CPU",
        cudaGetErrorString(e));
}

static bool lacks_peers(int ordinal, int n) {
    int can = 1;
    for (int i = 0; i < n && can; i++)
        if (i != ordinal) CUDA_CHECK(cudaDeviceCanAccessPeer(&can, ordinal, i));
    return !can;
}

static Err cuda_open(const DeviceSpec *spec, Device *d) {
    struct cudaDeviceProp p;
    ERR_RETURN(cuda_count_gpus(&d->n_devices));
    Cuda *c = d->state = mem_zero(1, sizeof *c);
    c->ordinal = spec->rank % d->n_devices;
    int mode;
    CUDA_CHECK(cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, c->ordinal));
    d->exclusive = mode == cudaComputeModeExclusiveProcess;
    c->gemm_tuning = spec->gemm_tuning, c->gemm_sm_margin = spec->gemm_sm_margin;
    c->has_neighbours = spec->has_neighbours && d->n_devices > 1;
    c->exports = spec->exports;
    cuda_use(d);
    CUDA_CHECK(cudaGetDeviceProperties(&p, c->ordinal));
    memcpy(c->name, p.name, sizeof c->name - 1);
    memcpy(d->id, p.uuid.bytes, sizeof d->id);
    d->lacks_peers = lacks_peers(c->ordinal, d->n_devices);
    c->capability = 10 * p.major + p.minor;
    c->warpgroups = -1;
    c->multiprocessors = p.multiProcessorCount;
    c->memory = p.totalGlobalMem;
    CUDA_CHECK(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&c->copies, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&c->fork, cudaEventDisableTiming));
    CUDA_CHECK(cudaHostAlloc((void **)&c->failure, sizeof *c->failure, cudaHostAllocMapped));
    memset(c->failure, 0, sizeof *c->failure);
    const size_t bytes = 4 * (size_t)c->multiprocessors * sizeof *c->arrived;
    CUDA_CHECK(cudaMalloc((void **)&c->arrived, bytes));
    CUDA_CHECK(cudaMemsetAsync(c->arrived, 0, bytes, c->stream));
    return ERR_OK;
}

static void cuda_close(Device *d) {
    Cuda *c = cuda_use(d);
    cuda_wait(d);
    for (int i = 0; i < CUDA_LIBRARIES; i++)
        if (c->state[i].at) c->state[i].free(c->state[i].at);
    if (c->scratch) {
        cuda_unmap(c->scratch, c->scratch_backed);
        /* cuda_unreserve waits for the GPU, and therefore also adds all measured times to their profiles */
        cuda_unreserve(d, c->scratch, c->memory, 0);
    }
    cuda_free_times(c->times);
    CUDA_CHECK(cudaFree(c->arrived));
    CUDA_CHECK(cudaFreeHost(c->failure));
    CUDA_CHECK(cudaEventDestroy(c->fork));
    CUDA_CHECK(cudaStreamDestroy(c->copies));
    CUDA_CHECK(cudaStreamDestroy(c->stream));
    free(c);
}

const DeviceBackend device_cuda_backend = {.discrete = true,
                                           .open = cuda_open,
                                           .close = cuda_close,
                                           .run = cuda_run,
                                           .plan = cuda_plan,
                                           .path = cuda_path,
                                           .fp8_gemms = cuda_fp8_gemms,
                                           .alloc = cuda_alloc,
                                           .free = cuda_free,
                                           .copy = cuda_copy,
                                           .wait = cuda_wait,
                                           .available = cuda_available,
                                           .memory = cuda_memory,
                                           .describe = cuda_describe,
                                           .reserve_scratch = cuda_reserve_scratch,
                                           .graph_begin = cuda_graph_begin,
                                           .graph_end = cuda_graph_end,
                                           .graph_launch = cuda_graph_launch,
                                           .graph_free = cuda_graph_free,
                                           .host_alloc = cuda_host_alloc,
                                           .host_free = cuda_host_free,
                                           .event_new = cuda_event_new,
                                           .event_free = cuda_event_free,
                                           .wait_event = cuda_wait_event,
                                           .event_happened = cuda_event_happened,
                                           .copy_async = cuda_copy_async,
                                           .stream_new = cuda_stream_new,
                                           .stream_free = cuda_stream_free,
                                           .stream_handle = cuda_stream_handle,
                                           .stream_follow = cuda_stream_follow,
                                           .stream_record = cuda_stream_record,
                                           .span_begin = cuda_span_begin,
                                           .span_end = cuda_span_end,
                                           .reserve = cuda_reserve,
                                           .commit = cuda_commit,
                                           .unreserve = cuda_unreserve};
