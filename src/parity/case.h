/* A golden case that is ready to run, and a run's results. */
#pragma once

#include "base/err.h"
#include "ckpt/hf/tensors.h"
#include "config/config.h"
#include "parity/choices.h"
#include "parity/golden.h"
#include "train/trainer.h"

typedef struct Case {
    const Golden *golden; /* owned by the caller; must outlive the case */
    Model *init;          /* the full model in F64, with the initial parameters of the last case_run */
    double *first;        /* the case's initial parameters, in the layout of `init` */
    HfMap map;            /* maps the parameters of `init` to the oracle's tensors */
    /* at: for each tensor of the map, its offset in a Trace's arrays; total: number of elements in each
     * array */
    int64_t *at, total;
    /* [i]: the model's number for the loss named golden->loss_names[i]; router losses have the highest
     * numbers */
    int loss_of[GOLDEN_LOSSES];
    int64_t vocab;
    Config config; /* the options passed to case_open, modified for one rank */
    Device *device;
    Arena *arena;
} Case;

/* Opens a case and reads its initial weights. Returns a user error if the options are not compatible with the
 * case. */
Err case_open(const Golden *, const Config *, Case *out);
void case_close(Case *); /* must also be called after an error */

/* A run's results as doubles, with tensors in the oracle's layouts: tensor i of the map begins at case->at[i]. The
 * memory is shared with processes that are forked later. */
typedef struct Trace {
    GoldenStep *steps; /* [n_steps] */
    /* gradients of step 1 before clipping; parameters after the last step */
    double *gradients, *parameters;
    double *weights; /* the run's initial parameters */
    double *ranks;   /* the rank that updates each element of `parameters` */
    double *logits;  /* step 1's logits, [samples, seq, vocab]; valid if has_logits */
    Choices choices;
    bool has_steps, has_logits; /* has_steps is false in MPI processes other than rank 0 */
    size_t bytes;
} Trace;

Trace *trace_new(const Case *);
void trace_free(Trace *);
/* Returns a hash of all losses and all final parameters. */
uint64_t trace_hash(const Case *, const Trace *);

enum { NO_NOISE = -1 };

/* The noise that a run adds. Let xi be a standard normal random number seeded by --seed. A weight w becomes w
 * * (1 + weights * xi). In every step, a gradient g becomes g + gradients * rms(g) * xi. Noise is supported
 *   only on one rank in fp64. */
typedef struct Noise {
    int draw; /* selects the random numbers xi; NO_NOISE means that no noise is added */
    double weights, gradients;
} Noise;

/* A run's callbacks. Each callback is called on every rank, and may be NULL. */
typedef struct CaseWatch {
    /* called after the parameters are set, before step 0 */
    void (*begin)(void *arg, Trainer *);
    void (*step)(void *arg, Trainer *, int64_t step); /* called before each step; the first step is 0 */
    /* called after the main gradients are summed */
    void (*gradients)(void *arg, Trainer *, const StepReport *);
    void (*updated)(void *arg, Trainer *, const StepReport *); /* called after the parameters are updated */
    TapeTrace *trace;                                          /* called with `arg` for ops of all tapes */
    TapeProbe *probe;
    void *arg;
    /* whether to compute the full logits, in an additional forward pass before the first step. `trace` and
     * `probe` are also called for the additional pass. */
    bool logits;
    bool quantises; /* whether --fp8-format also applies to fp64 runs, which otherwise ignore it */
    /* whether the watch accesses tensors in place, which requires tensors to be in host memory */
    bool on_host;
    int64_t steps; /* number of steps to run; 0 means all of the case's steps */
} CaseWatch;

/* Runs all steps in the lane and layout that the options set. fp16 uses the loss scale 64 unless the options
 * set another one. The options must have passed the rules and trainer_check. If `watch` is NULL, there are no
 * callbacks, and logits are computed. */
Err case_run(const Case *, const Config *, Noise, const CaseWatch *, Trace *out);
/* Runs the case several times in sequence in one world, with the same options. The watches of the turns may differ only
 * in `arg`. */
typedef struct CaseTurn {
    Noise noise;
    const CaseWatch *watch;
    Trace *out;
} CaseTurn;
Err case_run_turns(const Case *, const Config *, const CaseTurn *, int n);
/* Like case_run, but on one rank and in the given lane. The lanes fp64 and exact run without FP8, unless
 * watch->quantises is set. The fp64 lane, which is the ground truth, runs on the CPU. */
Err case_run_alone(const Case *, Lane, Noise, const CaseWatch *, Trace *out);
/* Sets the loss scale that case_run uses for fp16. */
void case_set_loss_scale(Config *);
