/* A GPU, for kernels/cuda and the CUDA backend. No other code includes a CUDA header. */
#pragma once

#include <cuda_runtime_api.h>

#include "base/fault.h"
#include "tensor/device.h"

#define CUDA_CHECK(call) cuda_check(call, #call, __FILE__, __LINE__)

/* An error that a kernel detects in its operands. The first error becomes a fault at the next device_wait,
 * device_read or device_write. DeviceAssert is in memory that host and GPU share. */
typedef struct DeviceAssert {
    int raised;
    const char *message; /* a format with two %lld */
    long long value[2];
} DeviceAssert;

/* State that a file of kernels attaches to a device (handles, plans). The state is created on first use, by
 * the code in that file. */
typedef enum CudaLibrary { CUDA_GEMM, CUDA_ATTENTION, CUDA_LIBRARIES } CudaLibrary;
typedef struct CudaState {
    void *at; /* NULL until created */
    void (*free)(void *at);
} CudaState;

typedef struct Cuda {
    int ordinal, capability, multiprocessors; /* capability: 90 for sm_90 */
    int code; /* capability that the kernels in use were compiled for; 0 if it has not been queried yet */
    int warpgroups; /* whether they run code for sm_90a; -1 if it has not been queried yet */
    char name[64];
    size_t memory;
    bool has_neighbours; /* whether other ranks of this process use other GPUs */
    bool exports;        /* this field and the next one are those of DeviceSpec */
    GemmTuning gemm_tuning;
    int64_t gemm_sm_margin;
    cudaStream_t stream;
    cudaStream_t copies; /* stream of async copies */
    cudaEvent_t fork;    /* position in `stream` at which the last async copy began */
    DeviceAssert *failure;
    struct CudaTimes *times;              /* times of ops that may still run, or NULL if there is no profile
                                             yet */
    char *scratch;                        /* reserved addresses; the first scratch_backed bytes have memory */
    size_t scratch_bytes, scratch_backed; /* number of bytes that may be used, and number of bytes that have
                                             memory */
    void *encode_tiles;                   /* the driver's cuTensorMapEncodeTiled, or NULL until it is used */
    CudaState state[CUDA_LIBRARIES];
} Cuda;

/* The GPU of a device, or of a null device's target. NULL: no GPU. */
static inline Cuda *cuda_of(const Device *d) {
    if (d->kind == DEVICE_NULL && d->target) d = d->target;
    return d->kind == DEVICE_CUDA ? (Cuda *)d->state : NULL;
}
void cuda_check(cudaError_t, const char *call, const char *file, int line);
/* Returns memory for the duration of one kernel launch or library call, aligned to SPACE_ALIGN. The next call
 * of any kernel of this device may reuse it. It grows in place if it is too small; a graph cannot capture
 * this growth. */
void *cuda_scratch(const Device *, size_t bytes);
