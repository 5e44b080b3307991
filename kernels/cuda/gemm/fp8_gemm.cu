/* Computes GEMMs of FP8 operands through cuBLASLt: c = sum_k (a a_inverse) (b b_inverse). Tensor cores
 * multiply exactly, and add in fp32 or, if `fast` is true, with fewer bits. If cuBLASLt has no algorithm (a
 * size or address is not a multiple of 16, both operands are E5M2, or the GPU lacks FP8), a slow kernel
 * computes one element per thread. No layer uses this kernel (src/ops/fp8.c, quantize_emulation). c is written
 * or accumulated; act is written. */
#include <cuda_fp8.h>

#include "kernels/cuda/gemm/gemm.cuh"

static Gemm fp8_gemm_of(const Call *c) {
    const Fp8GemmAttr *attr = (const Fp8GemmAttr *)c->attr;
    const Tensor *a = c->in[0], *b = c->in[1];
    Gemm g = {};
    CHECK(dtype_is_fp8((DType)a->dtype) && dtype_is_fp8((DType)b->dtype),
          "fp8_gemm: a is %s and b is %s, but both must be FP8", dtype_name((DType)a->dtype),
          dtype_name((DType)b->dtype));
    CHECK(attr->a != FP8_SQUARES || attr->b != FP8_SQUARES,
          "fp8_gemm: a and b must not both have %d x %d blocks", FP8_BLOCK, FP8_BLOCK);
    g.op = "fp8_gemm";
    g.transpose_b = true;
    g.m = tensor_rows(a), g.n = tensor_rows(b), g.k = tensor_width(b);
    g.a = a, g.b = b, g.bias = c->in[4], g.c = c->out[0];
    g.a_inverse = c->in[2]->data, g.b_inverse = c->in[3]->data;
    g.a_blocks = attr->a, g.b_blocks = attr->b;
    g.fast = attr->fast;
    return g;
}

static bool aligned(const Tensor *t) { return !t || aligned_16(t->data); }

static bool has_library(const Call *c, const Gemm *g) {
    const bool blocks = g->a_blocks != FP8_WHOLE || g->b_blocks != FP8_WHOLE;
    const int64_t unit = blocks ? FP8_BLOCK : 16;
    return (device_fp8_gemms(c->device) & (blocks ? FP8_GEMM_BLOCKS : FP8_GEMM_WHOLE)) &&
           (g->a->dtype == F8E4M3 || g->b->dtype == F8E4M3) && g->c->dtype != F64 && c->in[2]->dtype == F32 &&
           c->in[3]->dtype == F32 && g->m % unit == 0 && g->n % unit == 0 && g->k % unit == 0 &&
           aligned(g->a) && aligned(g->b) && aligned(g->c) && aligned(g->bias) &&
           (!blocks || (aligned(c->in[2]) && aligned(c->in[3])));
}

/* ---- one element per thread ---- */

typedef struct Side {
    const uint8_t *values;
    Cells inverse;
    int64_t rows;
    Fp8Blocks blocks;
    __nv_fp8_interpretation_t format;

    template <typename R> __device__ __forceinline__ R get(int64_t row, int64_t i, int64_t k) const {
        const __half_raw q = __nv_cvt_fp8_to_halfraw(values[row * k + i], format);
        return (R)__half2float(__half(q)) * inverse.get<R>(fp8_block_of(blocks, rows, k, row, i));
    }
} Side;

template <typename R>
static __global__ void multiply(Side a, Side b, Cells bias, Cells c, int64_t n, int64_t k, bool add) {
    GRID_LOOP(at, a.rows * n) {
        R sum = 0;
        for (int64_t i = 0; i < k; i++) sum += a.get<R>(at / n, i, k) * b.get<R>(at % n, i, k);
        c.put_or_add(at, bias.data ? sum + bias.get<R>(at % n) : sum, add);
    }
}

static Side side(const Tensor *values, const Tensor *inverse, Fp8Blocks blocks) {
    Side s = {data_of<uint8_t>(values), cells(inverse), tensor_rows(values), blocks,
              values->dtype == F8E4M3 ? __NV_E4M3 : __NV_E5M2};
    return s;
}

static void by_elements(const Call *c, const Gemm *g) {
    const Side a = side(g->a, c->in[2], g->a_blocks), b = side(g->b, c->in[3], g->b_blocks);
    if (!g->m || !g->n) return;
    REAL_SWITCH(c->in[2]->dtype, multiply<R><<<grid_for(c, g->m * g->n, 128), 128, 0, stream_of(c)>>>(
                                     a, b, cells(g->bias), cells(g->c), g->n, g->k, accumulates(g->c)));
    LAUNCHED();
}

/* ---- the op ---- */

extern "C" void cuda_fp8_gemm(const Call *c) {
    const Gemm g = fp8_gemm_of(c);
    if (has_library(c, &g))
        gemm_run(c, &g);
    else
        by_elements(c, &g);
    gemm_activate(c, c->out[0], c->out[1], ((const Fp8GemmAttr *)c->attr)->activation);
}

extern "C" size_t cuda_plans_fp8_gemm(const Call *c) {
    const Gemm g = fp8_gemm_of(c);
    return has_library(c, &g) ? gemm_plan(c, &g) : 0;
}
