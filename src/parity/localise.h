/* Finds where a multi-rank run first deviates from the one-rank run. */
#pragma once

#include "parity/case.h"

/* The first tensor, in execution order, whose error exceeds the bound although the errors of its inputs do
 * not. */
typedef struct Finding {
    /* confirmed: whether the step's errors are within the bound if this tensor is replaced with the one-rank
     * run's */
    bool found, confirmed;
    /* The step, counted from 1, whose update is also wrong in the one-rank run, or 0 if there is none. Before
     * this update, all ops agree with the one-rank run. */
    int64_t agrees_until;
    /* step: counted from 0; sample: the microbatch's first sample, or -1 at the end of the step */
    int64_t step, sample;
    char phase[32]; /* such as "forward", "backward" or "gradient sum" */
    char op[40];    /* such as "linear" or "redistribute" */
    /* the kernel or collective of the op that last wrote the tensor, or the missing one */
    char inside[40];
    char place[120];     /* the parameter that the op uses or follows */
    char ranks[60];      /* such as "1" or "0-3" */
    char slice[120];     /* slice of the full tensor, such as "[0:8, 0:1, 4:8]" */
    char signature[160]; /* such as "scaled by 2" or "summand of rank 1 is missing" */
} Finding;

/* Localises a fault in lane fp64 or exact, given the trace `ours`, which differs from the one-rank trace `one`.
 * Runs both layouts again, records every tensor in the first step that differs, and compares the tensors. Then
 * runs the multi-rank layout a third time, with all tensors of the found op and kind replaced by the one-rank
 * tensors. `found` is false if the error of every comparable tensor is within the bound. The search ends after
 * the first step in which `truth`, the fp64 run on one rank, differs from the oracle. Differences in later steps
 * are only consequences of earlier ones. */
void localise(const Case *, const Config *, const Trace *ours, const Trace *one, const Trace *truth,
              Finding *);
