/* A golden case ready to run, and what a run of it leaves behind. */
#ifndef ISOTRON_VALIDATE_CASE_H
#define ISOTRON_VALIDATE_CASE_H

#include "base/err.h"
#include "ckpt/hf.h"
#include "config/config.h"
#include "train/run.h"
#include "validate/choices.h"
#include "validate/golden.h"

typedef struct Case {
    const Golden *golden; /* the caller's; outlives the case */
    Gpt *init;            /* the whole model, F64, with the parameters that the last case_run started from */
    double *first;        /* the case's first parameters, laid out like init's */
    HfMap map;            /* of its registry */
    int64_t *at, total;   /* where each tensor of the map begins in a Trace, and elements of all */
    int64_t vocab;
    Config config; /* the options it was opened with, but on one rank */
    Derived derived;
    Device *device;
    Arena *arena;
} Case;

/* Reads the initial weights. Options that do not fit the case are a user error. */
Err case_open(const Golden *, const Config *, const Derived *, Case *out);
void case_close(Case *); /* also after an error */

int64_t case_count(const HfTensor *); /* elements */

/* Everything in double and in the oracle's names and layouts; tensor i of the map begins at case->at[i]. The
 * memory is shared with processes that are forked later. */
typedef struct Trace {
    GoldenStep *steps;              /* [n_steps] */
    double *gradients, *parameters; /* of step 1 before clipping; after the last step */
    double *weights;                /* the parameters that the run started from */
    double *ranks;                  /* the rank that updates the element */
    double *logits;                 /* [samples, seq, vocab] of step 1; has_logits: set */
    Choices choices;
    bool has_steps, has_logits; /* steps: false in the MPI processes that are not rank 0 */
    size_t bytes;
} Trace;

Trace *trace_new(const Case *);
void trace_free(Trace *);
/* Of all steps' losses and all final parameters: equal bits, equal hash. */
uint64_t trace_hash(const Case *, const Trace *);

enum { NO_NOISE = -1 };

/* Noise of a run, xi being standard normal and drawn by --seed: weights become w * (1 + weights * xi), and
 * the gradients of every step g + gradients * rms(g) * xi (on one rank in fp64 alone). */
typedef struct Noise {
    int draw; /* which xi; NO_NOISE: none */
    double weights, gradients;
} Noise;

/* Sees a run while it goes on; any function may be NULL. Each is called on every rank. */
typedef struct CaseWatch {
    void (*begin)(void *arg, Run *);                         /* parameters are set, no step has run */
    void (*step)(void *arg, Run *, int64_t step);            /* before a step, from 0 */
    void (*gradients)(void *arg, Run *, const StepReport *); /* main gradients are sums */
    void (*updated)(void *arg, Run *, const StepReport *);   /* parameters are new */
    TapeTrace *trace;                                        /* of every tape, with the watch's arg */
    TapeProbe *probe;
    void *arg;
    bool logits;    /* whole logits are wanted: a pass before the first step that is watched too */
    bool quantises; /* an fp64 run keeps --fp8-format */
    bool on_host;   /* the watch reads and writes tensors where they lie: the host's memory */
    int64_t steps; /* that are run, not more than the case has; 0: all. The trace's parameters are those after
                      them */
} CaseWatch;

/* Runs all steps in the lane and layout of the options (fp16 takes the loss scale 64 unless they name one),
 * which have passed the rules and run_check. `watch` may be NULL: one that sees nothing and wants logits. */
Err case_run(const Case *, const Config *, const Derived *, Noise, const CaseWatch *, Trace *out);
/* The same on one rank, in a lane; fp64 and exact without FP8 (unless the watch keeps it), and fp64, the
 * truth, on the CPU. */
Err case_run_alone(const Case *, Lane, Noise, const CaseWatch *, Trace *out);
/* What case_run does to the options of fp16. */
void case_set_loss_scale(Config *);

#endif
