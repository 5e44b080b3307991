/* What a rank computes in a step, written down so that runs in different layouts can be laid side by side:
 * every op's output, the gradient that arrives at it, the gradients that its backward gives its inputs and
 * adds to its parameters; the parameters before the step, their summed gradients, the parameters after it.
 *
 * A record is named by what it is in the model, not by where or when it ran: the op and its parameter, or the
 * op and the name of the value that it was computed from. A collective gives the same value in another form,
 * and its record has the name of the value. Tensors lie on ranks as their type says (tensor/spmd.h);
 * record_index says which elements of the whole tensor a rank has. */
#ifndef ISOTRON_VALIDATE_PROBE_H
#define ISOTRON_VALIDATE_PROBE_H

#include "validate/case.h"

typedef enum RecordKind {
    RECORD_START,    /* a parameter before the step */
    RECORD_OUTPUT,   /* of an op */
    RECORD_GRADIENT, /* that has arrived at an output when the op's backward runs */
    RECORD_INPUT,    /* what the backward has given to input `which`, on top of what was there */
    RECORD_WEIGHT,   /* what it has added to the gradient of a parameter */
    RECORD_PARTIAL,  /* a summand that an op computed before its own collective; has no name */
    RECORD_SUM,      /* a parameter's gradient, summed over microbatches and ranks, scaled */
    RECORD_NUMBER,   /* loss, gradient norm, clip coefficient, learning rate */
    RECORD_UPDATED,  /* a parameter after the update */
} RecordKind;

typedef struct Record {
    uint64_t name;    /* 0: no name was found */
    uint64_t product; /* of a linear layer's output: the name of its product without a bias, for gradients */
    RecordKind kind;
    int which, operand;   /* operand: of a RECORD_WEIGHT, the op's parameter */
    int64_t step, sample; /* sample: the microbatch's first; END_OF_STEP */
    bool again;           /* in a block that runs again in the backward */
    bool moved;           /* by a collective of its own */
    bool received;        /* from another pipeline stage; the next record is of the op that takes it */
    bool ragged;          /* rows are tokens grouped by expert */
    const char *op, *place;
    Tensor shape; /* dims and type; data: contiguous doubles */
    int64_t *map; /* [last dim of an output, or rows of a parameter]: index in the whole, -1: padding; NULL */
    int64_t n_map, first_column;
    int64_t begin, columns; /* of a parameter: the element of this rank's memory where the record begins */
    const char *inside;     /* the kernel or collective that wrote it last; "": not seen */
    int64_t from;           /* number of the output that it was computed from; -1: not known */
    int64_t partial;        /* number of the op's RECORD_PARTIAL; -1: none */
    const void *at;         /* where the tensor lay */
    size_t bytes;
} Record;

#define END_OF_STEP INT64_MAX

/* What an op that is running has written. */
typedef struct Writer {
    const void *data;
    const char *op;
} Writer;
enum { WRITERS = 64, OPERANDS = 8 };

typedef struct Log {
    Record *records;
    int64_t n, cap;
    Mesh mesh;
    Device *device; /* of the run's tensors */
    Arena *arena;
    int64_t *table, slots;     /* by name; log_index */
    int64_t step, first, last; /* steps that are written down */
    Writer writers[WRITERS];
    int64_t n_writers;
    double *before[OPERANDS]; /* main gradients before a node's backward */
    int64_t pending;          /* the last partial that no record has taken; -1 */
    double scale;             /* of RECORD_SUM */
    /* Called for every record while the run waits, with the memory that it was copied from (strided). */
    void (*seen)(void *arg, struct Log *, const Record *, Tensor *live);
    void *seen_arg;
} Log;

/* Logs of the ranks of a run, [ranks]; steps first to last. */
Log *logs_new(int ranks, int64_t first, int64_t last);
void logs_free(Log *, int ranks);
/* To be given to case_run; arg: the logs. */
CaseWatch logs_watch(Log *);
/* All that lies between a live tensor's first element and its last, and where element k of its record is in
 * that. */
DeviceView record_view(const Log *, const Tensor *live, unsigned mode);
int64_t record_place(const Tensor *live, int64_t k);
/* Makes log_find work, after the run. */
void log_index(Log *);
/* The record with the name, kind, step, ... of `like`; NULL: none. */
const Record *log_find(const Log *, const Record *like);
/* For every element of `r` the flat index of the element in `whole`, a record of one rank; -1: padding.
 * [tensor_count(&r->shape)], to be freed; NULL if it cannot be told. */
int64_t *record_index(const Record *r, const Mesh *, const Record *whole);

#endif
