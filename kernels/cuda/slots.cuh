/* Slots in shared memory for 16-byte vectors that are copied asynchronously from global memory. Each thread
 * waits (cuda_pipeline.h) only for the copies that it started, and reads only the data of these copies. */
#pragma once

#include <cuda_pipeline.h>

#include "kernels/cuda/vectors.cuh"

/* A pool of slots. The shared-memory address of the slots is stored as an integer. If the address were stored
 * as a pointer, the compiler would recompute it for each access, which takes longer than the access. All
 * threads of a warp must run the constructor. */
template <typename V> struct BucketPool {
    uint32_t first;

    __device__ __forceinline__ BucketPool(const void *shared)
        : first(__shfl_sync(0xffffffffu, (uint32_t)__cvta_generic_to_shared(shared), 0)) {}
    __device__ __forceinline__ V operator[](int i) const {
        static_assert(sizeof(V) == 16, "a slot must have 16 bytes");
        V v;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.word(0)), "=r"(v.word(1)), "=r"(v.word(2)), "=r"(v.word(3))
                     : "r"(first + 16 * i)
                     : "memory");
        return v;
    }
    __device__ __forceinline__ void put(int i, const V &v) const {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     :
                     : "r"(first + 16 * i), "r"(v.word(0)), "r"(v.word(1)), "r"(v.word(2)), "r"(v.word(3))
                     : "memory");
    }
    /* Starts a copy to slot i, as part of the group that the next __pipeline_commit closes. */
    __device__ __forceinline__ void fetch(int i, const void *x) const {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :
                     : "r"(first + 16 * i), "l"(__cvta_generic_to_global(x))
                     : "memory");
    }
};
