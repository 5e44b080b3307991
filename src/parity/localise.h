/* Finds where a multi-rank run first deviates from the one-rank run. */
#pragma once

#include "parity/case.h"

/* The first tensor, in execution order, that is out of bound although its inputs are within bound. */
typedef struct Finding {
    /* confirmed: whether the step is within bound if the one-rank run's tensor replaces this tensor */
    bool found, confirmed;
    /* All ops agree until the update of this step (counted from 1), in which the one-rank run is wrong as
     * well. It is 0 if there is no such step. */
    int64_t agrees_until;
    /* step: counted from 0; sample: the first one of the microbatch, or -1 at the end of the step */
    int64_t step, sample;
    char phase[32];      /* "forward", "backward", "gradient sum", ... */
    char op[40];         /* "linear", "redistribute" ... */
    char inside[40];     /* the op's kernel or collective that last wrote the tensor, or that is missing */
    char place[120];     /* the parameter that the op uses or follows */
    char ranks[60];      /* "1", "0-3" */
    char slice[120];     /* slice of the whole tensor: "[0:8, 0:1, 4:8]" */
    char signature[160]; /* "scaled by 2", "summand of rank 1 is missing", ... */
} Finding;

/* Localises a fault in lane fp64 or exact, given the trace `ours`, which differs from the one-rank trace
 * `one`. Runs both again, recording every tensor of the first differing step, and compares them. Then runs
 * the layout a third time with the found tensor replaced. `found` is false if every comparable tensor is
 * within bound. The search ends after the first step in which `truth`, the fp64 run on one rank, differs from
 * the oracle, because later differences are consequences. */
void localise(const Case *, const Config *, const Trace *ours, const Trace *one, const Trace *truth,
              Finding *);
