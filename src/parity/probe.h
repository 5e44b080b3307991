/* Records the tensors that a rank computes in a step, so that runs in different layouts can be compared:
 * - the output of every op, its gradient, and the gradients that its backward pass computes for inputs and
 *   parameters;
 * - parameters before the step, their summed gradients, and parameters after the step.
 *
 * A record's name identifies the record in the model, independently of rank and time: the op and its parameter,
 * or the op and the name of its input value. A collective changes only the form of a value, so its record keeps
 * the value's name. A tensor's type determines how it is distributed over ranks (tensor/spmd.h). record_index returns
 * the full tensor's indices of the elements that a rank holds. */
#pragma once

#include "parity/case.h"

typedef enum RecordKind {
    RECORD_START,    /* a parameter before the step */
    RECORD_OUTPUT,   /* the output of an op */
    RECORD_GRADIENT, /* an output's gradient at the start of the op's backward pass */
    RECORD_INPUT,    /* the gradient of input `which`, including earlier contributions */
    RECORD_WEIGHT,   /* the value that the backward pass has added to a parameter's gradient */
    RECORD_PARTIAL,  /* a summand without a name, which an op computed before its collective */
    RECORD_SUM,      /* a parameter's scaled gradient, summed over microbatches and ranks */
    RECORD_NUMBER,   /* a loss, the gradient norm, the clip coefficient or the learning rate */
    RECORD_UPDATED,  /* a parameter after the update */
} RecordKind;

typedef struct Record {
    uint64_t name; /* 0 if the record has no name */
    /* for a linear layer's output: the name of the GEMM without bias (used for gradients) */
    uint64_t gemm;
    RecordKind kind;
    int which, operand;   /* operand: the parameter's index, for a RECORD_WEIGHT */
    int64_t step, sample; /* sample: the microbatch's first sample, or END_OF_STEP */
    bool again;           /* whether the backward pass recomputed the value */
    bool moved;           /* whether a separate collective op communicates the tensor */
    /* whether the tensor comes from a different pipeline stage; the next record is for the op that reads it */
    bool received;
    bool ragged; /* whether rows are tokens grouped by expert */
    bool tied;   /* whether the parameter has copies on several pipeline ranks */
    const char *op, *place;
    Tensor shape; /* the dims and the type; the data are contiguous doubles */
    /* global indices of an output's columns or of a parameter's rows, with -1 for padding; may be NULL */
    int64_t *map;
    int64_t n_map, first_column;
    int64_t begin, columns; /* for a parameter: the record's offset in this rank's part of the parameter */
    const char *inside;     /* the kernel or collective that last wrote the tensor, or "" if it is unknown */
    int64_t from;    /* index of the output from which the value was computed, or -1 if it is unknown */
    int64_t partial; /* index of the op's RECORD_PARTIAL, or -1 if there is none */
    const void *at;  /* address of the tensor */
    size_t bytes;
} Record;

#define END_OF_STEP INT64_MAX

/* A range of memory that the running op has written. */
typedef struct Writer {
    const void *data;
    const char *op;
} Writer;
enum { WRITERS = 64, OPERANDS = 8 };

typedef struct Log {
    Record *records;
    int64_t n, cap;
    Mesh mesh;
    Device *device; /* device of the run's tensors */
    bool alike;     /* whether encoder and decoder sequences have equal lengths */
    Arena *arena;
    int64_t *table, slots;     /* hash table of names (log_index) */
    int64_t step, first, last; /* the current step; steps `first` to `last` are recorded */
    int64_t sample;            /* the first sample in the running op's microbatch */
    Writer writers[WRITERS];
    int64_t n_writers;
    double *before[OPERANDS]; /* the main gradients before a node's backward pass */
    /* index of the last RECORD_PARTIAL to which no output refers, or -1 if there is none */
    int64_t pending;
    double scale; /* the scale for RECORD_SUM */
    /* Called synchronously for every record, with the (strided) tensor from which the record was copied. */
    void (*seen)(void *arg, struct Log *, const Record *, Tensor *live);
    void *seen_arg;
} Log;

/* Creates logs[ranks] for steps `first` to `last`, one log for each of a run's ranks. */
Log *logs_new(int ranks, int64_t first, int64_t last);
void logs_free(Log *, int ranks);
/* Returns the watch that must be passed to case_run. */
CaseWatch logs_watch(Log *);
/* record_view returns a view of the memory from a live tensor's first element to its last. record_place returns
 * the index in this view of element k of the tensor's record. */
DeviceView record_view(const Log *, const Tensor *live, unsigned mode);
int64_t record_place(const Tensor *live, int64_t k);
/* Builds the index for log_find. Call this function after the run. */
void log_index(Log *);
/* Returns the record that matches `like` in name, kind, step and so on, or NULL if there is none. */
const Record *log_find(const Log *, const Record *like);
/* Returns an array with the flat index of each element of `r` in the one-rank run's record `whole`, or -1 for
 * padding. The array has tensor_count(&r->shape) elements, and the caller frees it. Returns NULL if the indices
 * cannot be determined. */
int64_t *record_index(const Record *r, const Mesh *, const Record *whole);
