/* Tensor core instructions (compute capability 8.0 or later) for 16-bit storage: PTX ISA, "mma", "ldmatrix",
 * "cp.async".
 *
 * Lane 4 * i + j of a warp holds columns 2 * j and 2 * j + 1 of rows i and i + 8 of a 16 x 8 accumulator
 * (c[0], c[1] and c[2], c[3]). In a 16 x 16 operand, the lane holds columns 2 * j, 2 * j + 1, 2 * j + 8 and 2 * j + 9
 * of the same two rows. Two adjacent accumulators, rounded to 16 bits, therefore form one operand. */
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/common.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies N = 8 or 16 bytes to shared memory if `there` is true; otherwise writes zeros. The copy is complete
 * after the same thread has called copies_arrived, and visible to other threads after a barrier. */
template <int N> __device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool there) {
    const int bytes = there ? N : 0;
    if (N == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(N), "r"(bytes)
                     : "memory");
}
/* Ends a group of a thread's copies. */
__device__ __forceinline__ void copies_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until at most `pending` groups of this thread's copies have not arrived. */
template <int pending> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
__device__ __forceinline__ void copies_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void put_shared(uint32_t to, const uint32_t (&x)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                 "r"(x[3])
                 : "memory");
}

__device__ __forceinline__ float get_shared(uint32_t from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ void get_shared(uint32_t from, float (&x)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from) : "memory");
}
__device__ __forceinline__ void put_shared(uint32_t to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}

/* Loads four 8 x 8 matrices. Each row has 16 bytes. Lanes 0-7 pass the addresses of the first matrix's rows,
 * lanes 8-15 pass the addresses of the second matrix's rows, and so on. Lane 4 * i + j receives columns 2 * j
 * and 2 * j + 1 of row i of each matrix. The transposed load returns rows 2 * j and 2 * j + 1 of column i. */
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&x)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

/* Stores four 8 x 8 matrices. Lanes hold elements and pass addresses as for load_matrices. Requires compute capability
 * 9.0. */
__device__ __forceinline__ void store_matrices(uint32_t at, const uint32_t (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* A storage type's name in PTX instructions. */
template <typename T> struct PtxName;
template <> struct PtxName<bf16> { static constexpr char name[] = "bf16"; };
template <> struct PtxName<fp16> { static constexpr char name[] = "f16"; };
template <> struct PtxName<__nv_fp8_e4m3> { static constexpr char name[] = "e4m3"; };
template <> struct PtxName<__nv_fp8_e5m2> { static constexpr char name[] = "e5m2"; };

/* Computes c [16,8] += a [16,16] b [16,8]. Lane 4 * i + j holds rows 2 * j and 2 * j + 1 (b0), and rows 2 * j + 8 and 2
 * * j + 9 (b1), of column i of b. */
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.%10.%10.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "C"(PtxName<T>::name));
}

/* Rounds two floats to 16 bits and packs them. `a` becomes the lower half. */
template <typename T> __device__ __forceinline__ uint32_t pack(float a, float b);
template <> __device__ __forceinline__ uint32_t pack<bf16>(float a, float b) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(a, b);
    return *(const uint32_t *)&x;
}
template <> __device__ __forceinline__ uint32_t pack<fp16>(float a, float b) {
    const __half2 x = __floats2half2_rn(a, b);
    return *(const uint32_t *)&x;
}

/* Returns 2^x with an error of at most 2 ulp. A subnormal result is replaced by 0. */
__device__ __forceinline__ float exp_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Replaces each score of two rows, in the order of multiply_add's accumulators, with 2^(score * unit - top).
 * `top` is the rounded product of the largest score so far and the unit. `shrink` becomes the factor by which
 * the sums so far must be multiplied. All scores of a row have the same `top`, so the rounding error of `top`
 * cancels in quotients. */
template <int N8>
__device__ __forceinline__ void softmax_tile(float (&score)[N8][4], float unit, float (&top)[2],
                                             float (&sum)[2], float (&shrink)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = -INFINITY, total = 0;
#pragma unroll
        for (int n = 0; n < N8; n++) most = fmaxf(most, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        most = fmaxf(top[h], most * unit);
        const float base = most == -INFINITY ? 0 : most;
        shrink[h] = exp_2(top[h] - base), top[h] = most;
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                score[n][i] = exp_2(fmaf(score[n][i], unit, -base));
                total += score[n][i];
            }
        sum[h] = fmaf(sum[h], shrink[h], total);
    }
}
