/* The plans of cuBLASLt GEMMs. Only gemm*.cu includes this file. cuBLASLt's matrices are column-major, so cuBLASLt
 * computes c^T = op(b)^T op(a)^T. */
#pragma once

#include <cublasLt.h>

#include "kernels/cuda/gemm/gemm.cuh"
extern "C" {
#include "base/str.h"
}

/* The epilogues of a GEMM. Each epilogue is fused into cuBLASLt's kernel or runs as a separate pass. */
typedef enum GemmEpilogue {
    GEMM_BIAS = 1, /* the bias is added to c */
    /* the activation of the sums is written to act; if fused, the sums are unrounded; a separate pass reads
     * the rounded c */
    GEMM_GELU = 2,
    GEMM_SUMS = 4,  /* the column sums of matrix a are computed in F32 and stored in or added to dbias */
    GEMM_DGELU = 8, /* the sums (in a separate pass: c) are multiplied by the derivative at pre */
} GemmEpilogue;

/* All values on which the choice of an algorithm may depend. Keys are compared and hashed as bytes, so they
 * must be zeroed first. */
typedef struct GemmKey {
    int64_t m, n, k;
    int32_t multiprocessors; /* number of multiprocessors that the GEMM may use, or 0 for all */
    uint8_t type, c_type;    /* type of a; type of c and of the bias */
    bool transpose_a, transpose_b, accumulate;
    uint8_t epilogues; /* a mask of GemmEpilogue */
    uint8_t align_a, align_b, align_c,
        align_bias; /* alignments of the operands' addresses in bytes, at most GEMM_ALIGN */
    uint8_t b_type;
    uint8_t scaling; /* for FP8: Gemm.fast + 2 a_blocks + 8 b_blocks */
} GemmKey;
static_assert(sizeof(GemmKey) == 40, "a GemmKey must have no padding");

enum { GEMM_ALIGN = 16, GEMM_CANDIDATES = 32, GEMM_KINDS = 3, GEMM_ALGOS = 2 * GEMM_KINDS * GEMM_CANDIDATES };
enum { GEMM_WORKSPACE = 32 << 20 }; /* bytes */

/* The algorithm of a GEMM. If the bias is not fused, it is first written to c, and the GEMM then adds to
 * c. */
typedef struct GemmAlgo {
    uint8_t fused; /* the epilogues that cuBLASLt fuses */
    cublasLtMatmulAlgo_t lt;
} GemmAlgo;

typedef struct GemmPlan {
    GemmKey key;
    GemmAlgo algo;
    bool chosen; /* true if the choice of the algorithm is final */
    cublasLtMatmulDescOpaque_t matmul;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* the layouts of the operands */
} GemmPlan;

/* A device's state (Cuda.state[CUDA_GEMM]). Only one rank and one stream use this state. */
typedef struct GemmState {
    cublasLtHandle_t handle;
    void *workspace;
    int multiprocessors; /* as in GemmKey */
    GemmPlan **plans;    /* a hash table with `room` entries, a power of two */
    size_t room, count;
    bool warned; /* true if the user has been warned that the store cannot be written */
    /* clock_ns at the end of the last measurement that heated the GPU, or 0 if there was none */
    int64_t hot_ns;
} GemmState;

/* Initializes the plan's descriptors for algorithms that fuse these epilogues. */
void gemm_describe(GemmPlan *, unsigned fused);
/* Lists the sets of epilogues that cuBLASLt may fuse, and returns their number. An unmeasured GEMM uses the first set
 * for which cuBLASLt has an algorithm. */
int gemm_kinds(const GemmKey *, unsigned fused[GEMM_KINDS]);
/* Lists cuBLASLt's algorithms for the GEMM with these epilogues, in the order in which cuBLASLt's heuristic
 * ranks them, and returns their number. After the call, the plan's descriptors describe these epilogues. Each
 * algorithm has a fixed order of summation. */
int gemm_algos(const GemmState *, GemmPlan *, unsigned fused, GemmAlgo[GEMM_CANDIDATES]);
/* Lists the algorithms for all sets of epilogues, in order. The algorithms that cuBLASLt proposes for each
 * set come first. The next entries, again for each set, are algorithms that cuBLASLt proposes only for
 * another set or without epilogues, but that also work for this set. At the end, all algorithms are listed
 * again with the other order of tiles. */
int gemm_all_algos(const GemmState *, GemmPlan *, GemmAlgo[GEMM_ALGOS]);
/* Returns true if this version of cuBLASLt supports the algorithm. After the call, the plan's descriptors
 * describe the algorithm. */
bool gemm_can(const GemmState *, GemmPlan *, const GemmAlgo *);
/* Starts the GEMM and its epilogues with the planned algorithm. */
cublasStatus_t gemm_start(const Call *, const GemmState *, GemmPlan *, const Gemm *);

/* gemm_tune.cu. Measures algorithms and chooses the fastest one that the device's --gemm-tuning allows. The operands
 * need not have memory. */
void gemm_tune(const Device *, GemmState *, GemmPlan *, const Gemm *);

/* gemm_store.cu. Keeps the measurements for this version of cuBLASLt and this kind of GPU in a file that all
 * runs share. The file's folder is $ISOTRON_CACHE_DIR if that is set, otherwise $XDG_CACHE_HOME/isotron or,
 * by default, ~/.cache/isotron. Only one process can open the file at a time. If the file is damaged or
 * cannot be written, the user is warned, and GEMMs are measured again. */
typedef struct GemmChoice {
    GemmAlgo algo;
    double us; /* time per run in microseconds under sustained load, or 0 if not measured */
} GemmChoice;
enum { GEMM_CHOICES = GEMM_TUNING_FASTEST + 1 };
typedef struct GemmRecord {
    GemmKey key;
    GemmChoice choice[GEMM_CHOICES]; /* indexed by GemmTuning */
    double first_us;                 /* time per run of the algorithm that an unmeasured GEMM would use */
} GemmRecord;
typedef struct GemmStore {
    int lock;   /* descriptor of the lock file, or -1 if there is none */
    bool alone; /* true if the lock is held */
    char *path, *head;
    Str text;
} GemmStore;
GemmStore gemm_store_open(const Cuda *, GemmState *);
bool gemm_store_find(const GemmStore *, const GemmKey *, GemmRecord *);
bool gemm_store_add(GemmStore *, GemmState *, const GemmRecord *); /* returns true if the record was stored */
void gemm_store_close(GemmStore *);

/* gemm_ordered.cu. Runs the GEMM in a fixed order of summation. */
void gemm_ordered(const Call *, const Gemm *);
/* gemm_invariant.cu. Returns true if gemm_invariant supports this GEMM. The result must not depend on the
 * number of rows. */
bool gemm_is_invariant(const Call *, const Gemm *);
void gemm_invariant(const Call *, const Gemm *);
