/* Products on tensor cores for the scans of Mamba-2 and Gated DeltaNet.
 *
 * The inputs of a scan are bf16 numbers. Tensor cores multiply them exactly, and add in float. The other operands are
 * floats: states, weights of pairs of positions, and gradients of both. Rounding to bf16 would change them by up to
 * 2^-9, and a state passes its error on to all later chunks. A float x is therefore split into high = round(x) and
 * low = round(x - high), so that |x - high - low| <= 2^-18 |x|. A product with a split operand needs two instructions.
 * A product of two split operands needs three, because low low, at most 2^-18 of the product, is omitted.
 *
 * fp16 cannot replace bf16, because it has no numbers above 65504. */
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/mamba/mamba.cuh"

/* ---- host code ---- */

/* Returns true if the GPU has the memory of a block that these kernels need, and rows can be copied in pieces of 16
 * bytes. NULL: the call has no such operand. */
static inline bool tiles_can(const Call *c, const Tensor *x, const Tensor *y, const Tensor *z) {
    const auto copies = [](const Tensor *t) { return !t || rows_are_aligned(t); };
    return has_warpgroups(cuda_of(c->device)) && x->dtype == BF16 && tensor_count(x) && copies(x) &&
           copies(y) && copies(z);
}

template <typename T> struct Same { typedef T type; };
/* Launches blocks of THREADS threads with `room` bytes of shared memory. */
template <typename... Args>
static void launch_tiles(const Call *c, void (*kernel)(Args...), int64_t blocks, size_t room,
                         typename Same<Args>::type... args) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room));
    kernel<<<(unsigned)blocks, THREADS, room, stream_of(c)>>>(args...);
    LAUNCHED();
}

/* ---- split operands ---- */

/* An operand of 16 x 16 elements in the order of multiply_add (mma.cuh). */
struct Split {
    uint32_t high[4], low[4];
};

__device__ __forceinline__ float lower(uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float upper(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

__device__ __forceinline__ void split(uint32_t &high, uint32_t &low, float a, float b) {
    high = pack<bf16>(a, b);
    low = pack<bf16>(a - lower(high), b - upper(high));
}
/* Splits two adjacent accumulators. */
__device__ __forceinline__ void split(Split &x, const float (*c)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) split(x.high[i], x.low[i], c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1]);
}

/* Adds a product to two adjacent accumulators. */
__device__ __forceinline__ void multiply_add(float (*c)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    multiply_add<bf16>(c[0], a, b[0], b[1]), multiply_add<bf16>(c[1], a, b[2], b[3]);
}
__device__ __forceinline__ void multiply_add(float (*c)[4], const Split &a, const uint32_t (&b)[4]) {
    multiply_add(c, a.high, b), multiply_add(c, a.low, b);
}
__device__ __forceinline__ void multiply_add(float (*c)[4], const uint32_t (&a)[4], const Split &b) {
    multiply_add(c, a, b.high), multiply_add(c, a, b.low);
}
__device__ __forceinline__ void multiply_add(float (*c)[4], const Split &a, const Split &b) {
    multiply_add(c, a.high, b), multiply_add(c, a.low, b.high);
}

/* ---- operands in shared memory ---- */

/* Load operand a of rows from m, or b of columns from n, from the lines of a tile, or from its columns. Layout::at
 * returns the address of an element whose column is a multiple of 8. In memory, the tile of low follows that of high
 * after `apart` bytes. */
template <typename Layout>
__device__ __forceinline__ void a_lines(uint32_t (&x)[4], uint32_t tile, int m, int k) {
    const int lane = threadIdx.x % 32;
    load_matrices(x, Layout::at(tile, m + lane % 16, k + lane / 16 * 8));
}
template <typename Layout>
__device__ __forceinline__ void a_lines(Split &x, uint32_t tile, uint32_t apart, int m, int k) {
    a_lines<Layout>(x.high, tile, m, k), a_lines<Layout>(x.low, tile + apart, m, k);
}
template <typename Layout>
__device__ __forceinline__ void a_columns(uint32_t (&x)[4], uint32_t tile, int m, int k) {
    const int lane = threadIdx.x % 32;
    load_transposed(x, Layout::at(tile, k + lane % 8 + lane / 16 * 8, m + lane / 8 % 2 * 8));
}
template <typename Layout>
__device__ __forceinline__ void a_columns(Split &x, uint32_t tile, uint32_t apart, int m, int k) {
    a_columns<Layout>(x.high, tile, m, k), a_columns<Layout>(x.low, tile + apart, m, k);
}
template <typename Layout>
__device__ __forceinline__ void b_lines(uint32_t (&x)[4], uint32_t tile, int n, int k) {
    const int lane = threadIdx.x % 32;
    load_matrices(x, Layout::at(tile, n + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
}
template <typename Layout>
__device__ __forceinline__ void b_lines(Split &x, uint32_t tile, uint32_t apart, int n, int k) {
    b_lines<Layout>(x.high, tile, n, k), b_lines<Layout>(x.low, tile + apart, n, k);
}
template <typename Layout>
__device__ __forceinline__ void b_columns(uint32_t (&x)[4], uint32_t tile, int n, int k) {
    const int lane = threadIdx.x % 32;
    load_transposed(x, Layout::at(tile, k + lane % 16, n + lane / 16 * 8));
}
template <typename Layout>
__device__ __forceinline__ void b_columns(Split &x, uint32_t tile, uint32_t apart, int n, int k) {
    b_columns<Layout>(x.high, tile, n, k), b_columns<Layout>(x.low, tile + apart, n, k);
}

/* Stores the transposes of four 8 x 8 matrices. Lanes hold elements and pass addresses as for load_transposed (mma.cuh).
 * Requires compute capability 9.0, like has_warpgroups. */
__device__ __forceinline__ void store_transposed(uint32_t at, const uint32_t (&x)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
#endif
}

/* Returns the sum over the four lanes that hold a row of an accumulator. */
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
