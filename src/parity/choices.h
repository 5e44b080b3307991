/* Records the experts that a run chose and makes another run choose the same ones. The choice of an expert is
 * discrete: if two scores differ by less than the rounding of a precision, correct code may choose either
 * expert. A run in low precision is therefore compared with fp64 runs that follow its choices. The choices
 * are judged separately, by how far apart the scores were where the two precisions choose different
 * experts. */
#pragma once

#include "config/config.h"
#include "param/param.h"
#include "tape/tape.h"

/* The choices of every step and router (in registry order) for every token of the global batch, sample by
 * sample. A router may choose twice: once for the layer and, for its load-balancing losses, once by the
 * scores alone. */
typedef struct Choices {
    int64_t steps, routers, samples, seq, topk, experts; /* routers is 0 if the case has no experts */
    double *expert; /* [steps, routers, CHOICES_PASSES, samples, seq, topk]; -1 if nothing was chosen */
    double *logits; /* [steps, routers, samples, seq, experts]; -infinity if there is none */
    double *margin; /* [steps, routers]: the largest margin (choices_probe) of a choice that a following
                       run would have made differently */
    int64_t flips;  /* number of choices that a following run would have made differently */
} Choices;

enum { CHOICES_PASSES = 2 };

/* Sets only the sizes; the caller provides memory. */
Choices choices_of(const Registry *, const Config *, int64_t steps, int64_t samples, int64_t seq);
/* Computes the number of elements of all three arrays, and places them in memory of that size. */
int64_t choices_elements(const Choices *);
void choices_place(Choices *, double *memory);

/* Per-rank state of a probe (tape.h). */
typedef struct ChoiceRank {
    const Tensor *logits; /* logits of the most recent router */
    int64_t router, pass, step;
} ChoiceRank;

typedef struct ChoiceProbe {
    const Registry *whole; /* all routers, by name */
    Choices *record;
    /* choices to follow, which is supported only on one rank in F64, or NULL if choices are only recorded */
    const Choices *follow;
    ChoiceRank *rank; /* [ranks] */
} ChoiceProbe;

/* It must be called on each rank before each step. */
void choices_step(ChoiceProbe *, int rank, int64_t step);
/* It must be called after each step. It merges the records of all ranks in all processes. */
void choices_merge(ChoiceProbe *, Comm *, int64_t step);
/* A TapeProbe for the ranks of a run: records the routers' choices, or replaces them with those of `follow`.
 * If a choice differs, its margin is an upper bound on the change of the logits that makes the router choose
 * the followed experts. A number d is added to the logits of these experts and subtracted from the logits of
 * all other experts (or of experts in other groups, if the router limits groups). The search starts from the
 * router's own logits, and again from those of the followed run; in the latter case, the largest difference
 * between the two is added to d. The margin is the smallest result. */
void choices_probe(ChoiceProbe *, const Tape *, TapePoint, const OpDef *, const Call *);
