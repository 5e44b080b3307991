/* The parameter registry. A module's constructor calls param_add once per parameter. All other code that handles
 * parameters (memory, initialization, gradients, optimizer groups, norms, checkpoints, HF conversion, FLOPs,
 * inspection) loops over the registry. */
#pragma once

#include "base/mem.h"
#include "comm/mesh.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

typedef enum InitKind {
    INIT_NORMAL,   /* with the standard deviation `value` */
    INIT_CONSTANT, /* `value` */
    INIT_UNIFORM,  /* uniform in [-value, value) */
    INIT_LOG,      /* log(u), where u is uniform in [1, value) */
    INIT_SOFTPLUS, /* the number whose softplus is u, where log(u) is uniform in [log(value / 100), log(value)) */
} InitKind;
typedef struct Init {
    InitKind kind;
    double value;
} Init;
/* Returns an initial value computed from 32 random bits. The kind must not be INIT_NORMAL. */
double init_from_bits(const Init *, uint32_t bits);

typedef enum ParamFlags {
    /* No weight decay: set for biases and 1-D parameters (Megatron-LM get_standard_config_overrides). */
    PARAM_NO_DECAY = 1,
    /* A word embedding or an output layer, to which --decoupled-lr applies (Megatron-LM
     * is_embedding_or_output_parameter). */
    PARAM_EMBEDDING = 2,
    /* A buffer that is saved with the parameters, but not trained: it has no gradient, is not updated, and is not part
     * of norms. */
    PARAM_BUFFER = 4,
    /* A weight that is not trained: it has no gradient, is not updated, and is not part of norms. */
    PARAM_FROZEN = 8,
    /* A weight whose update depends on the entire matrix (registry_mark_matrices). A single data-parallel
     * rank updates the entire parameter. */
    PARAM_MATRIX = 16,
    /* A weight whose gradient has a separate norm and does not count in the other gradients' norm. */
    PARAM_APART = 32,
    /* A weight with a separate learning rate and epsilon, which depend on the model's width (--use-mup). */
    PARAM_RESCALED = 64,
    /* A matrix that Muon does not update (Megatron-LM use_muon = False). */
    PARAM_NO_MUON = 128,
    /* A weight whose master and optimizer state are in host memory (registry_mark_offloaded). */
    PARAM_OFFLOADED = 256,
} ParamFlags;

/* The suffix in the names of buffers that contain the state of delayed FP8 scaling. This state affects only
 * rounding. */
#define PARAM_FP8_STATE ".fp8_state"
bool param_is_fp8_state(const char *name);

/* A logical block of rows within a fused parameter. Parts are split, resharded and exported separately. With several
 * groups, the rows are group-major: [group 0: part 0, part 1, ...], [group 1: ...]. A part has `rows` rows in each
 * group, as in Megatron-LM's fused QKV. */
typedef struct ParamPart {
    const char *name; /* such as "q", "k", "v", "gate" or "up" */
    int64_t rows;     /* number of rows per group */
} ParamPart;

enum { PARAM_PARTS = 6, SPLIT_NONE = -1 };

/* Specifies the data that data-parallel ranks shard (ZeRO: Rajbhandari et al., 2020), and the bucket sizes.
 * Megatron-LM's --use-distributed-optimizer is stage 1; its FSDP supports all stages. */
typedef struct DataParallel {
    /* 0 shards nothing; 1 shards masters and optimizer state; 2 also shards main gradients; 3 also shards values */
    int stage;
    int instances;       /* number of rank groups that each hold all shards (hybrid sharding); 0 means 1 */
    int64_t bucket_size; /* number of elements after which a bucket ends; if 0, num_buckets is used instead */
    int num_buckets;     /* number of buckets of about equal size; 0 means one bucket, or one per unit at
                            stages 2 and 3 */
    /* whether each bucket is summed as soon as its last gradient is complete; otherwise, all buckets are
     * summed at the end */
    bool overlap_grads;
    bool overlap_values; /* whether values are gathered during the next forward pass, instead of before it */
    /* whether sums and gathers start at the next attention op, instead of as soon as possible */
    bool with_attention;
    /* If storage is BF16, main gradients are also BF16. BF16 gradients are rounded after each microbatch, and
     * in each sum over ranks (comm.h). */
    bool bf16_grads;
} DataParallel;

/* Describes how a model's parameters and activations are distributed over ranks. */
typedef struct Layout {
    Mesh mesh;
    /* whether activations between tensor-parallel regions are sharded along the sequence */
    bool sequence_parallel;
    DataParallel data;
} Layout;
Layout layout_single(void); /* the layout for one rank */
/* A NULL layout means one rank. */
static inline bool layout_is_sequence_parallel(const Layout *l) { return l && l->sequence_parallel; }

typedef struct ParamSpec {
    const char *name; /* name in Megatron-LM's state dict; must outlive the registry */
    int ndim;         /* 1 or 2 */
    int64_t dim[2];   /* the global logical shape, without padding */
    /* number of rows in memory; 0 means dim[0]. Padding rows, and their gradients, are zero */
    int64_t padded;
    /* the dimension that is split over the tensor-parallel axis, or SPLIT_NONE if the parameter is replicated */
    int tp_split;
    /* whether each part of each group ([gate; up]) is split by rows separately, instead of all rows together */
    bool split_parts;
    /* whether groups are experts; if so, groups are split over EP, and tp_split applies to ETP */
    bool expert;
    /* The parameter is not split, and every tensor-parallel rank computes its full gradient (SPMD_I) from equal
     * activations. If `invariant` is false, the ranks' gradients must be summed (SPMD_R). */
    bool invariant;
    Init init; /* initial values depend only on (seed, name, global element index), and are rounded to
                * float */
    unsigned flags;
    /* I8 or F8E4M3 if the weight is stored in one byte per element (quantized.h) and is not trained; otherwise F64 */
    DType quantized;
    int64_t groups; /* number of groups of parts; 0 means that the entire parameter is one part */
    int64_t
        heads; /* number of heads with equal numbers of a part's rows; other programs store them head by head */
    int n_parts;
    ParamPart parts[PARAM_PARTS];
} ParamSpec;

typedef struct Param {
    ParamSpec spec;
    int64_t offset; /* first element in the flat layout, set by registry_allocate */
    /* number of the parameter's elements in this rank's memory, including padding rows */
    int64_t count;
    int64_t rows, columns;             /* size of this rank's shard in memory; a vector has one column */
    int64_t first_group, first_column; /* position of this rank's shard in the full parameter */
    /* index of this rank's shard along the tp_split axis, and number of shards; 0 and 1 if the parameter is not
     * split */
    int shard, shards;
    int number, unit, bucket;
    /* number of stages on this rank that use the parameter; each stage runs one backward sweep per
     * microbatch */
    int stages;
    /* The pipeline ranks that hold a copy of a tied parameter, in ascending order. n_holders is 0 if the
     * parameter is not tied. All copies' gradients are summed. Norms and checkpoints use the first copy. */
    int *holders, n_holders;
    /* `value` has the storage dtype, F8E4M3 or I8. value.grad is &main_grad, or NULL if the parameter is not
     * trained. `value`, `main_grad` and `master` have no data while they are sharded (sync.h). */
    Tensor value;
    /* F64 in the fp64 lane, otherwise F32, or BF16 (see DataParallel). The tensor's flags are ACCUM | MAIN_GRAD.
     * Without ACCUM, the tensor is unwritten: its content is undefined, and the next gradient overwrites it. */
    Tensor main_grad;
    Tensor master;         /* F64 or F32; shares memory with `value` unless `value` is 16-bit or 8-bit */
    struct Fp8Weight *fp8; /* NULL if the weight is not stored in FP8 (fp8_weights.h) */
    Tensor inverse;        /* [rows]: the factors of a quantized weight (quantized.h) */
} Param;

static inline bool param_is_trained(const Param *p) {
    return !(p->spec.flags & (PARAM_BUFFER | PARAM_FROZEN));
}

/* Returns the parameter whose `value` is the given tensor. The parameter must be trained. */
static inline Param *param_of(const Tensor *value) {
    return (Param *)((char *)value->grad - offsetof(Param, main_grad));
}

/* Returns whether the next gradient overwrites this main gradient. */
static inline bool grad_is_unwritten(const Tensor *main_grad) { return !(main_grad->flags & TENSOR_ACCUM); }

enum { PARAM_ALIGN = 64 };

/* A rank's part of a buffer: elements [begin, end) of the registry's flat layout. They begin at element `at` of the
 * buffer's part in host memory if `on_host` is true, and otherwise of the rank's buffer. */
typedef struct FlatRange {
    int64_t begin, end, at;
    bool on_host;
} FlatRange;

/* The flat buffers. FLAT_FP8 contains the values of FP8 weights and quantized weights, one byte each, and FLAT_VALUES
 * contains all other values. The optimizer owns its states, which have the same layout: FLAT_MATRIX_STATE contains
 * elements for PARAM_MATRIX parameters, and FLAT_STATE contains elements for all other trained parameters. */
typedef enum FlatBuffer {
    FLAT_VALUES,
    FLAT_FP8,
    FLAT_GRADS,
    FLAT_MASTERS,
    FLAT_STATE,
    FLAT_MATRIX_STATE,
    FLAT_BUFFERS
} FlatBuffer;

typedef struct Bucket Bucket;

typedef struct Registry {
    Layout layout;
    Param **params; /* in registration order */
    int n, unit;
    /* whether names may be repeated; if so, param_add returns the registered parameter */
    bool repeats;
    Param **laid; /* parameters in flat-layout order */
    Bucket *buckets;
    int n_buckets;
    FlatRange *ranges[FLAT_BUFFERS]; /* [n_buckets]: the part of each bucket that this rank keeps */
    /* number of elements in each buffer on this rank, in device memory and in host memory */
    int64_t held[FLAT_BUFFERS], offloaded[FLAT_BUFFERS];
    /* a hash table whose slots contain 1 + the index in params, or 0 if free; the number of slots is a power of
     * two */
    int *by_name, slots;
    int64_t elements; /* number of elements in the flat layout, including alignment gaps */
    /* the types of values, of main gradients, and of masters and optimizer state */
    DType storage, gradients, precise;
    /* whether there are main gradients; if false, only buffers have masters in separate memory */
    bool trains;
    Device *device;
    /* flat buffers with this rank's parts (bucket.h); masters == values unless storage is 16-bit */
    void *values, *fp8, *grads, *masters;
    void *host_masters; /* the masters of PARAM_OFFLOADED weights, which kernels can also access */
    void *fp8_scales;   /* amaxes and scales of FP8 weights */
    /* number of amaxes (stored before the scales), and of those that belong to dense weights */
    int64_t fp8_amaxes, fp8_dense_amaxes;
    size_t fp8_scale_bytes;
    void *row_scales; /* factors of quantized weights */
    size_t row_scale_bytes;
    struct States *states; /* NULL if there are no states (state.h) */
    Arena *arena;
} Registry;

/* Creates a registry. A NULL layout means one rank. */
Registry *registry_new(const Layout *);
void registry_free(Registry *);
/* Registers a parameter. The returned address is stable. registry_allocate sets the tensors' data. A repeated
 * name is a fault, unless Registry.repeats is true. */
Param *param_add(Registry *, ParamSpec);
/* Like param_add, but returns the registered parameter if the name is repeated. */
Param *param_share(Registry *, ParamSpec);
/* Adds a pipeline rank that holds a copy of the parameter. If several ranks hold copies, call this function for each
 * rank in ascending order. */
void param_add_holder(Registry *, Param *, int rank);
static inline bool param_is_tied(const Param *p) { return p->n_holders > 1; }
Param *registry_find(const Registry *, const char *name); /* returns NULL if there is no such parameter */
/* Sets the flag PARAM_FROZEN or PARAM_APART for the weight `name`, and for all weights in the module `name`,
 * such as "decoder.layers.0". Call this function before registry_allocate. Every data-parallel rank holds the
 * values and masters of frozen weights; no rank allocates memory for their gradients or optimizer state.
 * Returns the number of weights that have the flag. */
int registry_mark(Registry *, const char *name, ParamFlags flag);
/* Sets PARAM_MATRIX for the trained weights that Megatron-LM's Muon updates: all two-dimensional weights except the
 * word embedding, the output layer and those with PARAM_NO_MUON. Call this function before registry_allocate, and after weights have been
 * frozen. */
void registry_mark_matrices(Registry *);
/* If `matrices` is true, sets PARAM_RESCALED for all trained matrices except embeddings and the output layer;
 * otherwise, sets it for all other trained weights. Excludes weights with a flag in `except`. Call this
 * function after registry_mark_matrices and before registry_allocate. */
void registry_mark_rescaled(Registry *, bool matrices, unsigned except);
/* Visits trained weights in the order in which a backward pass completes their gradients. Sets PARAM_OFFLOADED for each
 * weight, unless the offloaded weights would then contain more than this fraction of all trained elements. Call this
 * function after weights have been frozen, and before registry_allocate. If storage is not 16-bit, there are no separate
 * masters, and only optimizer state is offloaded. */
void registry_mark_offloaded(Registry *, double fraction);
/* Begins a unit, a set of parameters that are used together, such as a layer. At stage 3, a unit's values are gathered
 * together. */
void registry_begin_unit(Registry *);
/* Allocates the flat buffers (zeroed) on the device. Masters and main gradients are F64 if the storage type is
 * F64, otherwise F32. With DataParallel.bf16_grads, main gradients are BF16. If `trains` is false, allocates only the
 * values, and the masters of buffers. */
void registry_allocate(Registry *, Device *, DType storage, bool trains);
/* Returns zeroed host memory for a buffer's offloaded part. Returns NULL on the null device, and for 0 bytes. */
void *registry_host_alloc(const Registry *, size_t bytes, const char *what);
/* returns the total size in device memory of values, main gradients and masters in bytes */
size_t registry_bytes(const Registry *);
/* returns the size of the values in bytes, including the scales of FP8 weights */
size_t registry_value_bytes(const Registry *);
/* Return the size of one buffer's part in device memory or in host memory, in bytes. The results are 0 for masters that
 * share memory with the values. */
size_t registry_offloaded_bytes(const Registry *, FlatBuffer);
size_t registry_flat_bytes(const Registry *, FlatBuffer);
DType registry_dtype(const Registry *, FlatBuffer);
/* Initializes every parameter: draws the masters, and rounds the values from them. */
void registry_init(Registry *, uint64_t seed);
/* Rounds values from masters, except for FP8 weights (fp8_weights_cast). Call this function after masters have
 * changed. Does nothing unless the storage type is 16-bit. */
void registry_round_values(Registry *);
/* Like registry_round_values, but only for buffers (PARAM_BUFFER). */
void registry_round_buffers(Registry *);
/* Zeroes x, which is in the registry's device memory. */
void registry_zero(const Registry *, Tensor *x);
/* Marks main gradients as unwritten: the first gradient overwrites them. Zeroing and adding would give the same
 * results, except for the sign of a zero sum, on which no norm, update or comparison depends. */
void grads_mark_unwritten(Registry *);
void grad_mark_unwritten(Param *);
/* Fills main gradients that are still unwritten with zeros. Call this function before the gradients are read. */
void grads_zero_unwritten(Registry *);
void grad_zero_unwritten(Registry *, Param *);
/* Returns whether any main gradient is unwritten. Call grads_mark_written after launching a CUDA graph that
 * writes all main gradients. */
bool grads_are_unwritten(const Registry *);
void grads_mark_written(Registry *);
/* Rounds this rank's part of a buffer (masters or gradients) to the exact lane's grid, which consists of the multiples
 * of 2^-bits. */
void registry_snap(Registry *, FlatBuffer, int bits);
/* Returns the number of elements in the full parameter, without padding. */
int64_t param_logical_count(const Param *);
/* Returns the number of rows in this rank's memory, without padding. */
int64_t param_filled_rows(const Param *);
/* Returns the mask (dense or expert) of the axes over which the gradient is summed, that is, the axes on which
 * the parameter is SPMD_R. */
unsigned param_sum_axes(const Param *);
/* Returns whether this rank is primary for the elements that it holds. The primary rank of an element is the
 * first rank that holds the element. Norms and checkpoints include only the elements on primary ranks. */
bool param_is_owned(const Registry *, const Param *);
/* Like param_is_owned, but compares only ranks that differ on `axes` (a mask), for elements that are sharded
 * over the other axes. */
bool param_is_owned_on(const Registry *, const Param *, unsigned axes);

/* ---- parts: the units in which checkpoints and exports store parameters ---- */

/* A range of rows and columns. A vector has one column. */
typedef struct Box {
    int64_t offset[2], shape[2];
} Box;

/* Returns the number of rows of part `part` in all groups of the full parameter. */
int64_t param_part_rows(const Param *, int part);
/* Returns the number of boxes of a part that this rank holds; param_box returns box i. Row offsets are counted
 * over all groups. No box is empty. */
int param_boxes(const Param *, int part);
Box param_box(const Param *, int part, int i);
/* Returns the row of this rank's memory that contains row `row` of the part. The row must be in a box. */
int64_t param_memory_row(const Param *, int part, int64_t row);
/* Returns the row of the full parameter that memory row `row` contains, or -1 if memory row `row` is
 * padding. */
int64_t param_global_row(const Param *, int64_t row);
