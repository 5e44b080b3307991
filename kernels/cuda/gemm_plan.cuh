/* How a product is given to cuBLASLt: inside of gemm*.cu. Its matrices are column-major, so that it is asked
 * for c^T = op(b)^T op(a)^T. */
#ifndef ISOTRON_KERNELS_CUDA_GEMM_PLAN_CUH
#define ISOTRON_KERNELS_CUDA_GEMM_PLAN_CUH

#include <cublasLt.h>

#include "kernels/cuda/gemm.cuh"
extern "C" {
#include "base/str.h"
}

typedef enum GemmEpilogue { GEMM_PLAIN, GEMM_BIAS } GemmEpilogue;

/* All that an algorithm may depend on. Compared and hashed as bytes: zeroed first. */
typedef struct GemmKey {
    int64_t m, n, k;
    int32_t multiprocessors; /* that the product may count on; 0: all */
    uint8_t type, c_type;    /* of a; of c and the bias */
    bool transpose_a, transpose_b, accumulate;
    uint8_t epilogue;
    uint8_t align_a, align_b, align_c,
        align_bias; /* bytes that the addresses are multiples of, at most GEMM_ALIGN */
    uint8_t b_type;
    uint8_t scaling; /* of FP8: Gemm.fast, + 2 a_blocks, + 8 b_blocks */
} GemmKey;
static_assert(sizeof(GemmKey) == 40, "a GemmKey has no bytes without a value");

enum { GEMM_ALIGN = 16, GEMM_CANDIDATES = 16, GEMM_WORKSPACE = 32 << 20 };

/* Fused: the epilogue is cuBLASLt's own; else a bias is written into c first and added to. */
typedef struct GemmWay {
    bool fused;
    cublasLtMatmulAlgo_t algo;
} GemmWay;

typedef struct GemmPlan {
    GemmKey key;
    GemmWay way;
    bool measured; /* as far as it will ever be */
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* of Gemm's */
} GemmPlan;

/* Of a device (Cuda.state[CUDA_GEMM]), so of one rank and one stream. */
typedef struct GemmState {
    cublasLtHandle_t handle;
    void *workspace;
    int multiprocessors; /* GemmKey */
    GemmPlan **plans;    /* a hash table of `room` places, a power of two */
    size_t room, count;
    bool warned; /* that the store cannot be kept */
} GemmState;

typedef struct GemmOperands {
    const void *a, *b, *bias;
    void *c;
    const void *a_inverse, *b_inverse;
} GemmOperands;

/* Descriptors for the fused or the separate way. */
void gemm_describe(GemmPlan *, bool fused);
/* The ways that cuBLASLt has for it, of that kind, the best by its own estimate first; how many. The plan is
 * described for them after that. Every one sums in an order of its own, always the same. */
int gemm_ways(const GemmState *, GemmPlan *, bool fused, GemmWay[GEMM_CANDIDATES]);
/* Whether this library can go this way; the plan is described for it after that. */
bool gemm_can(const GemmState *, GemmPlan *, const GemmWay *);
cublasStatus_t gemm_start(const GemmState *, GemmPlan *, const GemmOperands *, cudaStream_t);

/* gemm_tune.cu: the fastest of the ways with the same result, bit by bit, as plan->way; it becomes that. */
void gemm_tune(const Device *, GemmState *, GemmPlan *);

/* gemm_store.cu: what has been measured with this version of cuBLASLt on GPUs of this kind, in a file that
 * runs share: $ISOTRON_CACHE_DIR, else $XDG_CACHE_HOME/isotron, else ~/.cache/isotron. Nobody else has it
 * open meanwhile. A file that is damaged or cannot be written costs a warning and measuring again. */
typedef struct GemmRecord {
    GemmKey key;
    GemmWay way;
    double us, first_us, fastest_us; /* of the way; of cuBLASLt's first; of the fastest, whatever its bits */
} GemmRecord;
typedef struct GemmStore {
    int lock; /* -1: there is no file */
    char *path, *head;
    Str text;
} GemmStore;
GemmStore gemm_store_open(const Cuda *, GemmState *);
bool gemm_store_find(const GemmStore *, const GemmKey *, GemmRecord *);
void gemm_store_add(GemmStore *, GemmState *, const GemmRecord *);
void gemm_store_close(GemmStore *);

/* gemm_fixed.cu */
void gemm_fixed(const Call *, const Gemm *);

#endif
