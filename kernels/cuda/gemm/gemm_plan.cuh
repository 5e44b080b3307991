/* How cuBLASLt is asked for a GEMM: private to gemm*.cu. Its matrices are column-major, so that it is asked
 * for c^T = op(b)^T op(a)^T. */
#ifndef ISOTRON_KERNELS_CUDA_GEMM_GEMM_PLAN_CUH
#define ISOTRON_KERNELS_CUDA_GEMM_GEMM_PLAN_CUH

#include <cublasLt.h>

#include "kernels/cuda/gemm/gemm.cuh"
extern "C" {
#include "base/str.h"
}

/* An epilogue is fused by cuBLASLt into its kernel, or runs as a separate pass. */
typedef enum GemmEpilogue {
    GEMM_BIAS = 1,  /* added to c */
    GEMM_GELU = 2,  /* act: of the unrounded sums; a separate pass reads the rounded c */
    GEMM_SUMS = 4,  /* of a's columns: in F32, from where they are rounded or added to dbias */
    GEMM_DGELU = 8, /* the derivative at pre times the unrounded sums; a separate pass takes c */
} GemmEpilogue;

/* All that an algorithm may depend on. Compared and hashed as bytes: zeroed first. */
typedef struct GemmKey {
    int64_t m, n, k;
    int32_t multiprocessors; /* that the GEMM may count on; 0: all */
    uint8_t type, c_type;    /* of a; of c and the bias */
    bool transpose_a, transpose_b, accumulate;
    uint8_t epilogues; /* a mask of GemmEpilogue */
    uint8_t align_a, align_b, align_c,
        align_bias; /* bytes that the addresses are multiples of, at most GEMM_ALIGN */
    uint8_t b_type;
    uint8_t scaling; /* of FP8: Gemm.fast, + 2 a_blocks, + 8 b_blocks */
} GemmKey;
static_assert(sizeof(GemmKey) == 40, "a GemmKey has no bytes without a value");

enum { GEMM_ALIGN = 16, GEMM_CANDIDATES = 32, GEMM_KINDS = 3, GEMM_ALGOS = 2 * GEMM_KINDS * GEMM_CANDIDATES };
enum { GEMM_WORKSPACE = 32 << 20 }; /* bytes */

/* A bias that is not fused is written into c first and added to. */
typedef struct GemmAlgo {
    uint8_t fused; /* the epilogues that cuBLASLt does */
    cublasLtMatmulAlgo_t lt;
} GemmAlgo;

typedef struct GemmPlan {
    GemmKey key;
    GemmAlgo algo;
    bool chosen; /* as far as it will ever be */
    cublasLtMatmulDescOpaque_t matmul;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* of Gemm's */
} GemmPlan;

/* Of a device (Cuda.state[CUDA_GEMM]), so of one rank and one stream. */
typedef struct GemmState {
    cublasLtHandle_t handle;
    void *workspace;
    int multiprocessors; /* GemmKey */
    GemmPlan **plans;    /* a hash table of `room` places, a power of two */
    size_t room, count;
    bool warned;    /* that the store cannot be kept */
    int64_t hot_ns; /* clock_ns when measuring last kept the GPU busy; 0: never */
} GemmState;

/* Descriptors for algorithms with these epilogues fused. */
void gemm_describe(GemmPlan *, unsigned fused);
/* Which epilogues may be fused; an unmeasured GEMM goes by the first kind that cuBLASLt has an algorithm
 * of. How many kinds. */
int gemm_kinds(const GemmKey *, unsigned fused[GEMM_KINDS]);
/* The algorithms that cuBLASLt has for it, of that kind, the best by its own estimate first; how many. The
 * plan is described for them after that. Each sums in one fixed order. */
int gemm_algos(const GemmState *, GemmPlan *, unsigned fused, GemmAlgo[GEMM_CANDIDATES]);
/* Those of all kinds, in order; behind them those that cuBLASLt offers for one kind, or without epilogues,
 * and can go for another; then all of them with the other order of tiles. */
int gemm_all_algos(const GemmState *, GemmPlan *, GemmAlgo[GEMM_ALGOS]);
/* Whether this library has this algorithm; the plan is described for it after that. */
bool gemm_can(const GemmState *, GemmPlan *, const GemmAlgo *);
/* Starts the GEMM and its epilogues with the planned algorithm. */
cublasStatus_t gemm_start(const Call *, const GemmState *, GemmPlan *, const Gemm *);

/* gemm_tune.cu: the algorithm becomes the fastest by the device's policy. The operands need no memory. */
void gemm_tune(const Device *, GemmState *, GemmPlan *, const Gemm *);

/* gemm_store.cu: what has been measured with this version of cuBLASLt on GPUs of this kind, in a file that
 * runs share: $ISOTRON_CACHE_DIR, else $XDG_CACHE_HOME/isotron, else ~/.cache/isotron. Nobody else has it
 * open meanwhile. A file that is damaged or cannot be written costs a warning and measuring again. */
typedef struct GemmChoice {
    GemmAlgo algo;
    double us; /* under sustained load; 0: not measured */
} GemmChoice;
enum { GEMM_CHOICES = GEMM_TUNING_FASTEST + 1 };
typedef struct GemmRecord {
    GemmKey key;
    GemmChoice choice[GEMM_CHOICES]; /* by GemmTuning */
    double first_us;                 /* of the algorithm of an unmeasured GEMM */
} GemmRecord;
typedef struct GemmStore {
    int lock;   /* -1: there is no file */
    bool alone; /* the lock is held */
    char *path, *head;
    Str text;
} GemmStore;
GemmStore gemm_store_open(const Cuda *, GemmState *);
bool gemm_store_find(const GemmStore *, const GemmKey *, GemmRecord *);
bool gemm_store_add(GemmStore *, GemmState *, const GemmRecord *); /* whether it is kept */
void gemm_store_close(GemmStore *);

/* gemm_ordered.cu */
void gemm_ordered(const Call *, const Gemm *);

#endif
