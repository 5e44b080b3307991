/* Stores vectors with asm statements, because the compiler cannot split them. The compiler may split an
 * ordinary vector store into element stores if a kernel contains several vector stores, or also stores single
 * elements. */
#pragma once

#include <string.h>

#include "kernels/cuda/common.cuh"

__device__ __forceinline__ void store_16(void *at, uint4 x) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(at)), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

__device__ __forceinline__ void store_8(void *at, uint2 x) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at)), "r"(x.x), "r"(x.y)
                 : "memory");
}

/* Stores a value whose size is a multiple of 16 bytes at an aligned address. */
template <typename V> __device__ __forceinline__ void store_whole(V *at, const V &x) {
    static_assert(sizeof(V) % 16 == 0, "the size must be a multiple of 16 bytes");
#pragma unroll
    for (int i = 0; i < (int)(sizeof(V) / 16); i++) {
        uint4 piece;
        memcpy(&piece, (const char *)&x + 16 * i, 16);
        store_16((char *)at + 16 * i, piece);
    }
}
