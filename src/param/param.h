/* The parameter registry. A module's constructor calls param_add once per parameter; everything else about
 * parameters (memory, init, gradients, optimizer groups, norms, checkpoints, HF conversion, FLOPs,
 * inspection) is a loop over it. */
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
        /* No weight decay: biases and 1-D parameters (Megatron-LM get_standard_config_overrides). */
    1,
    /* Word embedding or output layer: takes --decoupled-lr (Megatron-LM is_embedding_or_output_parameter). */
    PARAM_EMBEDDING = 2,
    /* Saved with the parameters, but not trained: no gradient, no update, not in norms. */
    PARAM_BUFFER = 4,
    /* A weight that is not trained (registry_freeze): no gradient, no update, not in norms. */
    PARAM_FROZEN = 8,
} ParamFlags;

/* Suffix of the names of FP8's delayed scales: buffers that affect rounding only, not the model. */
#define PARAM_FP8_STATE ".fp8_state"
bool param_is_fp8_state(const char *name);

/* A logical block of rows inside a fused parameter: split, resharded and exported separately. With `groups`
 * groups the rows are group-major: [group 0: part 0, part 1, ...], [group 1: ...], each part `rows` rows per
 * group (Megatron-LM's fused QKV). */
typedef struct ParamPart {
    const char *name; /* "q", "k", "v", "gate", "up" */
    int64_t rows;     /* per group */
} ParamPart;

enum { PARAM_PARTS = 3, SPLIT_NONE = -1 };

/* The data that data-parallel ranks shard (ZeRO: Rajbhandari et al., 2020), and in which pieces.
 * Megatron-LM's --use-distributed-optimizer is stage 1, its FSDP has all stages. */
typedef struct DataParallel {
    int stage;           /* 0: none, 1: masters and optimizer state, 2: also main gradients, 3: also values */
    int instances;       /* groups of ranks that each hold all shards (hybrid sharding); 0, 1: one */
    int64_t bucket_size; /* a bucket ends at this many elements; 0: see num_buckets */
    int num_buckets;     /* buckets of about equal size; 0: one, or at stages 2 and 3 one per unit */
    bool overlap_grads;  /* a bucket is summed as soon as its last gradient is complete, else all at the
                            end */
    bool overlap_values; /* values are gathered during the next forward, else before it */
    bool with_attention; /* both start with the next attention, else as soon as possible */
    /* BF16 main gradients with BF16 storage: each sum over microbatches, and each rank's part of a sum over
     * ranks (comm.h), is rounded to BF16. */
    bool bf16_grads;
} DataParallel;

/* How a model is spread over ranks: the facts that parameters and activations need. */
typedef struct Layout {
    Mesh mesh;
    bool sequence_parallel; /* activations between the tensor-parallel regions are sharded along the
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
    int64_t padded;   /* rows in memory; 0: dim[0]. Padding rows are zero and get a zero gradient */
    int tp_split;     /* dimension split over the tensor-parallel axis, SPLIT_NONE: replicated */
    bool split_parts; /* a split of rows splits each part of each group ([gate; up]), not all rows together */
    bool expert;      /* groups are experts: they are split over EP, and tp_split over ETP */
    /* Not split, and every tensor-parallel rank computes its full gradient (SPMD_I), because its uses see the
     * same activations there. Else each rank computes a summand (SPMD_R). */
    bool invariant;
    Init init; /* drawn at (seed, name, global element index), rounded to float */
    unsigned flags;
    int64_t groups; /* groups of parts; 0: one part, the whole parameter */
    int n_parts;
    ParamPart parts[PARAM_PARTS];
} ParamSpec;

typedef struct Param {
    ParamSpec spec;
    int64_t offset;                    /* first element in the flat layout; set by registry_allocate */
    int64_t count;                     /* elements in this rank's memory, padding rows included */
    int64_t rows, columns;             /* of this rank's memory; a vector has one column */
    int64_t first_group, first_column; /* in the full parameter, of this rank's memory */
    int shard, shards; /* index of this rank's shard on the axis of tp_split, and their number; 0 of 1 if
                          not split */
    int number, unit, bucket;
    int stages; /* this rank's stages that use it, each with a backward sweep for every microbatch */
    /* The pipeline ranks that hold a copy, in ascending order; 0: it is not tied. The gradients of all copies are
     * summed; norms and checkpoints use the first one. */
    int *holders, n_holders;
    /* Storage dtype. value.grad = &main_grad, NULL if it is not trained. No data while other ranks hold some of it
     * (sync.h); this is also true of main_grad and master. */
    Tensor value;
    /* F64 in the fp64 lane, else F32, or BF16 (DataParallel). Flags ACCUM | MAIN_GRAD. Without ACCUM it is
     * unwritten: its content is undefined, and the next gradient overwrites it. */
    Tensor main_grad;
    Tensor master; /* F64 or F32; the same memory as value unless storage is 16-bit */
} Param;

static inline bool param_is_trained(const Param *p) {
    return !(p->spec.flags & (PARAM_BUFFER | PARAM_FROZEN));
}

/* The parameter of a value tensor; it must be trained. */
static inline Param *param_of(const Tensor *value) {
    return (Param *)((char *)value->grad - offsetof(Param, main_grad));
}

/* Whether the next gradient overwrites this main gradient. */
static inline bool grad_is_unwritten(const Tensor *main_grad) { return !(main_grad->flags & TENSOR_ACCUM); }

enum { PARAM_ALIGN = 64 };

/* Elements [begin, end) of the registry's flat layout, in a buffer where they begin at element `at`.
 * Describes the part that a rank keeps of a flat buffer that data-parallel ranks shard. */
typedef struct FlatRange {
    int64_t begin, end, at;
} FlatRange;

/* The flat buffers. The optimizer owns its state, which has the same layout. */
typedef enum FlatBuffer { FLAT_VALUES, FLAT_GRADS, FLAT_MASTERS, FLAT_STATE, FLAT_BUFFERS } FlatBuffer;

typedef struct Bucket Bucket;

typedef struct Registry {
    Layout layout;
    Param **params; /* in registration order */
    int n, unit;
    Param **laid; /* the same, in the order of the flat layout */
    Bucket *buckets;
    int n_buckets;
    FlatRange *ranges[FLAT_BUFFERS]; /* [n_buckets]: the part of each bucket that this rank keeps */
    int64_t held[FLAT_BUFFERS];      /* elements of each buffer */
    int *by_name, slots; /* hash table of (index in params) + 1, 0: free; slots is a power of two */
    int64_t elements;    /* elements of the flat layout, alignment gaps included */
    DType storage, gradients, precise; /* of values; of main gradients; of masters and optimizer state */
    bool
        trains; /* false: there are no main gradients, and masters in memory that values do not share are those of buffers
                    only */
    Device *device;
    void *values, *grads, *masters; /* flat, the part that this rank holds (bucket.h); masters == values
                                       unless storage is 16-bit */
    struct States *states;          /* state.h; NULL: none */
    Arena *arena;
} Registry;

/* NULL: one rank. */
Registry *registry_new(const Layout *);
void registry_free(Registry *);
/* Registers a parameter. The result is stable; its tensors have data after registry_allocate. A repeated name
 * is a fault. */
Param *param_add(Registry *, ParamSpec);
/* Adds a pipeline rank that holds a copy; called in ascending order, if several ranks do for all of them. */
void param_add_holder(Registry *, Param *, int rank);
static inline bool param_is_tied(const Param *p) { return p->n_holders > 1; }
Param *registry_find(const Registry *, const char *name); /* NULL if there is none */
/* Freezes the weights of this name and those whose name begins with it and a dot ("decoder.layers.0"), before
 * registry_allocate. Every data-parallel rank then holds their values and masters, and no rank has memory for their
 * gradients and optimizer state. Returns how many weights have such a name. */
int registry_freeze(Registry *, const char *name);
/* Begins a unit: parameters that are used together, such as a layer. At stage 3 the values of a unit are
 * gathered together. */
void registry_begin_unit(Registry *);
/* Allocates the flat buffers (zeroed) on the device. Masters and main gradients are F64 if storage is, else
 * F32; with DataParallel.bf16_grads main gradients are BF16. A model that does not train has only values, and the masters
 * of buffers. */
void registry_allocate(Registry *, Device *, DType storage, bool trains);
size_t registry_bytes(const Registry *); /* bytes of all flat buffers */
/* Bytes of one buffer; 0 for masters that share the memory of the values. */
size_t registry_flat_bytes(const Registry *, FlatBuffer);
DType registry_dtype(const Registry *, FlatBuffer);
/* Draws every parameter: masters first; values are rounded from them. */
void registry_init(Registry *, uint64_t seed);
/* Rounds values from masters, after masters have changed. No-op unless storage is 16-bit. */
void registry_round_values(Registry *);
/* The same for buffers only (PARAM_BUFFER). */
void registry_round_buffers(Registry *);
/* Fills x, in memory of the registry's device, with zeros. */
void registry_zero(const Registry *, Tensor *x);
/* Marks main gradients as unwritten: the first gradient overwrites them. The result equals that of zeroing and adding,
 * except that a sum of zeros may be -0 instead of +0. No norm, update or comparison depends on that. */
void grads_mark_unwritten(Registry *);
void grad_mark_unwritten(Param *);
/* Fills main gradients that are still unwritten with zeros. Call it before they are read. */
void grads_zero_unwritten(Registry *);
void grad_zero_unwritten(Registry *, Param *);
/* Whether any is unwritten. grads_mark_written follows a CUDA graph that has written all of them. */
bool grads_are_unwritten(const Registry *);
void grads_mark_written(Registry *);
/* Rounds this rank's part of a buffer (masters or gradients) to multiples of 2^-bits: the exact lane's
 * grid. */
void registry_snap(Registry *, FlatBuffer, int bits);
/* Logical elements of the full parameter, without padding. */
int64_t param_logical_count(const Param *);
/* Rows of this rank's memory before the padding. */
int64_t param_filled_rows(const Param *);
/* The axes (a mask, dense or expert) over whose ranks the gradient is summed: those where it is SPMD_R. */
unsigned param_sum_axes(const Param *);
/* Whether this rank is primary for the elements that it holds (norms, checkpoints): the first of the ranks
 * that hold the same ones. */
bool param_is_owned(const Registry *, const Param *);
/* The same among the ranks that differ on these axes (a mask): for elements that ranks of the other axes
 * shard. */
bool param_is_owned_on(const Registry *, const Param *, unsigned axes);

/* ---- parts: the units of checkpoints and of export ---- */

/* A range of rows and columns. A vector has one column. */
typedef struct Box {
    int64_t offset[2], shape[2];
} Box;

/* Rows of part `part` over all groups, in the full parameter. */
int64_t param_part_rows(const Param *, int part);
/* The boxes of a part that this rank holds (rows count over all groups): box i of param_boxes; none is
 * empty. */
int param_boxes(const Param *, int part);
Box param_box(const Param *, int part, int i);
/* The row of this rank's memory that holds row `row` of the part; the row must lie in a box. */
int64_t param_memory_row(const Param *, int part, int64_t row);
/* The row of the full parameter that memory row `row` holds; -1: padding. */
int64_t param_global_row(const Param *, int64_t row);
