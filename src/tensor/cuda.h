/* A GPU, for kernels/cuda: nothing else sees a CUDA header. */
#ifndef ISOTRON_TENSOR_CUDA_H
#define ISOTRON_TENSOR_CUDA_H

#include <cuda_runtime_api.h>

#include "base/fault.h"
#include "tensor/device.h"

#define CUDA_CHECK(call) cuda_check(call, #call, __FILE__, __LINE__)

/* What a kernel finds wrong in its operands, and cannot say itself: the first one is a fault at the next
 * device_wait, device_read or device_write. In memory that host and GPU share. */
typedef struct DeviceAssert {
    int raised;
    const char *message; /* with two %lld */
    long long value[2];
} DeviceAssert;

/* State that a file of kernels keeps with a device (handles, plans): made by it when it is first needed. */
typedef enum CudaLibrary { CUDA_GEMM, CUDA_ATTENTION, CUDA_LIBRARIES } CudaLibrary;
typedef struct CudaState {
    void *at; /* NULL until it is made */
    void (*free)(void *at);
} CudaState;

typedef struct Cuda {
    int ordinal, capability, multiprocessors; /* capability: 90 for sm_90 */
    int code; /* for which capability the kernels were compiled that it runs; 0: nobody has asked */
    char name[64];
    size_t memory;
    GemmTuning gemm_tuning; /* as in DeviceSpec */
    int64_t gemm_sm_margin;
    cudaStream_t stream;
    cudaStream_t copies; /* of async copies, */
    cudaEvent_t fork;    /* and where the last of them began in `stream` */
    DeviceAssert *failure;
    struct CudaTimes *times; /* of ops that have not been waited for; NULL: no profile yet */
    void *scratch;
    size_t scratch_bytes;
    int graphs;      /* that there are, */
    void **outgrown; /* [n_outgrown] and former scratch memory, which they may use */
    size_t n_outgrown;
    CudaState state[CUDA_LIBRARIES];
} Cuda;

/* The GPU of a device, or the GPU that a null device plans for. NULL: it is neither. */
static inline Cuda *cuda_of(const Device *d) {
    if (d->kind == DEVICE_NULL && d->target) d = d->target;
    return d->kind == DEVICE_CUDA ? (Cuda *)d->state : NULL;
}
void cuda_check(cudaError_t, const char *call, const char *file, int line);
/* Memory for the length of one kernel launch or library call, SPACE_ALIGN-aligned; the next call of any
 * kernel of this device may use it again. Grown if it is too small, which no graph may capture; what it was
 * before is kept as long as there are graphs. */
void *cuda_scratch(const Device *, size_t bytes);

#endif
