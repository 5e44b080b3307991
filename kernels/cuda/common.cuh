/* Code that all CUDA kernels share: types, loads and stores, views of tensors, reductions in a fixed order, and
 * launches.
 *
 * Storage types are double, float, bf16 and fp16. Arithmetic types are double and float (Real<T>).
 * Memory-bound kernels are templates over the storage type (STORAGE_SWITCH), and use 16-byte accesses (Vec)
 * if their operands are aligned. Other kernels are templates only over the arithmetic type (REAL_SWITCH) and
 * access operands through Cells, so that the storage type is checked at run time. No kernel adds floats
 * atomically, so runs are deterministic. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define _Noreturn [[noreturn]]
extern "C" {
#include "base/fault.h"
#include "kernels/attr.h"
#include "tensor/call.h"
#include "tensor/cuda.h"
}

typedef __nv_bfloat16 bf16;
typedef __half fp16;

/* ---- types ---- */

template <typename T> struct RealOf { typedef float type; };
template <> struct RealOf<double> { typedef double type; };
template <> struct RealOf<int64_t> { typedef int64_t type; };
template <typename T> using Real = typename RealOf<T>::type;

/* Runs the statements with T as the storage type of `dtype`. */
#define STORAGE_SWITCH(dtype, ...)                                                                           \
    do {                                                                                                     \
        switch (dtype) {                                                                                     \
        case F64: {                                                                                          \
            typedef double T;                                                                                \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        case F32: {                                                                                          \
            typedef float T;                                                                                 \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        case BF16: {                                                                                         \
            typedef bf16 T;                                                                                  \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        case F16: {                                                                                          \
            typedef fp16 T;                                                                                  \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        default:                                                                                             \
            CHECK(0, "no kernel for %s", dtype_name((DType)(dtype)));                                        \
        }                                                                                                    \
    } while (0)

/* Runs the statements with R as the arithmetic type for storage type `dtype`. */
#define REAL_SWITCH(dtype, ...)                                                                              \
    do {                                                                                                     \
        if ((dtype) == F64) {                                                                                \
            typedef double R;                                                                                \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            typedef float R;                                                                                 \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

template <typename R> __device__ __forceinline__ R to_real(double x) { return (R)x; }
template <typename R> __device__ __forceinline__ R to_real(float x) { return (R)x; }
template <typename R> __device__ __forceinline__ R to_real(int64_t x) { return (R)x; }
template <typename R> __device__ __forceinline__ R to_real(bf16 x) { return (R)__bfloat162float(x); }
template <typename R> __device__ __forceinline__ R to_real(fp16 x) { return (R)__half2float(x); }

template <typename T, typename R> struct FromReal {
    __device__ static __forceinline__ T of(R x) { return (T)x; }
};
template <typename R> struct FromReal<bf16, R> {
    __device__ static __forceinline__ bf16 of(R x) { return __float2bfloat16_rn((float)x); }
};
template <typename R> struct FromReal<fp16, R> {
    __device__ static __forceinline__ fp16 of(R x) { return __float2half_rn((float)x); }
};
/* Converts x to a storage type. Rounds to nearest, ties to even. */
template <typename T, typename R> __device__ __forceinline__ T from_real(R x) {
    return FromReal<T, R>::of(x);
}

/* Elements of any storage type. Each access converts the element. */
struct Cells {
    void *data;
    int dtype; /* F64, F32, BF16 or F16 */

    template <typename R> __device__ __forceinline__ R get(int64_t i) const {
        switch (dtype) {
        case F64:
            return (R)((const double *)data)[i];
        case F32:
            return (R)((const float *)data)[i];
        case BF16:
            return to_real<R>(((const bf16 *)data)[i]);
        default:
            return to_real<R>(((const fp16 *)data)[i]);
        }
    }
    template <typename R> __device__ __forceinline__ void put(int64_t i, R x) const {
        switch (dtype) {
        case F64:
            ((double *)data)[i] = (double)x;
            break;
        case F32:
            ((float *)data)[i] = (float)x;
            break;
        case BF16:
            ((bf16 *)data)[i] = from_real<bf16>(x);
            break;
        default:
            ((fp16 *)data)[i] = from_real<fp16>(x);
        }
    }
    template <typename R> __device__ __forceinline__ void put_or_add(int64_t i, R x, bool add) const {
        put(i, add ? get<R>(i) + x : x);
    }
};
static inline Cells cells(const Tensor *t) {
    Cells c = {t ? t->data : NULL, t ? t->dtype : F32};
    return c;
}

/* N elements that are loaded or stored by one access. */
template <typename T, int N> struct alignas(sizeof(T) * N) Vec { T v[N]; };
template <typename T> constexpr int VEC = 16 / sizeof(T); /* number of elements in 16 bytes */
static inline bool aligned_16(const void *p) { return (uintptr_t)p % 16 == 0; }

/* ---- operands ---- */

static inline bool accumulates(const Tensor *t) { return t && t->flags & TENSOR_ACCUM; }
template <typename T> static inline T *data_of(const Tensor *t) { return t ? (T *)t->data : NULL; }
static inline const int64_t *ids_of(const Tensor *t) {
    CHECK(!t || t->dtype == I64, "the operand is %s, not I64", dtype_name((DType)t->dtype));
    return data_of<int64_t>(t);
}
/* Returns the storage type that determines the arithmetic type, by the same rule as call_run on the CPU. */
static inline DType lead_type(const Call *c) {
    for (int i = 0; i < CALL_IN; i++)
        if (c->in[i] && dtype_is_float((DType)c->in[i]->dtype)) return (DType)c->in[i]->dtype;
    for (int i = 0; i < CALL_OUT; i++)
        if (c->out[i] && dtype_is_float((DType)c->out[i]->dtype)) return (DType)c->out[i]->dtype;
    return F64;
}

/* Computes where the rows of a strided tensor begin. */
struct Rows {
    int64_t dim[TENSOR_DIMS - 1], stride[TENSOR_DIMS - 1]; /* right-aligned; missing dimensions have size 1 */
    bool dense;                                            /* if true, row r begins at r * width */
    int64_t width;

    __host__ __device__ __forceinline__ int64_t operator()(int64_t row) const {
        if (dense) return row * width;
        int64_t at = 0;
        for (int i = TENSOR_DIMS - 2; i >= 0 && row; i--) {
            at += row % dim[i] * stride[i];
            row /= dim[i];
        }
        return at;
    }
};
static inline Rows rows_of(const Tensor *t) {
    Rows r;
    for (int i = 0; i < TENSOR_DIMS - 1; i++) r.dim[i] = 1, r.stride[i] = 0;
    for (int i = 0; i + 1 < t->ndim; i++) {
        r.dim[TENSOR_DIMS - t->ndim + i] = t->dim[i];
        r.stride[TENSOR_DIMS - t->ndim + i] = t->stride[i];
    }
    r.dense = tensor_is_contiguous(t);
    r.width = tensor_width(t);
    return r;
}
/* Returns true if the addresses and the lengths of all rows of t are multiples of 16 bytes. */
static inline bool rows_are_aligned(const Tensor *t) {
    const int64_t n = 16 / (int64_t)dtype_size((DType)t->dtype);
    bool yes = aligned_16(t->data) && tensor_width(t) % n == 0;
    for (int i = 0; i + 1 < t->ndim; i++) yes = yes && (t->stride[i] % n == 0 || t->dim[i] == 1);
    return yes;
}

/* ---- launches ---- */

static inline cudaStream_t stream_of(const Call *c) { return cuda_of(c->device)->stream; }
/* Checks a kernel launch. Every <<<>>> must be followed by LAUNCHED(). */
#define LAUNCHED() CUDA_CHECK(cudaGetLastError())

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
__host__ __device__ static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
/* Returns the number of blocks for a grid-stride loop over n items with `each` items per block. The result is at
 * least 1. */
static inline unsigned grid_for(const Call *c, int64_t n, int64_t each) {
    const int64_t most = (int64_t)cuda_of(c->device)->multiprocessors * 32, want = ceil_div(n, each);
    return (unsigned)(want < 1 ? 1 : want < most ? want : most);
}
#define GRID_LOOP(i, n)                                                                                      \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                                \
         i += (int64_t)gridDim.x * blockDim.x)

/* Records an error. A device's first error becomes a fault when the host next waits for the device
 * (tensor/cuda.h). `message` contains two %lld. The message is a string in host memory, so its address must be
 * passed to the kernel as an argument. */
__device__ __forceinline__ void raise_assert(DeviceAssert *c, const char *message, int64_t a, int64_t b) {
    if (atomicExch(&c->raised, 1)) return;
    c->message = message;
    c->value[0] = a, c->value[1] = b;
}

/* ---- reductions, in a fixed order ---- */

template <typename R> __device__ __forceinline__ R warp_sum(R x) {
    for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}
template <typename R> __device__ __forceinline__ R larger(R a, R b) {
    return a > b || a != a ? a : b;
} /* NaN takes precedence */
template <typename R> __device__ __forceinline__ R warp_max(R x) {
    for (int k = 16; k > 0; k /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, k));
    return x;
}
/* Returns the sum of x over a block to all of the block's threads. All threads must call this function, and the block
 * size must be a multiple of 32. `room` is shared memory for 32 elements. */
template <typename R> __device__ __forceinline__ R block_sum(R x, R *room) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : 0;
    return warp_sum(x);
}
template <typename R> __device__ __forceinline__ R block_max(R x, R *room) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : room[0];
    return warp_max(x);
}
