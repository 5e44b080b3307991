/* The experts that a run chose, and a run that is made to choose the same. Which expert a token goes to is a
 * discrete choice: where two scores are closer than the rounding of a precision, right code may choose
 * either. So a run in low precision is compared with runs in fp64 that follow its choices, and the choices
 * are judged by themselves: how far apart were the scores of experts that the two precisions choose
 * differently? */
#ifndef ISOTRON_VALIDATE_CHOICES_H
#define ISOTRON_VALIDATE_CHOICES_H

#include "config/config.h"
#include "param/param.h"
#include "tape/tape.h"

/* Of every step, router (in the order of the registry) and token of the global batch, sample by sample. A
 * router may choose twice: for the layer, and by the scores alone for its balancing losses. */
typedef struct Choices {
    int64_t steps, routers, samples, seq, topk, experts; /* routers 0: the case has no experts */
    double *expert; /* [steps, routers, CHOICES_PASSES, samples, seq, topk]; -1: nothing was chosen */
    double *logits; /* [steps, routers, samples, seq, experts]; -infinity: none */
    double *margin; /* [steps, routers], of a run that follows another: the largest margin of a choice that it
                       would have made differently, see choices_probe */
    int64_t flips;  /* choices that it would have made differently */
} Choices;

enum { CHOICES_PASSES = 2 };

/* Sizes only; the memory is the caller's. */
Choices choices_of(const Registry *, const Config *, int64_t steps, int64_t samples, int64_t seq);
/* Elements of all three, and where they lie in memory of that size. */
int64_t choices_elements(const Choices *);
void choices_place(Choices *, double *memory);

/* What a probe (tape.h) needs on each rank. */
typedef struct ChoiceRank {
    const Tensor *logits; /* of the router that ran last */
    int64_t router, pass, step;
} ChoiceRank;

typedef struct ChoiceProbe {
    const Registry *whole; /* all routers, by name */
    Choices *record;
    const Choices *follow; /* of another run; NULL: the run chooses by itself. One rank, F64 */
    ChoiceRank *rank;      /* [ranks] */
} ChoiceProbe;

/* Before a step of a rank. */
void choices_step(ChoiceProbe *, int rank, int64_t step);
/* After a step: what the ranks have written down, in all of their processes. */
void choices_merge(ChoiceProbe *, Comm *, int64_t step);
/* A TapeProbe for the ranks of a run: writes down what routers choose, or puts what `follow` chose in its
 * place. The margin of a choice that differs is the smallest d such that the router chooses the followed
 * experts when d is added to their logits and subtracted from the others' (of other groups, if the router
 * limits groups). */
void choices_probe(ChoiceProbe *, const Tape *, TapePoint, const OpDef *, const Call *);

#endif
