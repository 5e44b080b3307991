/* A kernel whose blocks may take their places, and read what no kernel before changes, while the kernel
 * before it still runs ("programmatic dependent launch" of sm_90; elsewhere it starts when that has ended).
 */
#ifndef ISOTRON_KERNELS_CUDA_EARLY_CUH
#define ISOTRON_KERNELS_CUDA_EARLY_CUH

#include "kernels/cuda/common.cuh"

/* By the kernel before: when all its blocks have called this, or ended, blocks of the next one may come. */
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
/* By every thread of every block of the next one, before it touches what the kernel before writes: that has
 * ended and all it has written is visible. A kernel behind the next one may rely on both. */
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

/* Whether the GPU runs code that waits: of a build for older ones it runs theirs, which does not. */
static inline bool waits_for_kernels(Cuda *gpu, const void *kernel) {
    if (!gpu->code) {
        cudaFuncAttributes a;
        CUDA_CHECK(cudaFuncGetAttributes(&a, kernel));
        gpu->code = a.ptxVersion;
    }
    return gpu->code >= 90;
}

/* Launches such a kernel, on the stream of the kernel before. */
template <typename... P, typename... A>
static inline void launch_early(const Call *c, dim3 grid, dim3 block, void (*kernel)(P...), A... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.stream = stream_of(c);
    config.attrs = &early;
    config.numAttrs = waits_for_kernels(c->device->cuda, (const void *)kernel) ? 1 : 0;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

#endif
