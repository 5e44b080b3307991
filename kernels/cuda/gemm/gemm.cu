/* Computes GEMMs through cuBLASLt: c = op(a) op(b), plus c or a bias. Sums are computed in F64 for F64
 * operands, and otherwise in F32 (never in TF32). All GEMMs with equal GemmKeys share the descriptors and the
 * algorithm, so that a call needs only one lookup on the host. Epilogues (GemmEpilogue) are fused or run as
 * separate passes. Column sums of a are fused only if c is F32, because cuBLASLt would otherwise round a sum
 * over all tokens to 16 bits. act is written. With pre, c is written; without pre, c is written or
 * accumulated. dbias is written or accumulated. */
#include "kernels/cuda/gemm/gemm_plan.cuh"

#include <algorithm>
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

/* Describes a row-major matrix [rows, columns]. */
static void describe_matrix(cublasLtMatrixLayoutOpaque_t *x, int dtype, int64_t rows, int64_t columns) {
    LT_CHECK(cublasLtMatrixLayoutInit(x, cuda_type(dtype), (uint64_t)columns, (uint64_t)rows, columns));
}

template <typename T> static void set(GemmPlan *p, cublasLtMatmulDescAttributes_t name, T value) {
    LT_CHECK(cublasLtMatmulDescSetAttribute(&p->matmul, name, &value, sizeof value));
}

static bool is_fp8(const GemmKey *key) { return dtype_is_fp8((DType)key->type); }

/* Describes the scales. cuBLASLt's matrix A is b in this file. The addresses that this function sets only
 * indicate that there are scales; gemm_start sets the real addresses. */
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

static cublasLtEpilogue_t epilogue_of(unsigned fused) {
    if (fused & GEMM_SUMS) return CUBLASLT_EPILOGUE_BGRADB; /* a is cuBLASLt's matrix B */
    if (fused & GEMM_DGELU) return CUBLASLT_EPILOGUE_DGELU;
    if (fused & GEMM_GELU)
        return fused & GEMM_BIAS ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return fused & GEMM_BIAS ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Describes the epilogues. The addresses that this function sets only determine the alignment; gemm_start
 * sets the real addresses. */
static void describe_epilogue(GemmPlan *p, unsigned fused) {
    const GemmKey *key = &p->key;
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)epilogue_of(fused));
    if (fused & GEMM_BIAS)
        set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)(uintptr_t)key->align_bias);
    if (fused & GEMM_SUMS) {
        set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)(uintptr_t)SPACE_ALIGN);
        set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)CUDA_R_32F);
    }
    if (fused & (GEMM_GELU | GEMM_DGELU)) {
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (const void *)(uintptr_t)GEMM_ALIGN);
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)key->n);
    }
}

void gemm_describe(GemmPlan *p, unsigned fused) {
    const GemmKey *key = &p->key;
    const bool wide = key->type == F64;
    LT_CHECK(cublasLtMatmulDescInit(&p->matmul, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                    wide ? CUDA_R_64F : CUDA_R_32F));
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(p, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)(key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (key->multiprocessors) set(p, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, key->multiprocessors);
    if (fused) describe_epilogue(p, fused);
    if (is_fp8(key)) describe_fp8(p);
    describe_matrix(&p->a, key->type, key->transpose_a ? key->k : key->m, key->transpose_a ? key->m : key->k);
    describe_matrix(&p->b, key->b_type, key->transpose_b ? key->n : key->k,
                    key->transpose_b ? key->k : key->n);
    describe_matrix(&p->c, key->c_type, key->m, key->n);
}

/* ---- algorithms ---- */

template <typename T>
static void prefer(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t name, T value) {
    LT_CHECK(cublasLtMatmulPreferenceSetAttribute(p, name, &value, sizeof value));
}

/* Returns true if every row begins at a multiple of 16 bytes. If rows are not aligned, cuBLASLt's kernels round
 * before they add a bias (observed on an H200). */
static bool is_wide(const GemmKey *k) {
    const int64_t each = GEMM_ALIGN / (int64_t)dtype_size((DType)k->type);
    return k->align_a == GEMM_ALIGN && k->align_b == GEMM_ALIGN && k->align_c == GEMM_ALIGN &&
           k->m % each == 0 && k->n % each == 0 && k->k % each == 0;
}

/* Separate passes are not bitwise equal to fused epilogues, so only a measured gain justifies fusion. An unmeasured
 * GEMM fuses only its bias. Combinations that would round a value twice on its way to 16 bits are excluded. FP8
 * kernels with an F32 output would read the bias as 16-bit values. */
int gemm_kinds(const GemmKey *key, unsigned fused[GEMM_KINDS]) {
    const unsigned bias = key->epilogues & GEMM_BIAS;
    const bool narrow = dtype_is_16bit((DType)key->c_type), can = narrow ? is_wide(key) : !is_fp8(key);
    int n = 0;
    if (!bias || can) fused[n++] = bias;
    if (bias && !narrow) fused[n++] = 0;
    if (key->epilogues != bias && can) fused[n++] = key->epilogues;
    return n;
}

int gemm_algos(const GemmState *s, GemmPlan *p, unsigned fused, GemmAlgo out[GEMM_CANDIDATES]) {
    const GemmKey *key = &p->key;
    cublasLtMatmulPreferenceOpaque_t want;
    cublasLtMatmulHeuristicResult_t found[GEMM_CANDIDATES];
    int n = 0, kept = 0;
    gemm_describe(p, fused);
    LT_CHECK(cublasLtMatmulPreferenceInit(&want));
    prefer(&want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)GEMM_WORKSPACE);
    /* Partial sums must be added in the workspace, in F32 (or F64). Partial sums in c would be rounded to
     * its type. */
    prefer(&want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(&want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b);
    prefer(&want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a);
    prefer(&want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_c);
    prefer(&want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_c);
    if (cublasLtMatmulAlgoGetHeuristic(s->handle, &p->matmul, &p->b, &p->a, &p->c, &p->c, &want,
                                       GEMM_CANDIDATES, found, &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    for (int i = 0; i < n; i++) {
        uint32_t scheme = 0;
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > GEMM_WORKSPACE) continue;
        LT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                      &scheme, sizeof scheme, NULL));
        if (scheme & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) continue;
        out[kept].fused = (uint8_t)fused;
        out[kept++].lt = found[i].algo;
    }
    return kept;
}

bool gemm_can(const GemmState *s, GemmPlan *p, const GemmAlgo *algo) {
    cublasLtMatmulHeuristicResult_t result;
    unsigned kinds[GEMM_KINDS];
    const int n = gemm_kinds(&p->key, kinds);
    if (std::find(kinds, kinds + n, algo->fused) == kinds + n) return false;
    gemm_describe(p, algo->fused);
    return cublasLtMatmulAlgoCheck(s->handle, &p->matmul, &p->b, &p->a, &p->c, &p->c, &algo->lt, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= GEMM_WORKSPACE;
}

/* Adds an algorithm to the list if the algorithm is new and supported. Returns the new number of algorithms. */
static int add_algo(const GemmState *s, GemmPlan *p, const GemmAlgo *algo, GemmAlgo out[GEMM_ALGOS], int n) {
    const auto same = [&](const GemmAlgo &w) {
        return w.fused == algo->fused && !memcmp(&w.lt, &algo->lt, sizeof algo->lt);
    };
    if (n < GEMM_ALGOS && std::none_of(out, out + n, same) && gemm_can(s, p, algo)) out[n++] = *algo;
    return n;
}

/* Adds algorithms that cuBLASLt's heuristic proposes only for other epilogues, because these algorithms may
 * also be the fastest with the current epilogues. */
static int borrow(const GemmState *s, GemmPlan *p, unsigned fused, const GemmAlgo *from, int end,
                  GemmAlgo out[GEMM_ALGOS], int n) {
    for (int i = 0; i < end; i++) {
        GemmAlgo algo = from[i];
        algo.fused = (uint8_t)fused;
        n = add_algo(s, p, &algo, out, n);
    }
    return n;
}

/* Adds a copy of each algorithm with the opposite order of tiles (CTA swizzling), because the heuristic rarely
 * proposes both orders. Results are bitwise equal, but the reuse of operands in the L2 cache differs. */
static int swizzle(const GemmState *s, GemmPlan *p, GemmAlgo out[GEMM_ALGOS], int n) {
    for (int i = 0, end = n; i < end; i++) {
        GemmAlgo algo = out[i];
        uint32_t order = 0;
        LT_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algo.lt, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &order,
                                                      sizeof order, NULL));
        order = !order;
        if (cublasLtMatmulAlgoConfigSetAttribute(&algo.lt, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &order,
                                                 sizeof order) == CUBLAS_STATUS_SUCCESS)
            n = add_algo(s, p, &algo, out, n);
    }
    return n;
}

int gemm_all_algos(const GemmState *s, GemmPlan *p, GemmAlgo out[GEMM_ALGOS]) {
    unsigned kinds[GEMM_KINDS];
    GemmAlgo bare[GEMM_CANDIDATES];
    const int end = gemm_kinds(&p->key, kinds), bares = gemm_algos(s, p, 0, bare);
    int n = 0;
    for (int i = 0; i < end; i++) n += gemm_algos(s, p, kinds[i], out + n);
    for (int i = 0, offered = n; i < end; i++) {
        n = borrow(s, p, kinds[i], out, offered, out, n);
        n = borrow(s, p, kinds[i], bare, bares, out, n);
    }
    return swizzle(s, p, out, n);
}

/* ---- one cuBLASLt GEMM and its epilogues ---- */

static __global__ void round_sums(const float *sums, Cells bias, Cells c, int64_t count, int64_t n,
                                  bool add) {
    GRID_LOOP(i, count) {
        const float x = bias.data ? sums[i] + bias.get<float>(i % n) : sums[i];
        c.put_or_add(i, x, add);
    }
}

static void launch_round_sums(const Call *c, const float *sums, const Tensor *bias, const Tensor *out) {
    const int64_t count = tensor_count(out);
    round_sums<<<grid_for(c, count, 256), 256, 0, stream_of(c)>>>(sums, cells(bias), cells(out), count,
                                                                  tensor_width(out), accumulates(out));
    LAUNCHED();
}

static void activate(const Call *c, const Gemm *g) {
    gemm_activate(c, (Tensor *)g->c, (Tensor *)g->act, g->activation);
}

static void go_through_activation(const Call *c, const Gemm *g) {
    gemm_through_activation(c, (Tensor *)g->c, (Tensor *)g->pre, g->activation);
}

/* Starts only cuBLASLt's GEMM with its fused epilogues. If `add` is true, the result is added to c. */
static cublasStatus_t start_matmul(const Call *c, const GemmState *s, GemmPlan *p, const Gemm *g, bool add) {
    const double factor[2] = {1, add ? 1.0 : 0.0};
    const float narrow[2] = {1, add ? 1.0f : 0.0f};
    const bool wide = p->key.type == F64;
    void *out = p->algo.fused & GEMM_GELU ? g->act->data : g->c->data;
    if (is_fp8(&p->key)) {
        set(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g->b_inverse);
        set(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g->a_inverse);
    }
    return cublasLtMatmul(s->handle, &p->matmul, wide ? (const void *)&factor[0] : &narrow[0], g->b->data,
                          &p->b, g->a->data, &p->a, wide ? (const void *)&factor[1] : &narrow[1], out, &p->c,
                          out, &p->c, &p->algo.lt, s->workspace, GEMM_WORKSPACE, stream_of(c));
}

/* Adds the bias to c if c accumulates; otherwise, fills c with the bias. The GEMM then adds to c. The type of c
 * must have at least 32 bits. */
static void start_with_bias(const Call *c, const Gemm *g) {
    rows_plus_bias(stream_of(c), (DType)g->c->dtype, accumulates(g->c) ? g->c->data : NULL, g->bias->data,
                   g->c->data, g->m, g->n);
}

cublasStatus_t gemm_start(const Call *c, const GemmState *s, GemmPlan *p, const Gemm *g) {
    const unsigned fused = p->algo.fused, apart = p->key.epilogues & ~fused;
    float *sums = NULL;
    if (apart & GEMM_BIAS) start_with_bias(c, g);
    if (fused & GEMM_BIAS) set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)g->bias->data);
    if (fused & GEMM_GELU) set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (const void *)g->c->data);
    if (fused & GEMM_DGELU) set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (const void *)g->pre->data);
    if (fused & GEMM_SUMS) {
        sums = (float *)cuda_scratch(c->device, (size_t)g->m * sizeof(float));
        set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)sums);
    }
    const cublasStatus_t status = start_matmul(c, s, p, g, p->key.accumulate || apart & GEMM_BIAS);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (sums) launch_round_sums(c, sums, NULL, g->dbias);
    if (apart & GEMM_GELU) activate(c, g);
    if (apart & GEMM_DGELU) go_through_activation(c, g);
    if (apart & GEMM_SUMS) bias_gradient(c, g->a, g->dbias, false);
    return status;
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
    CudaState *state = &cuda_of(d)->state[CUDA_GEMM];
    if (state->at) return (GemmState *)state->at;
    CHECK(cuda_of(d)->gemm_sm_margin < cuda_of(d)->multiprocessors,
          "--gemm-sm-margin %lld leaves no multiprocessor for GEMMs, because this GPU has %d: lower it",
          (long long)cuda_of(d)->gemm_sm_margin, cuda_of(d)->multiprocessors);
    GemmState *s = (GemmState *)mem_zero(1, sizeof *s);
    s->multiprocessors =
        cuda_of(d)->gemm_sm_margin ? cuda_of(d)->multiprocessors - (int)cuda_of(d)->gemm_sm_margin : 0;
    CUDA_CHECK(cudaSetDevice(cuda_of(d)->ordinal));
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

/* GELU is fused only for 16-bit operands, because the accuracy of cuBLASLt's GELU is not documented. */
static bool has_gelu(const Gemm *g, const Tensor *beside) {
    return beside && g->activation == ACT_GELU_TANH && dtype_is_16bit((DType)g->a->dtype) &&
           g->c->dtype == g->a->dtype && beside->dtype == g->c->dtype && aligned_16(beside->data);
}

/* Returns the epilogues that cuBLASLt may be able to fuse. */
static unsigned epilogues_of(const Gemm *g) {
    unsigned e = g->bias ? GEMM_BIAS : 0;
    if (has_gelu(g, g->act)) e |= GEMM_GELU;
    if (has_gelu(g, g->pre)) e |= GEMM_DGELU;
    if (g->dbias && dtype_is_16bit((DType)g->a->dtype) && g->c->dtype == F32) e |= GEMM_SUMS;
    return e;
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
    key.epilogues = (uint8_t)epilogues_of(g);
    if (g->bias) key.align_bias = alignment(g->bias->data);
    return key;
}

/* Returns the entry of the hash table that contains the key, or the free entry for the key. */
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

/* Returns the plan for the GEMM, and creates the plan if it does not exist yet. */
static GemmPlan *plan_of(GemmState *s, const Gemm *g) {
    const GemmKey key = key_of(s, g);
    GemmPlan **found = place(s, &key);
    if (*found) return *found;
    GemmAlgo algos[GEMM_CANDIDATES];
    unsigned kinds[GEMM_KINDS];
    GemmPlan *p = (GemmPlan *)mem_zero(1, sizeof *p);
    p->key = key;
    int n = 0;
    for (int i = 0, end = gemm_kinds(&key, kinds); i < end && !n; i++) n = gemm_algos(s, p, kinds[i], algos);
    const bool apart = !n && g->bias && dtype_is_16bit((DType)g->c->dtype); /* see ends_elsewhere */
    CHECK(n || apart, "%s: cuBLASLt has no algorithm for a GEMM of %s [%lld,%lld] and [%lld,%lld] in %s",
          g->op, dtype_name((DType)g->a->dtype), (long long)g->m, (long long)g->k, (long long)g->k,
          (long long)g->n, dtype_name((DType)g->c->dtype));
    if (n) p->algo = algos[0];
    *found = p;
    if (2 * ++s->count > s->room) grow(s);
    return p;
}

/* ---- any GEMM ---- */

/* Returns true if the GEMM writes F32 sums to scratch memory, and a separate pass rounds the sums once. The
 * separate pass is necessary because cuBLASLt cannot write sums of F32 operands as 16 bits, rounds a sum before
 * adding it to a 16-bit c (observed on an H200), and sometimes cannot add the bias. Main gradients are an
 * exception: they can be 16-bit to save memory traffic, so cuBLASLt adds directly to main gradients, and may
 * round each microbatch's contribution first. */
static bool ends_elsewhere(GemmState *s, const Gemm *g) {
    const bool adds = accumulates(g->c) && !(g->c->flags & TENSOR_MAIN_GRAD);
    if (!dtype_is_16bit((DType)g->c->dtype)) return false;
    return g->a->dtype == F32 || adds || (g->bias && !(plan_of(s, g)->algo.fused & GEMM_BIAS));
}

static void check(const Gemm *g) {
    const int a = g->a->dtype, b = g->b->dtype, c = g->c->dtype;
    const bool fp8 = dtype_is_fp8((DType)a) && dtype_is_fp8((DType)b) && (a == F8E4M3 || b == F8E4M3) &&
                     (c == F32 || dtype_is_16bit((DType)c));
    CHECK(fp8 ||
              (a == b && dtype_is_float((DType)a) &&
               (c == a || (c == F32 && dtype_is_16bit((DType)a)) || (a == F32 && dtype_is_16bit((DType)c)))),
          "%s: GEMMs of %s and %s with a result in %s are not supported", g->op, dtype_name((DType)a),
          dtype_name((DType)b), dtype_name((DType)c));
    CHECK(!g->bias || g->bias->dtype == c, "%s: the bias is %s, but the output is %s", g->op,
          dtype_name((DType)g->bias->dtype), dtype_name((DType)c));
}

/* Returns a GEMM of the same operands that writes an F32 result to `data`. */
static Gemm in_f32(const Gemm *g, void *data, Tensor *sums) {
    Gemm whole = *g;
    *sums = *g->c;
    sums->data = data, sums->dtype = F32, sums->flags = 0;
    whole.c = sums, whole.bias = whole.pre = whole.act = whole.dbias = NULL;
    return whole;
}

/* Sets c to the result of an empty sum (k = 0). */
static void without_terms(const Call *c, const Gemm *g) {
    if (g->bias)
        start_with_bias(c, g);
    else if (!accumulates(g->c))
        CUDA_CHECK(cudaMemsetAsync(g->c->data, 0, tensor_bytes(g->c), stream_of(c)));
}

/* Runs the GEMM through cuBLASLt, and returns the epilogues that gemm_start has already run. */
static unsigned multiply(const Call *c, const Gemm *g) {
    GemmState *s = state_of(c->device);
    GemmPlan *p = plan_of(s, g);
    const cublasStatus_t status = gemm_start(c, s, p, g);
    CHECK(status == CUBLAS_STATUS_SUCCESS, "%s: cublasLtMatmul: %s", g->op, cublasLtGetStatusString(status));
    return p->key.epilogues;
}

static unsigned run_gemm(const Call *c, const Gemm *g) {
    enum { FEW_ROWS = 64 }; /* with so few rows, gemm_invariant reads weights faster than cuBLASLt */
    if ((g->fixed_order || g->m <= FEW_ROWS) && gemm_is_invariant(c, g)) {
        gemm_invariant(c, g);
        return 0;
    }
    if (g->fixed_order) {
        gemm_is_narrow(g) ? gemm_narrow(c, g) : gemm_ordered(c, g);
        return 0;
    }
    check(g);
    if (!g->k) {
        without_terms(c, g);
        return 0;
    }
    if (!ends_elsewhere(state_of(c->device), g)) return multiply(c, g);
    Tensor sums;
    const Gemm whole = in_f32(g, cuda_scratch(c->device, (size_t)(g->m * g->n) * sizeof(float)), &sums);
    multiply(c, &whole);
    launch_round_sums(c, (const float *)sums.data, g->bias, g->c);
    return 0;
}

void gemm_run(const Call *c, const Gemm *g) {
    const unsigned done = g->m && g->n ? run_gemm(c, g) : 0;
    if (!(done & GEMM_GELU)) activate(c, g);
    if (!(done & GEMM_DGELU)) go_through_activation(c, g);
    if (g->dbias && !(done & GEMM_SUMS)) bias_gradient(c, g->a, g->dbias, g->fixed_order && !g->by_chunks);
}

/* Chooses the algorithm for the GEMM's plan or, if ends_elsewhere, for the plan of the GEMM with F32 sums. */
static GemmPlan *choose(const Device *d, GemmState *s, const Gemm *g) {
    const double large = 1e9; /* in FLOPs; for smaller GEMMs, the launch takes at least half of the time */
    GemmPlan *p = plan_of(s, g);
    if (p->chosen) return p;
    if (2.0 * (double)g->m * (double)g->n * (double)g->k > large &&
        cuda_of(d)->gemm_tuning != GEMM_TUNING_OFF)
        gemm_tune(d, s, p, g);
    p->chosen = true;
    return p;
}

int gemm_take_algo(const Call *c, const Gemm *g, int n) {
    GemmState *s = state_of(c->device);
    if (ends_elsewhere(s, g)) return -1;
    GemmAlgo algos[GEMM_ALGOS];
    GemmPlan *p = plan_of(s, g);
    const bool has = n < gemm_all_algos(s, p, algos);
    if (has) p->algo = algos[n];
    gemm_describe(p, p->algo.fused);
    return has ? p->algo.fused : -1;
}

size_t gemm_plan(const Call *c, const Gemm *g) {
    size_t bytes = g->dbias ? bias_gradient_scratch(g->a, g->fixed_order && !g->by_chunks) : 0;
    if (!g->m || !g->n || !g->k) return bytes;
    if (g->fixed_order) return gemm_is_narrow(g) ? std::max(bytes, gemm_narrow_scratch(g)) : bytes;
    check(g);
    CUDA_CHECK(cudaSetDevice(cuda_of(c->device)->ordinal));
    GemmState *s = state_of(c->device);
    if (ends_elsewhere(s, g)) {
        Tensor sums;
        const Gemm whole =
            in_f32(g, NULL, &sums); /* scratch memory will have the alignment that the key states */
        choose(c->device, s, &whole);
        return std::max(bytes, tensor_bytes(&sums));
    }
    const GemmPlan *p = choose(c->device, s, g);
    return p->algo.fused & GEMM_SUMS ? std::max(bytes, (size_t)g->m * sizeof(float)) : bytes;
}
