/* Records the experts that the routers of a run select, and makes another run select the same experts. The
 * selection of an expert is discrete. If two scores differ by less than a precision's rounding error, correct
 * code may select either expert. A low-precision run is therefore compared with fp64 runs that follow its
 * routing. The routing is judged separately, by how much the scores differ where the two precisions select
 * different experts. */
#pragma once

#include "config/config.h"
#include "param/param.h"
#include "tape/tape.h"

/* The selected experts for each step, router and token of the global batch. Routers are in registry order, and tokens
 * are stored sample by sample. A router may select experts twice: once for the layer and, for its load-balancing
 * losses, once by the scores alone. */
typedef struct Choices {
    int64_t steps, routers, samples, seq, topk, experts; /* `routers` is 0 if the case has no experts */
    double *expert; /* [steps, routers, CHOICES_PASSES, samples, seq, topk]; -1 if no expert was selected */
    double *logits; /* [steps, routers, samples, seq, experts]; -infinity if there is no logit */
    /* [steps, routers]: the largest margin (choices_probe) among those tokens for which the following run by
     * itself would select other experts */
    double *margin;
    int64_t flips; /* number of times that the following run by itself would select other experts */
} Choices;

enum { CHOICES_PASSES = 2 };

/* Returns a Choices structure in which only the sizes are set. The caller provides the memory. */
Choices choices_of(const Registry *, const Config *, int64_t steps, int64_t samples, int64_t seq);
/* choices_elements returns the total number of elements in all three arrays. choices_place places the arrays in
 * memory for this number of elements. */
int64_t choices_elements(const Choices *);
void choices_place(Choices *, double *memory);

/* A probe's state (tape.h) on one rank. */
typedef struct ChoiceRank {
    const Tensor *logits; /* the most recent router's logits */
    int64_t router, pass, step;
} ChoiceRank;

typedef struct ChoiceProbe {
    const Registry *whole; /* a registry that contains all router names */
    Choices *record;
    /* the routing to follow, or NULL if routing is only recorded; following is supported only on one rank in
     * F64 */
    const Choices *follow;
    ChoiceRank *rank; /* [ranks] */
} ChoiceProbe;

/* Begins a step. Each rank must call this function before each step. */
void choices_step(ChoiceProbe *, int rank, int64_t step);
/* Merges the records of all ranks, so that every process has all records. Call this function after each
 * step. */
void choices_merge(ChoiceProbe *, Comm *, int64_t step);
/* A TapeProbe for the ranks of a run. Records the experts that the routers select and, if `follow` is set,
 * replaces them with the experts in `follow`. If the experts differ, the margin is an upper bound on the
 * smallest change in the logits that makes the router select the followed experts. A number d is added to the
 * logits of the followed experts, and subtracted from the logits of all other experts. If the router limits
 * groups, several multiples of d are tried for other experts in the same groups. There are two searches: one
 * starts from the router's logits, and one from the followed run's logits. The second search adds to d the
 * largest difference between the two runs' logits. The margin is the smallest result. */
void choices_probe(ChoiceProbe *, const Tape *, TapePoint, const OpDef *, const Call *);
