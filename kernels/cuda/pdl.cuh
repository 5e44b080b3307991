/* Kernels whose blocks may take their places while the kernel before them still runs ("programmatic dependent
 * launch" of sm_90; elsewhere they start when that has ended), so that a kernel's launch takes no time of its
 * own.
 *
 * Such a kernel first of all waits, in all threads, then allows the next one:
 * - Before it waits it touches no memory that any kernel may write or still read, gains and tables included;
 *   its arguments are safe. So it does not matter that the kernel before still reads what this one writes.
 * - Kernels end in order: none ends before its wait, which is when the one before has ended. So who waits, or
 *   is launched without all this (libraries' kernels, copies, events), has all before it behind it. */
#ifndef ISOTRON_KERNELS_CUDA_PDL_CUH
#define ISOTRON_KERNELS_CUDA_PDL_CUH

#include "kernels/cuda/common.cuh"

/* The kernel before has ended and all it has written is visible. */
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}
/* When all blocks have called this, or ended, blocks of the next kernel may come. */
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
/* Both, at the start of a kernel. */
__device__ __forceinline__ void start_pdl() {
    wait_for_kernel_before();
    allow_next_kernel();
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

/* Launches such a kernel, with so many bytes of shared memory. */
template <typename... P, typename... A>
static inline void launch_pdl(const Call *c, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...),
                              A... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared;
    config.stream = stream_of(c);
    config.attrs = &early;
    config.numAttrs = waits_for_kernels(cuda_of(c->device), (const void *)kernel) ? 1 : 0;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

#endif
