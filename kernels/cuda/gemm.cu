/* Products through cuBLASLt: c = op(a) op(b), plus c or a bias. Sums are kept in F64 for F64 operands, else
 * in F32 (never TF32). What a product needs (descriptors, algorithm) is made once for all that share its
 * GemmKey; a call then costs the host one look-up. Written or added to: c. */
#include "kernels/cuda/gemm_plan.cuh"

#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/hash.h"
#include "base/mem.h"
}

#define LT_CHECK(call)                                                                                       \
    do {                                                                                                     \
        const cublasStatus_t status = call;                                                                  \
        CHECK(status == CUBLAS_STATUS_SUCCESS, #call ": %s", cublasLtGetStatusString(status));               \
    } while (0)

/* ---- descriptors ---- */

static cudaDataType_t cuda_type(int dtype) {
    switch (dtype) {
    case F64:
        return CUDA_R_64F;
    case F32:
        return CUDA_R_32F;
    case BF16:
        return CUDA_R_16BF;
    case F8E4M3:
        return CUDA_R_8F_E4M3;
    case F8E5M2:
        return CUDA_R_8F_E5M2;
    default:
        return CUDA_R_16F;
    }
}

/* A row-major [rows, columns]. */
static void describe_matrix(cublasLtMatrixLayoutOpaque_t *x, int dtype, int64_t rows, int64_t columns) {
    LT_CHECK(cublasLtMatrixLayoutInit(x, cuda_type(dtype), (uint64_t)columns, (uint64_t)rows, columns));
}

template <typename T> static void set(GemmPlan *p, cublasLtMatmulDescAttributes_t name, T value) {
    LT_CHECK(cublasLtMatmulDescSetAttribute(&p->product, name, &value, sizeof value));
}

static bool is_fp8(const GemmKey *key) { return dtype_is_fp8((DType)key->type); }

/* cuBLASLt's a is our b. Any aligned addresses show it that there are scales; gemm_start gives the true ones.
 */
static void describe_fp8(GemmPlan *p) {
    static const cublasLtMatmulMatrixScale_t MODES[] = {CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                                                        CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                                                        CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F};
    const void *const somewhere = (const void *)(uintptr_t)GEMM_ALIGN;
    const int scaling = p->key.scaling;
    set(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, (int8_t)(scaling & 1));
    set(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, (int32_t)MODES[scaling >> 3]);
    set(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, (int32_t)MODES[scaling >> 1 & 3]);
    set(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, somewhere);
    set(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, somewhere);
    set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)cuda_type(p->key.c_type));
}

void gemm_describe(GemmPlan *p, bool fused) {
    const GemmKey *key = &p->key;
    const bool wide = key->type == F64;
    LT_CHECK(cublasLtMatmulDescInit(&p->product, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                    wide ? CUDA_R_64F : CUDA_R_32F));
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(p, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)(key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (key->multiprocessors) set(p, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, key->multiprocessors);
    if (fused && key->epilogue == GEMM_BIAS) {
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)CUBLASLT_EPILOGUE_BIAS);
        /* An address to show its alignment; gemm_start gives the true one. */
        set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)(uintptr_t)key->align_bias);
    }
    if (is_fp8(key)) describe_fp8(p);
    describe_matrix(&p->a, key->type, key->transpose_a ? key->k : key->m, key->transpose_a ? key->m : key->k);
    describe_matrix(&p->b, key->b_type, key->transpose_b ? key->n : key->k,
                    key->transpose_b ? key->k : key->n);
    describe_matrix(&p->c, key->c_type, key->m, key->n);
}

/* ---- ways ---- */

template <typename T>
static void prefer(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t name, T value) {
    LT_CHECK(cublasLtMatmulPreferenceSetAttribute(p, name, &value, sizeof value));
}

/* Whether every row begins at a multiple of 16 bytes. Its kernels for others round before they add a bias
 * (seen on an H200). */
static bool is_wide(const GemmKey *k) {
    const int64_t each = GEMM_ALIGN / (int64_t)dtype_size((DType)k->type);
    return k->align_a == GEMM_ALIGN && k->align_b == GEMM_ALIGN && k->align_c == GEMM_ALIGN &&
           k->m % each == 0 && k->n % each == 0 && k->k % each == 0;
}

/* Whether the sum with a bias is rounded once; FP8's kernels read a bias beside F32 as 16 bits. */
static bool may_add_bias(const GemmKey *key, bool fused) {
    if (dtype_is_16bit((DType)key->c_type)) return fused && is_wide(key);
    return !(fused && is_fp8(key));
}

int gemm_ways(const GemmState *s, GemmPlan *p, bool fused, GemmWay out[GEMM_CANDIDATES]) {
    const GemmKey *key = &p->key;
    cublasLtMatmulPreferenceOpaque_t want;
    cublasLtMatmulHeuristicResult_t found[GEMM_CANDIDATES];
    int n = 0, kept = 0;
    if (key->epilogue == GEMM_BIAS && !may_add_bias(key, fused)) return 0;
    gemm_describe(p, fused);
    LT_CHECK(cublasLtMatmulPreferenceInit(&want));
    prefer(&want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)GEMM_WORKSPACE);
    /* Parts of a sum meet in the workspace and in F32 (F64): those that meet in c would be rounded to its
     * type. */
    prefer(&want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(&want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b);
    prefer(&want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a);
    prefer(&want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_c);
    prefer(&want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_c);
    if (cublasLtMatmulAlgoGetHeuristic(s->handle, &p->product, &p->b, &p->a, &p->c, &p->c, &want,
                                       GEMM_CANDIDATES, found, &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < n; i++) {
        uint32_t scheme = 0;
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > GEMM_WORKSPACE) continue;
        LT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                      &scheme, sizeof scheme, NULL));
        if (scheme & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) continue;
        out[kept].fused = fused;
        out[kept++].algo = found[i].algo;
    }
    return kept;
}

bool gemm_can(const GemmState *s, GemmPlan *p, const GemmWay *way) {
    cublasLtMatmulHeuristicResult_t result;
    if (!way->fused && p->key.epilogue == GEMM_PLAIN) return false;
    gemm_describe(p, way->fused);
    return cublasLtMatmulAlgoCheck(s->handle, &p->product, &p->b, &p->a, &p->c, &p->c, &way->algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= GEMM_WORKSPACE;
}

cublasStatus_t gemm_start(const GemmState *s, GemmPlan *p, const GemmOperands *x, cudaStream_t stream) {
    const GemmKey *key = &p->key;
    const bool onto_bias = key->epilogue == GEMM_BIAS && !p->way.fused, add = key->accumulate || onto_bias;
    const double factor[2] = {1, add ? 1.0 : 0.0};
    const float narrow[2] = {1, add ? 1.0f : 0.0f};
    const bool wide = key->type == F64;
    if (onto_bias)
        rows_plus_bias(stream, (DType)key->c_type, NULL, x->bias, x->c, key->m, key->n);
    else if (key->epilogue == GEMM_BIAS)
        set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x->bias);
    if (is_fp8(key)) {
        set(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, x->b_inverse);
        set(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x->a_inverse);
    }
    return cublasLtMatmul(s->handle, &p->product, wide ? (const void *)&factor[0] : &narrow[0], x->b, &p->b,
                          x->a, &p->a, wide ? (const void *)&factor[1] : &narrow[1], x->c, &p->c, x->c, &p->c,
                          &p->way.algo, s->workspace, GEMM_WORKSPACE, stream);
}

/* ---- plans ---- */

static void release(void *at) {
    GemmState *s = (GemmState *)at;
    for (size_t i = 0; i < s->room; i++) free(s->plans[i]);
    free(s->plans);
    CUDA_CHECK(cudaFree(s->workspace));
    LT_CHECK(cublasLtDestroy(s->handle));
    free(s);
}

static GemmState *state_of(const Device *d) {
    CudaState *state = &d->cuda->state[CUDA_GEMM];
    if (state->at) return (GemmState *)state->at;
    GemmState *s = (GemmState *)mem_zero(1, sizeof *s);
    CUDA_CHECK(cudaSetDevice(d->cuda->ordinal));
    LT_CHECK(cublasLtCreate(&s->handle));
    CUDA_CHECK(cudaMalloc(&s->workspace, GEMM_WORKSPACE));
    s->room = 64;
    s->plans = (GemmPlan **)mem_zero(s->room, sizeof *s->plans);
    state->at = s;
    state->free = release;
    return s;
}

static uint8_t alignment(const void *p) {
    const uintptr_t at = (uintptr_t)p | GEMM_ALIGN;
    return (uint8_t)(at & -at);
}

static GemmKey key_of(const GemmState *s, const Gemm *g) {
    GemmKey key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.multiprocessors = s->multiprocessors;
    key.type = g->a->dtype, key.b_type = g->b->dtype, key.c_type = g->c->dtype;
    if (is_fp8(&key)) key.scaling = (uint8_t)(g->fast | g->a_blocks << 1 | g->b_blocks << 3);
    key.transpose_a = g->transpose_a, key.transpose_b = g->transpose_b;
    key.accumulate = accumulates(g->c);
    key.align_a = alignment(g->a->data), key.align_b = alignment(g->b->data),
    key.align_c = alignment(g->c->data);
    if (!g->bias) return key;
    key.epilogue = GEMM_BIAS;
    key.align_bias = alignment(g->bias->data);
    return key;
}

/* Where it stands, or would. */
static GemmPlan **place(const GemmState *s, const GemmKey *key) {
    size_t i = (size_t)hash64(key, sizeof *key, 0) & (s->room - 1);
    while (s->plans[i] && memcmp(&s->plans[i]->key, key, sizeof *key)) i = (i + 1) & (s->room - 1);
    return &s->plans[i];
}

static void grow(GemmState *s) {
    GemmPlan **old = s->plans;
    const size_t n = s->room;
    s->room *= 2;
    s->plans = (GemmPlan **)mem_zero(s->room, sizeof *s->plans);
    for (size_t i = 0; i < n; i++)
        if (old[i]) *place(s, &old[i]->key) = old[i];
    free(old);
}

/* As it is, or as cuBLASLt would do it. */
static GemmPlan *plan_of(GemmState *s, const Gemm *g) {
    const GemmKey key = key_of(s, g);
    GemmPlan **found = place(s, &key);
    if (*found) return *found;
    GemmWay ways[GEMM_CANDIDATES];
    GemmPlan *p = (GemmPlan *)mem_zero(1, sizeof *p);
    p->key = key;
    int n = gemm_ways(s, p, true, ways);
    if (!n && g->bias) n = gemm_ways(s, p, false, ways);
    const bool apart = !n && g->bias && dtype_is_16bit((DType)g->c->dtype); /* see ends_elsewhere */
    CHECK(n || apart, "%s: cuBLASLt has no algorithm for a product of %s [%lld,%lld] and [%lld,%lld] in %s",
          g->op, dtype_name((DType)g->a->dtype), (long long)g->m, (long long)g->k, (long long)g->k,
          (long long)g->n, dtype_name((DType)g->c->dtype));
    if (n) p->way = ways[0];
    *found = p;
    if (2 * ++s->count > s->room) grow(s);
    return p;
}

/* ---- any product ---- */

/* cuBLASLt does not end sums of F32 operands in 16 bits, and a sum that it adds to 16 bits it has rounded
 * before (seen on an H200): a pass of its own rounds these, once, and those to which it cannot add the bias
 * itself. */
static bool ends_elsewhere(GemmState *s, const Gemm *g) {
    if (!dtype_is_16bit((DType)g->c->dtype)) return false;
    return g->a->dtype == F32 || accumulates(g->c) || (g->bias && !plan_of(s, g)->way.fused);
}

static void check(const Gemm *g) {
    const int a = g->a->dtype, b = g->b->dtype, c = g->c->dtype;
    const bool fp8 = dtype_is_fp8((DType)a) && dtype_is_fp8((DType)b) && (a == F8E4M3 || b == F8E4M3) &&
                     (c == F32 || dtype_is_16bit((DType)c));
    CHECK(fp8 ||
              (a == b && dtype_is_float((DType)a) &&
               (c == a || (c == F32 && dtype_is_16bit((DType)a)) || (a == F32 && dtype_is_16bit((DType)c)))),
          "%s: there is no product of %s and %s that ends in %s", g->op, dtype_name((DType)a),
          dtype_name((DType)b), dtype_name((DType)c));
    CHECK(!g->bias || g->bias->dtype == c, "%s: the bias is %s, the output %s", g->op,
          dtype_name((DType)g->bias->dtype), dtype_name((DType)c));
}

/* The product of the same operands in F32, in `data`. */
static Gemm in_f32(const Gemm *g, void *data, Tensor *sums) {
    Gemm whole = *g;
    *sums = *g->c;
    sums->data = data, sums->dtype = F32, sums->flags = 0;
    whole.c = sums, whole.bias = NULL;
    return whole;
}

static __global__ void round_sums(const float *sums, Cells bias, Cells c, int64_t count, int64_t n,
                                  bool add) {
    GRID_LOOP(i, count) {
        const float x = bias.data ? sums[i] + bias.get<float>(i % n) : sums[i];
        c.put_or_add(i, x, add);
    }
}

/* c where there are no terms. */
static void without_terms(const Call *c, const Gemm *g) {
    if (g->bias)
        rows_plus_bias(stream_of(c), (DType)g->c->dtype, NULL, g->bias->data, g->c->data, g->m, g->n);
    else if (!accumulates(g->c))
        CUDA_CHECK(cudaMemsetAsync(g->c->data, 0, tensor_bytes(g->c), stream_of(c)));
}

static void multiply(const Call *c, const Gemm *g) {
    GemmState *s = state_of(c->device);
    GemmPlan *p = plan_of(s, g);
    const GemmOperands x = {g->a->data, g->b->data,   g->bias ? g->bias->data : NULL,
                            g->c->data, g->a_inverse, g->b_inverse};
    const cublasStatus_t status = gemm_start(s, p, &x, stream_of(c));
    CHECK(status == CUBLAS_STATUS_SUCCESS, "%s: cublasLtMatmul: %s", g->op, cublasLtGetStatusString(status));
}

void gemm_run(const Call *c, const Gemm *g) {
    if (!g->m || !g->n) return;
    if (g->fixed_order) {
        gemm_fixed(c, g);
        return;
    }
    check(g);
    if (!g->k) {
        without_terms(c, g);
        return;
    }
    if (!ends_elsewhere(state_of(c->device), g)) {
        multiply(c, g);
        return;
    }
    Tensor sums;
    const int64_t count = g->m * g->n;
    const Gemm whole = in_f32(g, cuda_scratch(c->device, (size_t)count * sizeof(float)), &sums);
    multiply(c, &whole);
    round_sums<<<grid_for(c, count, 256), 256, 0, stream_of(c)>>>(
        (const float *)sums.data, cells(g->bias), cells(g->c), count, g->n, accumulates(g->c));
    LAUNCHED();
}

size_t gemm_plan(const Call *c, const Gemm *g) {
    const double large = 1e9; /* operations; below that the launch is half of the time */
    if (!g->m || !g->n || !g->k || g->fixed_order) return 0;
    check(g);
    Tensor sums;
    /* Scratch memory is as well aligned as the key asks for. */
    CUDA_CHECK(cudaSetDevice(c->device->cuda->ordinal));
    GemmState *s = state_of(c->device);
    const bool elsewhere = ends_elsewhere(s, g);
    const Gemm whole = elsewhere ? in_f32(g, NULL, &sums) : *g;
    GemmPlan *p = plan_of(s, &whole);
    if (!p->measured && 2.0 * (double)g->m * (double)g->n * (double)g->k > large) gemm_tune(c->device, s, p);
    p->measured = true;
    return elsewhere ? (size_t)(g->m * g->n) * sizeof(float) : 0;
}
