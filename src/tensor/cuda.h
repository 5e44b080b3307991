/* The state of a GPU, for kernels/cuda and the CUDA backend. Only kernels/cuda and the CUDA backend include
 * CUDA headers. */
#pragma once

#include <cuda_runtime_api.h>

#include "base/fault.h"
#include "tensor/device.h"

#define CUDA_CHECK(call) cuda_check(call, #call, __FILE__, __LINE__)

/* An error that a kernel detects in its operands. The first error becomes a fault at the next device_wait,
 * device_read or device_write. DeviceAssert is in memory that host and GPU share. */
typedef struct DeviceAssert {
    int raised;
    const char *message; /* a format string with two %lld */
    long long value[2];
} DeviceAssert;

/* State that a kernel file attaches to a device (handles, plans). The kernel file creates the state on first
 * use. */
typedef enum CudaLibrary { CUDA_GEMM, CUDA_ATTENTION, CUDA_LIBRARIES } CudaLibrary;
typedef struct CudaState {
    void *at; /* NULL before the first use */
    void (*free)(void *at);
} CudaState;

typedef struct Cuda {
    int ordinal, capability, multiprocessors; /* the capability is 90 for sm_90 */
    int code;       /* the capability for which the kernels in use were compiled; 0 before the first query */
    int warpgroups; /* whether the kernels in use are code for sm_90a; -1 before the first query */
    char name[64];
    size_t memory;
    bool has_neighbours; /* whether other ranks of this process use other GPUs */
    /* `exports`, `gemm_tuning` and `gemm_sm_margin` have the same meaning as in DeviceSpec */
    bool exports;
    GemmTuning gemm_tuning;
    int64_t gemm_sm_margin;
    cudaStream_t stream;
    cudaStream_t copies; /* the stream of async copies */
    cudaEvent_t fork;    /* the position in `stream` at which the last async copy began */
    DeviceAssert *failure;
    /* [4 * multiprocessors] in GPU memory: for each group of a kernel's blocks, the number of blocks that
     * have arrived. A kernel that uses the counters resets them to 0. */
    unsigned *arrived;
    /* the times of ops that may still be running; NULL before the first profile */
    struct CudaTimes *times;
    /* reserved addresses, of which the first scratch_backed bytes have memory */
    char *scratch;
    /* number of usable bytes, and number of bytes that have memory (backed) */
    size_t scratch_bytes, scratch_backed;
    void *encode_tiles; /* the driver's cuTensorMapEncodeTiled; NULL before the first use */
    CudaState state[CUDA_LIBRARIES];
} Cuda;

/* Returns the GPU of a device, or of a null device's target, or NULL if there is none. */
static inline Cuda *cuda_of(const Device *d) {
    if (d->kind == DEVICE_NULL && d->target) d = d->target;
    return d->kind == DEVICE_CUDA ? (Cuda *)d->state : NULL;
}
void cuda_check(cudaError_t, const char *call, const char *file, int line);
/* Returns memory, aligned to SPACE_ALIGN, for the duration of one kernel launch or library call. A later call by
 * any kernel of this device may reuse the memory. If the scratch memory is too small, it grows in place; a graph cannot
 * capture this growth. */
void *cuda_scratch(const Device *, size_t bytes);
