/* Instructions of sm_90a: copies of tiles to shared memory by the copy engine (PTX ISA:
 * cp.async.bulk.tensor), barriers that count the copied bytes (mbarrier), and matrix products of 64 rows by a
 * warpgroup (wgmma). Tiles in shared memory begin at multiples of 1024 bytes. A row of a tile is called a
 * line and has 128 bytes; its 16-byte units are permuted according to the line's number (128-byte
 * swizzle). */
#pragma once

#include <cuda.h>

#include "kernels/cuda/mma.cuh"

enum { LINE_BYTES = 128, LINE = 64 /* 16-bit elements */, GROUP_THREADS = 128 };

/* ---- host code ---- */

/* gemm_invariant.cu. Returns true if the GPU runs code for sm_90a. */
bool has_warpgroups(Cuda *);

/* Describes a matrix [planes, rows, columns] of 16-bit or 8-bit elements. A tile covers LINE_BYTES bytes of
 * columns, `box` rows and one plane. Strides are multiples of 16 bytes. Elements outside the matrix are read
 * as zeros. The L2 cache must not read larger pieces than the copies request (promotion): on an H200, promotion
 * to 256 bytes makes copies of weights 8 % slower. */
static inline CUtensorMap tile_map(const Call *c, const Tensor *x, int64_t rows, int64_t columns,
                                   int64_t row_stride, int64_t planes, int64_t plane_stride, int box) {
    typedef CUresult Encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                            const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    Cuda *gpu = cuda_of(c->device);
    if (!gpu->encode_tiles) {
        enum cudaDriverEntryPointQueryResult found;
        CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &gpu->encode_tiles,
                                                    CUDART_VERSION, cudaEnableDefault, &found));
        CHECK(gpu->encode_tiles, "the GPU driver has no function cuTensorMapEncodeTiled");
    }
    CUtensorMap map;
    const cuuint64_t size = dtype_size((DType)x->dtype);
    const cuuint64_t dim[] = {(cuuint64_t)columns, (cuuint64_t)planes, (cuuint64_t)rows},
                     stride[] = {(cuuint64_t)plane_stride * size, (cuuint64_t)row_stride * size};
    const cuuint32_t tile[] = {(cuuint32_t)(LINE_BYTES / size), 1, (cuuint32_t)box}, step[] = {1, 1, 1};
    const CUresult e = ((Encode *)gpu->encode_tiles)(
        &map,
        size == 1          ? CU_TENSOR_MAP_DATA_TYPE_UINT8
        : x->dtype == F32  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
        : x->dtype == BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                           : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        3, x->data, dim, stride, tile, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    CHECK(e == CUDA_SUCCESS, "cuTensorMapEncodeTiled: the driver returned error %d", (int)e);
    return map;
}

/* ---- barriers and copies ---- */

__device__ __forceinline__ void barrier_init(uint32_t at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
/* Call this function after initializing the barriers, and before the block synchronizes. */
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
/* Arrives at the barrier, and also makes the barrier wait until this number of bytes has been copied. */
__device__ __forceinline__ void barrier_expect(uint32_t at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
/* Arrives at the barrier with the same address in the given block of the cluster. */
__device__ __forceinline__ void barrier_arrive_in(uint32_t at, uint32_t block) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(at),
                 "r"(block)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t phase) {
    uint32_t done;
    do
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(at), "r"(phase)
                     : "memory");
    while (!done);
}
/* A position in a ring of stages. The phase of the barriers changes in each round. */
template <int STAGES> struct Ring {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};
/* Returns the policy by which the L2 cache keeps a copied tile. If `once` is true, the tile's cache lines are
 * the first to be evicted. */
__device__ __forceinline__ uint64_t cache_policy(bool once) {
    uint64_t policy;
    if (once)
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    else
        asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
    return policy;
}
/* Copies the tile that begins at the given column, plane and row. */
__device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column,
                                          int plane, int row) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(column), "r"(plane), "r"(row), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column,
                                          int plane, int row, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(column), "r"(plane), "r"(row), "r"(barrier), "l"(policy)
                 : "memory");
}
/* Copies the tile to the same address in both blocks of a cluster, and arrives at the same barrier of both. */
__device__ __forceinline__ void copy_tile_to_both(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                                  int column, int plane, int row) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(column), "r"(plane), "r"(row), "r"(barrier), "h"((uint16_t)3)
        : "memory");
}

/* Copies `bytes` consecutive bytes. Addresses and `bytes` are multiples of 16. */
__device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Makes this thread's writes to shared memory visible to later copies and products. */
__device__ __forceinline__ void show_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Copies a tile from shared memory to a matrix or, if `add` is true, adds it. Elements outside the matrix are left out.
 * copies_begun_out ends a group of a thread's copies. */
__device__ __forceinline__ void copy_tile_out(const CUtensorMap *map, uint32_t from, int column, int plane,
                                              int row, bool add) {
    if (add)
        asm volatile(
            "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::
                "l"(map),
            "r"(from), "r"(column), "r"(plane), "r"(row)
            : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
            "r"(from), "r"(column), "r"(plane), "r"(row)
            : "memory");
}
__device__ __forceinline__ void copies_begun_out() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Returns when this thread's copies have read shared memory. */
__device__ __forceinline__ void copies_have_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/* Returns when this thread's copies have been written. */
__device__ __forceinline__ void copies_end_out() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Waits for N threads, a multiple of 32, that use this barrier. __syncthreads uses barrier 0. */
template <int N> __device__ __forceinline__ void threads_wait(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(N) : "memory");
}
/* Waits for all threads of the cluster. */
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* Returns true in one lane of a warp. All lanes of the warp must call this function. Copies by the elected lane
 * are much faster, because the compiler can keep the copies' arguments in uniform registers. */
__device__ __forceinline__ bool is_elected() {
    uint32_t yes;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(yes));
    return yes;
}

/* ---- products ---- */

/* Returns x of lane 0 to all lanes of a warp. The compiler can therefore keep the result in a uniform
 * register, as descriptors require. */
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

/* Returns the descriptor of a tile. If `along` is true, each line contains consecutive terms of the sum. If
 * `along` is false, each line contains 64 consecutive columns of the result, and the lines for the next 64
 * columns begin after `apart` bytes. Groups of eight lines are groups_apart bytes apart. The descriptor of an
 * address n bytes later is larger by n / 16. */
template <bool along>
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t at, int apart = 0,
                                                    int groups_apart = 8 * LINE_BYTES) {
    const uint64_t leading = along ? 1 : (uint64_t)(apart / 16), stride = (uint64_t)(groups_apart / 16);
    return (uint64_t)(at >> 4 & 0x3fff) | leading << 16 | stride << 32 | (uint64_t)1 << 62;
}

/* The accumulators of a thread: [n][0] and [n][1] are columns 8 n + lane % 4 * 2 + 0, 1 of row 16 * warp +
 * lane / 4. [n][2] and [n][3] are the same columns, eight rows below. */
#define SUM(q)    "+f"(s[q][0]), "+f"(s[q][1]), "+f"(s[q][2]), "+f"(s[q][3])
#define SUM_4(q)  SUM(q), SUM(q + 1), SUM(q + 2), SUM(q + 3)
#define SUM_6(q)  SUM_4(q), SUM(q + 4), SUM(q + 5)
#define SUM_8(q)  SUM_4(q), SUM_4(q + 4)
#define SUM_16(q) SUM_8(q), SUM_8(q + 8)
#define SUM_32(q) SUM_16(q), SUM_16(q + 16)
#define R_16      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define R_24      R_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define R_32      R_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R_64                                                                                                 \
    R_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
         "%51, %52, %53, %54, %55, "                                                                         \
         "%56, %57, %58, %59, %60, %61, %62, %63"
#define R_128                                                                                                \
    R_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
         "%83, %84, %85, %86, %87, "                                                                         \
         "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "  \
         "%106, %107, %108, %109, "                                                                          \
         "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "  \
         "%126, %127"

/* Computes s [64, 8 * N8] += a [64,16] b [16, 8 * N8]. The operands a and b are in shared memory. Each line of an operand
 * contains consecutive terms of the sum, or consecutive rows of a or columns of b if A_ALONG or B_ALONG is false. */
template <typename T, int N8, bool A_ALONG = true, bool B_ALONG = true> struct Product;
#define PRODUCT(n8, width, registers, a, b, type, turn_a, turn_b, sums)                                      \
    template <typename T, bool A_ALONG, bool B_ALONG> struct Product<T, n8, A_ALONG, B_ALONG> {              \
        __device__ static __forceinline__ void run(float (&s)[n8][4], uint64_t x, uint64_t y) {              \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #width "k16.f32.%" #type ".%" #type             \
                         " " registers "}, %" #a ", %" #b ", 1, 1, 1, %" #turn_a ", %" #turn_b ";"           \
                         : sums(0)                                                                           \
                         : "l"(x), "l"(y), "C"(PtxName<T>::name), "n"((int)!A_ALONG), "n"((int)!B_ALONG));   \
        }                                                                                                    \
        __device__ static __forceinline__ void fence(float (&s)[n8][4]) {                                    \
            asm volatile("wgmma.fence.sync.aligned;" : sums(0)::"memory");                                   \
        }                                                                                                    \
        template <int pending> __device__ static __forceinline__ void wait(float (&s)[n8][4]) {              \
            asm volatile("wgmma.wait_group.sync.aligned %" #a ";" : sums(0) : "n"(pending) : "memory");      \
        }                                                                                                    \
    };
PRODUCT(4, 32, R_16, 16, 17, 18, 19, 20, SUM_4)
PRODUCT(6, 48, R_24, 24, 25, 26, 27, 28, SUM_6)
PRODUCT(8, 64, R_32, 32, 33, 34, 35, 36, SUM_8)
PRODUCT(16, 128, R_64, 64, 65, 66, 67, 68, SUM_16)
PRODUCT(32, 256, R_128, 128, 129, 130, 131, 132, SUM_32)

/* Computes s [64, 8 * N8] = a [64,32] b [32, 8 * N8], or s += a b if `add` is true. a is FP8 of type A, and b is E4M3. */
template <typename A, int N8> struct Fp8Product;
#define FP8_PRODUCT(n8, width, registers, a, b, adds, type, sums)                                            \
    template <typename A> struct Fp8Product<A, n8> : Product<bf16, n8> {                                     \
        template <bool add>                                                                                  \
        __device__ static __forceinline__ void run(float (&s)[n8][4], uint64_t x, uint64_t y) {              \
            asm volatile("{\n"                                                                               \
                         ".reg .pred p;\n"                                                                   \
                         "setp.ne.b32 p, %" #adds ", 0;\n"                                                   \
                         "wgmma.mma_async.sync.aligned.m64n" #width "k32.f32.%" #type ".e4m3 " registers     \
                         "}, %" #a ", %" #b ", p, 1, 1;\n"                                                   \
                         "}"                                                                                 \
                         : sums(0)                                                                           \
                         : "l"(x), "l"(y), "n"((int)add), "C"(PtxName<A>::name));                            \
        }                                                                                                    \
    };
FP8_PRODUCT(4, 32, R_16, 16, 17, 18, 19, SUM_4)
FP8_PRODUCT(8, 64, R_32, 32, 33, 34, 35, SUM_8)
FP8_PRODUCT(16, 128, R_64, 64, 65, 66, 67, SUM_16)
FP8_PRODUCT(32, 256, R_128, 128, 129, 130, 131, SUM_32)

/* Computes s += a b for 16-bit operands. a [64,16] is in registers in the order of multiply_add (mma.cuh);
 * the lines of b contain consecutive columns. */
template <typename T>
__device__ __forceinline__ void product_of_registers(float (&s)[8][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.%37.%37 " R_32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : SUM_8(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "C"(PtxName<T>::name));
}
template <typename T>
__device__ __forceinline__ void product_of_registers(float (&s)[16][4], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.%69.%69 " R_64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : SUM_16(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "C"(PtxName<T>::name));
}
__device__ __forceinline__ void products_begun() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Lane 4 * i + q holds 16-bit pairs of row i: columns 2 * q and 2 * q + 1 of four matrices of 8 columns.
 * After the call, the lane holds all 8 columns of matrix q. */
__device__ __forceinline__ void gather_columns(uint32_t (&x)[4]) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, q % 2 ? x[i] : x[i + 1], 1);
        if (q % 2)
            x[i] = other;
        else
            x[i + 1] = other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, q / 2 ? x[i] : x[i + 2], 2);
        if (q / 2)
            x[i] = other;
        else
            x[i + 2] = other;
    }
}
