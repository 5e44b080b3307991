/* Records the tensors that a rank computes in a step, so that runs in different layouts can be compared:
 * - the output of every op, its gradient, and the gradients that its backward computes for inputs and
 *   parameters;
 * - parameters before the step, their summed gradients, and parameters after the step.
 *
 * A record's name identifies it in the model, independent of rank and time: the op and its parameter, or the op and
 * the name of its input value. A collective changes only the form of a value, so its record keeps the value's name.
 * The type of a tensor determines its distribution over ranks (tensor/spmd.h); record_index returns which elements of
 * the whole tensor a rank has. */
#pragma once

#include "parity/case.h"

typedef enum RecordKind {
    RECORD_START,    /* a parameter before the step */
    RECORD_OUTPUT,   /* output of an op */
    RECORD_GRADIENT, /* gradient of an output, when the op's backward begins */
    RECORD_INPUT,    /* gradient of input `which`, including earlier contributions */
    RECORD_WEIGHT,   /* what the backward has added to a parameter's gradient */
    RECORD_PARTIAL,  /* a summand that an op computed before its collective; unnamed */
    RECORD_SUM,      /* a parameter's gradient, summed over microbatches and ranks, scaled */
    RECORD_NUMBER,   /* loss, gradient norm, clip coefficient, learning rate */
    RECORD_UPDATED,  /* a parameter after the update */
} RecordKind;

typedef struct Record {
    uint64_t name; /* 0: unnamed */
    uint64_t gemm; /* for a linear layer's output: the name of the GEMM without bias, for gradients */
    RecordKind kind;
    int which, operand;   /* operand: for a RECORD_WEIGHT, the index of the parameter */
    int64_t step, sample; /* sample: the first of the microbatch, or END_OF_STEP */
    bool again;           /* recomputed in the backward */
    bool moved;           /* the tensor is communicated by a separate collective op */
    bool received;        /* the tensor is from a different pipeline stage; the next record is the op that
                             reads it */
    bool ragged;          /* rows are tokens grouped by expert */
    bool tied;            /* a parameter with copies on several pipeline ranks */
    const char *op, *place;
    Tensor shape; /* dims and type; data: contiguous doubles */
    int64_t *map; /* global indices of an output's columns or a parameter's rows, -1 for padding; or NULL */
    int64_t n_map, first_column;
    int64_t begin, columns; /* for a parameter: offset of the record in this rank's part of it */
    const char *inside;     /* the kernel or collective that last wrote the tensor, or "" if it is unknown */
    int64_t from;           /* index of the output that this was computed from, or -1 if it is unknown */
    int64_t partial;        /* index of the op's RECORD_PARTIAL, or -1 if there is none */
    const void *at;         /* address of the tensor */
    size_t bytes;
} Record;

#define END_OF_STEP INT64_MAX

/* Memory that the running op has written. */
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
    bool alike;     /* the sequences of encoder and decoder have equal lengths */
    Arena *arena;
    int64_t *table, slots;     /* hash table by name, see log_index */
    int64_t step, first, last; /* records steps first to last */
    int64_t sample;            /* sample of the running op: the first of its microbatch */
    Writer writers[WRITERS];
    int64_t n_writers;
    double *before[OPERANDS]; /* the main gradients before the backward of a node */
    int64_t pending;          /* index of the last RECORD_PARTIAL that no output refers to yet, or -1 if there
                                 is none */
    double scale;             /* scale of RECORD_SUM */
    /* Called synchronously for every record, with the (strided) tensor that the record was copied from. */
    void (*seen)(void *arg, struct Log *, const Record *, Tensor *live);
    void *seen_arg;
} Log;

/* Creates the logs of a run's ranks, [ranks], for steps first to last. */
Log *logs_new(int ranks, int64_t first, int64_t last);
void logs_free(Log *, int ranks);
/* Returns the watch to pass to case_run. */
CaseWatch logs_watch(Log *);
/* record_view returns a view of memory from a live tensor's first element to its last. record_place returns
 * the offset, in this view, of element k of the tensor's record. */
DeviceView record_view(const Log *, const Tensor *live, unsigned mode);
int64_t record_place(const Tensor *live, int64_t k);
/* Builds the index for log_find. It must be called after the run. */
void log_index(Log *);
/* Returns the record that has the same name, kind, step, ... as `like`, or NULL if there is none. */
const Record *log_find(const Log *, const Record *like);
/* Returns, for every element of `r`, its flat index in the one-rank run's record `whole`, or -1 if the
 * element is padding. The array has tensor_count(&r->shape) elements, and the caller frees it. NULL if the
 * indices cannot be determined. */
int64_t *record_index(const Record *r, const Mesh *, const Record *whole);
