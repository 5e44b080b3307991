/* What storing numbers in low precision does to a run, predicted without that precision's code: an fp64 run
 * that rounds to the storage's type where a run in the lane stores. Its distance from the fp64 run without
 * rounding is the error that the lane may have; code that is wrong in the lane alone has no part in it.
 *
 * Where a lane stores in 16 bits is written down by a run in the lane on one rank, as the type of every
 * output of every op in order; the fp64 run has the same ops. Weights are rounded for forward and backward,
 * masters are not; the optimizer's moments are rounded after each update if the options say so. FP8 operands
 * are quantised in fp64 by the lane's own ops. The exact lane rounds to a grid: its prediction adds uniform
 * noise of the same size instead, so that it shares no rounding with the run that is judged. */
#ifndef ISOTRON_VALIDATE_STORAGE_H
#define ISOTRON_VALIDATE_STORAGE_H

#include "validate/case.h"

typedef struct StorageCall {
    int16_t op;
    uint8_t type[CALL_OUT]; /* DTYPES: not computed */
} StorageCall;

typedef struct StorageLog {
    StorageCall *calls;
    int64_t n, capacity;
} StorageLog;

void storage_log_free(StorageLog *);

/* A run that writes the types down (one rank), and one in fp64 that rounds by them. */
typedef struct Storage {
    StorageLog *log;
    const Config *lane; /* the options of the run in low precision */
    int draw;           /* of the exact lane's noise */
    int64_t at, drawn;
    double *kept; /* masters, while rounded ones are in their place */
} Storage;

void storage_record(void *storage, const OpDef *, const Call *); /* a TapeTrace */
void storage_round(void *storage, const OpDef *, const Call *);  /* a TapeTrace */
/* The other places where a CaseWatch sees the fp64 run. */
void storage_begin(Storage *, Run *);
void storage_step(Storage *, Run *);
void storage_gradients(Storage *, Run *);
void storage_updated(Storage *, Run *);

#endif
