/* A model's head: turns the output of the last stack into losses or logits. A family's plan lists its heads. */
#pragma once

#include "nn/feed.h"
#include "param/param.h"
#include "tape/tape.h"

/* A loss of a model. The training loss is the sum of the losses' means. */
typedef struct LossSpec {
    const char *name;   /* Megatron-LM's */
    FieldExtent extent; /* POSITIONS: one value per token, [b, s]; SAMPLES: one per sample, [b, 1] */
    int weights;        /* the field with the values' weights; FIELDS: all weights are 1 */
    /* With SAMPLES: the number of choices per question. Its consecutive samples share one loss, [b / choices, 1], which
     * has the weight of the first sample. 0: each sample has a loss. */
    int64_t choices;
} LossSpec;

static inline int64_t loss_samples(const LossSpec *l) { return l->choices ? l->choices : 1; }

typedef struct HeadOps {
    size_t size; /* of the head's module */
    /* Registers parameters and states. `self` and `spec` must outlive the registry and must not move. */
    void (*init)(void *self, Registry *, const void *spec);
    /* h [s, b, h] is the output of the last stack. With labels in the feed, out[i] is the head's loss i in
     * nats, and dloss[i] is that loss's gradient, or NULL if unknown; in an evaluation the head's counts follow in
     * `out`. Without labels, out[0] contains logits [s, b, HeadSpec.width], V along the last dimension over
     * tensor-parallel ranks if they share it. */
    void (*forward)(Tape *, const void *self, const Feed *, Tensor *h_sbh, Tensor *const *dloss,
                    Tensor **out);
    /* Number of positions in a chunk of logits, for b samples of s positions; 0, or a NULL function: all logits in one
     * chunk. */
    int64_t (*chunk)(const void *spec, const Layout *, int64_t s, int64_t b, DType storage);
    double (*flops)(const void *spec, double s); /* as BranchOps.flops */
} HeadOps;

enum { HEAD_LOSSES = 2 };

typedef struct HeadSpec {
    const HeadOps *ops;
    const void *spec;
    int64_t outputs, width; /* logits per row, without and with padding */
    LossSpec loss
        [HEAD_LOSSES]; /* then counts: numbers that only evaluations compute and sum, such as right answers */
    int n_losses, n_counts;
} HeadSpec;
