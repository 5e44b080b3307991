/* Programmatic dependent launch (PDL, sm_90): the blocks of a kernel become resident while earlier kernels
 * still run, which hides the launch latency. On older GPUs, a kernel's blocks start once the previous kernel
 * ends.
 *
 * A PDL kernel usually first allows the next kernel to start, so that several later kernels can be resident,
 * and then waits for the previous kernel. These rules apply:
 * - Before the wait, a thread must not access memory that an earlier kernel may still write, including gains and
 *   tables, nor write memory that an earlier kernel may still read. Before the wait, a kernel may read kernel
 *   arguments, and memory that no kernel has written since it was last copied (LinearAttr.steady, Pages).
 * - Kernels end in order: a kernel's wait returns only after the previous kernel ends. The code after a wait
 *   therefore runs after all earlier work, as does any later work without PDL (library kernels, copies,
 *   events). In every kernel, at least one thread must wait. */
#pragma once

#include "kernels/cuda/common.cuh"

/* Returns once the previous kernel has finished and its writes are visible. */
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}
/* Blocks of the next kernel can start once all blocks have called this function or have finished. */
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
/* Loads a cache line into the L2 cache. A prefetch is allowed before the wait, even if an earlier kernel
 * writes to the line. */
__device__ __forceinline__ void prefetch_line(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}
/* Allows the next kernel to start, then waits. Call this function at the start of a kernel. */
__device__ __forceinline__ void start_pdl() {
    allow_next_kernel();
    wait_for_kernel_before();
}

/* Returns true if the GPU and the compiled code support PDL. Code that was compiled for older architectures
 * does not. */
static inline bool waits_for_kernels(Cuda *gpu, const void *kernel) {
    if (!gpu->code) {
        cudaFuncAttributes a;
        CUDA_CHECK(cudaFuncGetAttributes(&a, kernel));
        gpu->code = a.ptxVersion;
    }
    return gpu->code >= 90;
}

/* Launches a kernel with PDL and `shared` bytes of shared memory. */
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
