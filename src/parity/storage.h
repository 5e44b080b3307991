/* Predicts how low-precision storage affects a run. An fp64 run rounds to the storage type wherever a run in
 * the lane stores a value. The difference between this run and an fp64 run without rounding is the error that is
 * acceptable in the lane. The predicted error does not depend on the arithmetic of the lane's kernels.
 *
 * A one-rank run in the lane records the types of all op outputs in order. The types show which values are stored in 16
 * bits. The fp64 run executes the same ops in the same order. The log also counts stored values that are narrower than
 * F32 but should not be. Weights are rounded for forward and backward passes, but master weights are not. The
 * optimizer's moments are rounded after each update if the options require it. In the fp64 run, ops quantize FP8
 * operands as in the low-precision run. The exact lane rounds to a grid. Its prediction adds uniform noise of the same
 * size instead of rounding, so that the prediction shares no rounding with the run under test. */
#pragma once

#include "parity/case.h"

typedef struct StorageCall {
    int16_t op;
    uint8_t type[CALL_OUT]; /* DTYPES means that there is no output */
} StorageCall;

typedef struct StorageLog {
    StorageCall *calls;
    int64_t n, capacity;
    int64_t narrow;        /* number of stored values that are narrower than F32 but should not be */
    char first_narrow[64]; /* op and operand of the first such value */
} StorageLog;

void storage_log_free(StorageLog *);

/* The state for the one-rank run that records types, and for the fp64 run that rounds to these types. */
typedef struct Storage {
    StorageLog *log;
    const Config *lane; /* the low-precision run's options */
    int draw;           /* index of the draw of the exact lane's noise */
    int64_t at, drawn;
    double *kept; /* a copy of the master weights while rounded values replace them */
} Storage;

void storage_record(void *storage, const OpDef *, const Call *); /* a TapeTrace */
void storage_round(void *storage, const OpDef *, const Call *);  /* a TapeTrace */
/* The other CaseWatch callbacks of the fp64 run. */
void storage_begin(Storage *, Trainer *);
void storage_step(Storage *, Trainer *);
void storage_gradients(Storage *, Trainer *);
void storage_updated(Storage *, Trainer *);
