/* The optimizer step over the registry's flat buffers: AdamW (Loshchilov & Hutter, 2019; Megatron-LM's fused
 * Adam), SGD with momentum (as in PyTorch), Lion (Chen et al., 2023) and Muon (muon.h). As in Megatron-LM
 * core/optimizer/optimizer.py, a step unscales the gradients, checks them for infinities, clips them by the
 * global norm, updates the masters, and rounds the values from the masters.
 *
 * Each rank updates its part of a bucket (param/bucket.h). A norm is the exact sum of partial sums over
 * blocks of 64 elements, so the norm is bitwise equal for any data-parallel and pipeline sharding. Each op is
 * called once per bucket, regardless of the number of parameters in the bucket. Muon's ops are called for
 * each parameter.
 *
 * With --optimizer-cpu-offload, the masters and the state of some buckets are in host memory (Bucket.offloaded). The
 * CPU's kernels update them in chunks: the host copies a chunk's gradients to pinned memory, updates the chunk, and
 * copies the new values back. */
#pragma once

#include "base/exact_sum.h"
#include "config/config.h"
#include "kernels/attr.h"
#include "optim/muon.h"
#include "param/param.h"
#include "param/sync.h"

enum { OPTIM_BUFFERS = 3 };

/* The pieces of parameters in a bucket (kernels/attr.h), relative to the start of this rank's part. The pieces of
 * parameters for which this rank is primary come first. */
typedef struct BucketPieces {
    int64_t first, n_primary, n; /* range in the table of all pieces */
} BucketPieces;

/* A range of an offloaded bucket: elements [begin, begin + n) of the flat layout, and a range of OffloadedPart.pieces,
 * which are relative to `begin`. */
typedef struct HostChunk {
    int bucket;
    int64_t begin, n, first_piece, pieces;
} HostChunk;

enum { HOST_SIDES = 2 };

/* The parameters that the host updates. While it updates a chunk, the next chunk's gradients and the previous chunk's
 * values may be copied, so there are two sides of pinned memory. */
typedef struct OffloadedPart {
    Device *cpu;
    HostChunk *chunks;
    int64_t n; /* number of chunks; 0 if nothing is offloaded */
    FlatPiece *pieces;
    int64_t longest; /* number of elements in the longest chunk */
    struct {
        void *grad, *master; /* master: only if the masters are the values, in device memory */
        DeviceEvent *copied;
    } side[HOST_SIDES];
} OffloadedPart;

/* A step's inputs and outputs. */
typedef struct OptimState {
    /* clipped, squares and outcome have two entries: for parameters without PARAM_APART, and for parameters
     * with PARAM_APART */
    StepNumbers given, clipped[CLIP_NORMS];
    ExactSum squares[CLIP_NORMS];
    ClipOutcome outcome[CLIP_NORMS];
    int64_t zeros;
    ExactSum params; /* the parameters' sum of squares after the update */
} OptimState;

typedef struct Optimizer {
    const Config *config;
    Registry *registry;
    Sync *sync;                /* NULL if there is only one rank; the Sync must outlive the optimizer */
    int64_t step;              /* number of updates so far, for bias correction */
    OptimState *state;         /* device memory */
    OptimState *host;          /* the host's copy of the inputs and outputs */
    DeviceRecording recording; /* the step's CUDA graph, with --cuda-graph-impl local */
    FlatPiece *pieces;         /* device memory: the pieces of all buckets */
    int64_t n_pieces;
    BucketPieces *of_bucket;
    Muon *muon; /* NULL if no parameter has PARAM_MATRIX */
    int n_buffers;
    struct {
        /* suffix of the state's name in checkpoints: ".exp_avg", ".exp_avg_sq", ".momentum_buffer" */
        const char *suffix;
        FlatBuffer layout; /* FLAT_STATE or FLAT_MATRIX_STATE */
        /* the registry's type `precise`, unless --use-precision-aware-optimizer is given */
        DType dtype;
        void *flat, *host; /* this rank's part, and its offloaded buckets in host memory */
    } buffer[OPTIM_BUFFERS];
    OffloadedPart offloaded;
} Optimizer;

Optimizer *optim_new(const Config *, Registry *, Sync *);
void optim_free(Optimizer *);
/* Return the bytes in device memory, and those of offloaded parameters in host memory. */
size_t optim_bytes(const Optimizer *);
size_t optim_offloaded_bytes(const Optimizer *);
/* Returns the name of the op that updates the parameter. */
const char *optim_op_name(const Config *, const Param *);
/* For a dry run, runs the GEMMs of an update on the null device. */
void optim_dry_run(const Optimizer *);
/* Runs all ops of a step on the null device, without communication. */
void optim_dry_step(const Optimizer *);
/* Returns the storage type for Adam's first (0) or second (1) moment. */
DType optim_moment_type(const Config *, int moment, DType precise);

typedef struct OptimStep {
    double lr, decoupled_lr; /* decoupled_lr: for embeddings and the output layer */
    double rescaled_lr;      /* for parameters with PARAM_RESCALED */
    double weight_decay;
    /* The factor by which the main gradient is multiplied to get the gradient of the reported loss. The factor
     * undoes the loss scale, and converts the gradient's sum to a mean. */
    double grad_scale;
    bool exact; /* whether masters are rounded to the grid of the exact lane */
} OptimStep;

typedef struct OptimResult {
    /* L2 norm of the gradient before clipping, over all parameters without PARAM_APART */
    double grad_norm;
    double clip;        /* min(1, clip_grad / (norm + 1e-6)), or 1 if clipping is off */
    double num_zeros;   /* number of zeros in the gradient, or -1 if --log-num-zeros-in-grad is not set */
    double params_norm; /* L2 norm of the masters after the update, or -1 if --log-params-norm is not set */
    bool found_inf;     /* true if the gradient was not finite, so that the parameters were not updated */
} OptimResult;

/* Performs a step. All ranks must call this function, and all receive the same result. If there is only one
 * rank, the host waits for the device only once, at the end of the step. */
OptimResult optim_step(Optimizer *, OptimStep);
