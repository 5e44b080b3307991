/* Finds where a run on ranks leaves the one-rank run. */
#ifndef ISOTRON_VALIDATE_LOCALISE_H
#define ISOTRON_VALIDATE_LOCALISE_H

#include "validate/case.h"

/* The first thing in the order of execution that is out of bound while all it was computed from is within. */
typedef struct Finding {
    bool found,
        confirmed; /* confirmed: with the one-rank run's tensor in its place the step is within bound */
    int64_t step, sample; /* from 0; the first sample of the microbatch, -1: the step's end */
    char phase[24];       /* "forward", "backward", "gradient sum", ... */
    char op[40];          /* "linear", "redistribute" ... */
    char inside[40];      /* the kernel or collective of the op that wrote the tensor last, or is missing */
    char place[120];      /* the parameter that it uses or follows */
    char ranks[60];       /* "1", "0-3" */
    char slice[120];      /* of the whole tensor: "[0:8, 0:1, 4:8]" */
    char signature[160];  /* "scaled by 2", "summand of rank 1 is missing", ... */
} Finding;

/* Of a run in the lane fp64 or exact whose trace `ours` differs from the trace `one` of one rank: runs both
 * again with every tensor of the first step that differs written down, compares, and runs the layout a third
 * time with the finding replaced. found: false if every tensor that can be compared is within bound. */
void localise(const Case *, const Config *, const Derived *, const Trace *ours, const Trace *one, Finding *);

#endif
