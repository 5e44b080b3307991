/* The parameter registry. A module's constructor calls param_add once per parameter; all other code about parameters
 * (memory, init, gradients, optimizer groups, norms, checkpoints, HF conversion, FLOPs, inspection) loops over the
 * registry. */
#pragma once

#include "base/mem.h"
#include "comm/mesh.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

typedef enum InitKind { INIT_NORMAL, INIT_CONSTANT } InitKind;
typedef struct Init {
    InitKind kind;
    double value; /* the standard deviation, or the constant */
} Init;

typedef enum ParamFlags {
    PARAM_NO_DECAY =
        /* Without weight decay: biases and 1-D parameters (Megatron-LM get_standard_config_overrides). */
    1,
    /* Word embedding or output layer: uses --decoupled-lr (Megatron-LM is_embedding_or_output_parameter). */
    PARAM_EMBEDDING = 2,
    /* A buffer that is saved with the parameters, but not trained: it has no gradient and no update, and does
     * not count in norms. */
    PARAM_BUFFER = 4,
    /* A weight that is not trained: it has no gradient and no update, and does not count in
     * norms. */
    PARAM_FROZEN = 8,
    /* A weight whose update depends on the whole matrix (registry_mark_matrices). Data-parallel ranks that
     * shard it assign the whole parameter to one rank. */
    PARAM_MATRIX = 16,
    /* A weight whose gradient does not count in the norm of the others, and has a separate norm. */
    PARAM_APART = 32,
} ParamFlags;

/* Suffix of the names of buffers with the state of delayed FP8 scaling, which affects only rounding. */
#define PARAM_FP8_STATE ".fp8_state"
bool param_is_fp8_state(const char *name);

/* A logical block of rows inside a fused parameter. Parts are split, resharded and exported separately. If
 * there are several groups, the rows are group-major: [group 0: part 0, part 1, ...], [group 1: ...], and a
 * part has `rows` rows in each group (as in Megatron-LM's fused QKV). */
typedef struct ParamPart {
    const char *name; /* "q", "k", "v", "gate", "up" */
    int64_t rows;     /* per group */
} ParamPart;

enum { PARAM_PARTS = 3, SPLIT_NONE = -1 };

/* Selects the data that data-parallel ranks shard (ZeRO: Rajbhandari et al., 2020), and the sizes of the
 * buckets. Megatron-LM's --use-distributed-optimizer is stage 1; its FSDP supports all stages. */
typedef struct DataParallel {
    int stage;           /* 0 shards nothing, 1 masters and optimizer state, 2 also main gradients, 3 also
                            values */
    int instances;       /* number of rank groups that each hold all shards (hybrid sharding); 0 means 1 */
    int64_t bucket_size; /* number of elements after which a bucket ends; if 0, num_buckets decides */
    int num_buckets;     /* number of buckets of about equal size; 0 means one bucket, or one per unit at
                            stages 2 and 3 */
    bool overlap_grads;  /* true: a bucket is summed as soon as its last gradient is complete; false: all
                            buckets are summed at the end */
    bool overlap_values; /* true: values are gathered during the next forward pass; false: before it */
    bool with_attention; /* true: sums and gathers start at the next attention op; false: as soon as
                            possible */
    /* If storage is BF16, main gradients are BF16 too. They are rounded to BF16 after each microbatch and in
     * each sum over ranks (comm.h). */
    bool bf16_grads;
} DataParallel;

/* Describes how the parameters and activations of a model are distributed over ranks. */
typedef struct Layout {
    Mesh mesh;
    bool sequence_parallel; /* whether activations between the tensor-parallel regions are sharded along the
                               sequence */
    DataParallel data;
} Layout;
Layout layout_single(void); /* one rank */
/* NULL: one rank. */
static inline bool layout_is_sequence_parallel(const Layout *l) { return l && l->sequence_parallel; }

typedef struct ParamSpec {
    const char *name; /* Megatron's state-dict name; must outlive the registry */
    int ndim;         /* 1 or 2 */
    int64_t dim[2];   /* global logical shape: no padding */
    int64_t padded;   /* number of rows in memory; 0 means dim[0]. Padding rows and their gradients are
                         zero */
    int tp_split;     /* dimension that is split over the tensor-parallel axis; SPLIT_NONE if the parameter is
                         replicated */
    bool split_parts; /* whether a split of rows splits each part of each group ([gate; up]) instead of all
                         rows together */
    bool expert;      /* whether groups are experts, which are split over EP; tp_split then applies to ETP */
    /* The parameter is not split, and every tensor-parallel rank computes its full gradient (SPMD_I) from
     * equal activations. Otherwise, the gradients of the ranks must be summed (SPMD_R). */
    bool invariant;
    Init init; /* values are drawn at (seed, name, global element index), and rounded to float */
    unsigned flags;
    int64_t groups; /* number of groups of parts; 0 means that the whole parameter is one part */
    int n_parts;
    ParamPart parts[PARAM_PARTS];
} ParamSpec;

typedef struct Param {
    ParamSpec spec;
    int64_t offset;                    /* first element in the flat layout; set by registry_allocate */
    int64_t count;                     /* number of elements in this rank's memory, including padding rows */
    int64_t rows, columns;             /* size of this rank's memory; a vector has one column */
    int64_t first_group, first_column; /* position of this rank's memory in the full parameter */
    int shard, shards; /* index of this rank's shard on the axis of tp_split, and number of shards; 0 and 1 if
                          the parameter is not split */
    int number, unit, bucket;
    int stages; /* number of this rank's stages that use it; each runs one backward sweep per microbatch */
    /* The pipeline ranks that hold a copy, in ascending order. n_holders is 0 if the parameter is not tied.
     * The gradients of all copies are summed; norms and checkpoints use the first one. */
    int *holders, n_holders;
    /* `value` has the storage dtype, or is F8E4M3. value.grad is &main_grad, or NULL if the parameter is not trained.
     * `value`, `main_grad` and `master` have no data while the ranks shard them (sync.h). */
    Tensor value;
    /* F64 in the fp64 lane, otherwise F32, or BF16 (see DataParallel). Flags ACCUM | MAIN_GRAD. Without ACCUM
     * it is unwritten: the content is undefined, and the next gradient overwrites it. */
    Tensor main_grad;
    Tensor master;         /* F64 or F32; shares the memory of `value` unless that has 16 or 8 bits */
    struct Fp8Weight *fp8; /* fp8_weights.h; NULL: not stored in FP8 */
} Param;

static inline bool param_is_trained(const Param *p) {
    return !(p->spec.flags & (PARAM_BUFFER | PARAM_FROZEN));
}

/* The parameter whose `value` is this tensor. It must be trained. */
static inline Param *param_of(const Tensor *value) {
    return (Param *)((char *)value->grad - offsetof(Param, main_grad));
}

/* Whether the next gradient overwrites this main gradient. */
static inline bool grad_is_unwritten(const Tensor *main_grad) { return !(main_grad->flags & TENSOR_ACCUM); }

enum { PARAM_ALIGN = 64 };

/* Elements [begin, end) of the registry's flat layout; they begin at element `at` of a rank's buffer. Describes a
 * rank's part of a flat buffer that data-parallel ranks shard. */
typedef struct FlatRange {
    int64_t begin, end, at;
} FlatRange;

/* The flat buffers. FLAT_FP8 has the values of FP8 weights, and FLAT_VALUES all others. The optimizer owns its states,
 * which have the same layout: FLAT_MATRIX_STATE has the elements of PARAM_MATRIX, and FLAT_STATE those of all other
 * trained parameters. */
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
    bool repeats; /* if set, a repeated name is not a fault: param_add returns the parameter that has it */
    Param **laid; /* parameters in the order of the flat layout */
    Bucket *buckets;
    int n_buckets;
    FlatRange *ranges[FLAT_BUFFERS]; /* [n_buckets]: the part of each bucket that this rank keeps */
    int64_t held[FLAT_BUFFERS];      /* number of elements of each buffer on this rank */
    int *by_name, slots; /* hash table of (index in params) + 1, or 0 for a free slot; slots is a power of
                            two */
    int64_t elements;    /* number of elements of the flat layout, including alignment gaps */
    DType storage, gradients, precise; /* dtype of values; of main gradients; of masters and optimizer
                                          state */
    bool trains; /* if false, there are no main gradients, and only buffers have masters in separate memory */
    Device *device;
    void *values, *fp8, *grads, *masters; /* flat buffers with this rank's parts (bucket.h); masters == values
                                             unless storage is 16-bit */
    void *fp8_scales;                     /* amaxes and scales of FP8 weights */
    int64_t fp8_amaxes; /* number of the amaxes, which come first; 0: there are no FP8 weights */
    size_t fp8_scale_bytes;
    struct States *states; /* state.h; NULL: none */
    Arena *arena;
} Registry;

/* NULL: one rank. */
Registry *registry_new(const Layout *);
void registry_free(Registry *);
/* Registers a parameter. The returned address is stable. The tensors have data after registry_allocate. A repeated
 * name is a fault, unless Registry.repeats is set. */
Param *param_add(Registry *, ParamSpec);
/* Like param_add, but returns the registered parameter if the name is repeated. */
Param *param_share(Registry *, ParamSpec);
/* Adds a pipeline rank that holds a copy of the parameter. If several ranks hold copies, call it for each of
 * them, in ascending order. */
void param_add_holder(Registry *, Param *, int rank);
static inline bool param_is_tied(const Param *p) { return p->n_holders > 1; }
Param *registry_find(const Registry *, const char *name); /* NULL if there is none */
/* Sets a flag, PARAM_FROZEN or PARAM_APART, of the weight `name` and of all weights whose names begin with `name` and a
 * dot ("decoder.layers.0"). Call it before registry_allocate. Every data-parallel rank holds values and masters of
 * frozen weights, and no rank has memory for their gradients and optimizer state. Returns the number of these
 * weights. */
int registry_mark(Registry *, const char *name, ParamFlags flag);
/* Sets PARAM_MATRIX for the trained weights that Megatron-LM's Muon updates: all with two dimensions except the word
 * embedding and the output layer. Call it before registry_allocate, after weights have been frozen. */
void registry_mark_matrices(Registry *);
/* Begins a unit: parameters that are used together, such as a layer. At stage 3, the values of a unit are gathered
 * together. */
void registry_begin_unit(Registry *);
/* Allocates the flat buffers (zeroed) on the device. Masters and main gradients are F64 if the storage type
 * is F64, otherwise F32. With DataParallel.bf16_grads, main gradients are BF16. If `trains` is false, there
 * are only values, and masters of buffers. */
void registry_allocate(Registry *, Device *, DType storage, bool trains);
size_t registry_bytes(const Registry *);       /* the number of bytes of values, main gradients and masters */
size_t registry_value_bytes(const Registry *); /* bytes of values, with the scales of FP8 weights */
/* The number of bytes of one buffer. It is 0 for masters that share the memory of the values. */
size_t registry_flat_bytes(const Registry *, FlatBuffer);
DType registry_dtype(const Registry *, FlatBuffer);
/* Initialises every parameter: draws the masters and rounds the values from them. */
void registry_init(Registry *, uint64_t seed);
/* Rounds values from masters, except those of FP8 weights (fp8_weights_cast). Call it after masters have changed. It
 * does nothing unless storage is 16-bit. */
void registry_round_values(Registry *);
/* Like registry_round_values, but only for buffers (PARAM_BUFFER). */
void registry_round_buffers(Registry *);
/* Fills x with zeros. x is in memory of the registry's device. */
void registry_zero(const Registry *, Tensor *x);
/* Marks main gradients as unwritten: the first gradient overwrites them. The results equal those of zeroing
 * and adding, except that a sum of zeros may be -0 instead of +0. No norm, update or comparison depends on
 * that. */
void grads_mark_unwritten(Registry *);
void grad_mark_unwritten(Param *);
/* Fills main gradients that are still unwritten with zeros. Call it before they are read. */
void grads_zero_unwritten(Registry *);
void grad_zero_unwritten(Registry *, Param *);
/* Whether any main gradient is unwritten. Call grads_mark_written after a CUDA graph that wrote all main
 * gradients. */
bool grads_are_unwritten(const Registry *);
void grads_mark_written(Registry *);
/* Rounds this rank's part of a buffer (masters or gradients) to multiples of 2^-bits, the grid of the exact
 * lane. */
void registry_snap(Registry *, FlatBuffer, int bits);
/* The number of elements of the full parameter, without padding. */
int64_t param_logical_count(const Param *);
/* The number of rows in this rank's memory, without padding. */
int64_t param_filled_rows(const Param *);
/* A mask (dense or expert) of the axes over which the gradient is summed, because the parameter is SPMD_R on
 * them. */
unsigned param_sum_axes(const Param *);
/* Whether this rank is primary for its elements, that is, whether it is the first of the ranks that hold
 * them. Only primary ranks count in norms and write checkpoints. */
bool param_is_owned(const Registry *, const Param *);
/* Like param_is_owned, but compares only ranks that differ on these axes (a mask). Use it for elements that are sharded
 * over the other axes. */
bool param_is_owned_on(const Registry *, const Param *, unsigned axes);

/* ---- parts: the units of checkpoints and of export ---- */

/* A range of rows and columns. A vector has one column. */
typedef struct Box {
    int64_t offset[2], shape[2];
} Box;

/* The number of rows of part `part` in the full parameter, over all groups. */
int64_t param_part_rows(const Param *, int part);
/* The number of boxes of a part that this rank holds; param_box returns box i. Rows are counted over all groups. No
 * box is empty. */
int param_boxes(const Param *, int part);
Box param_box(const Param *, int part, int i);
/* The row of this rank's memory that holds row `row` of the part. The row must be in a box. */
int64_t param_memory_row(const Param *, int part, int64_t row);
/* The row of the full parameter that memory row `row` holds, or -1 if it is padding. */
int64_t param_global_row(const Param *, int64_t row);
