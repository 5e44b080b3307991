/* A model's head computes losses or logits from a stack's output. A model family's plan lists its heads. */
#pragma once

#include "nn/feed.h"
#include "param/param.h"
#include "tape/tape.h"

/* One of a model's losses. The training loss is the sum of the means of all losses. */
typedef struct LossSpec {
    const char *name;   /* the name that Megatron-LM uses */
    FieldExtent extent; /* POSITIONS: one value per token, [b, s]; SAMPLES: one value per sample, [b, 1] */
    int weights;        /* the field that contains the weight of each value; FIELDS if all weights are 1 */
    int64_t column;     /* index of the value to read in each element of the field `weights` */
    /* With SAMPLES: the number of choices per question. A question's choices are consecutive samples that share one
     * loss, [b / choices, 1], with the weight of the first sample. 0 means that each sample has its own loss. */
    int64_t choices;
    /* An auxiliary loss contributes only the gradient of `factor` times its mean. Auxiliary losses are not part of the
     * reported training loss or of evaluations. */
    bool auxiliary;
    double factor;
} LossSpec;

static inline double loss_factor(const LossSpec *l) { return l->auxiliary ? l->factor : 1; }

static inline int64_t loss_samples(const LossSpec *l) { return l->choices ? l->choices : 1; }

typedef struct HeadOps {
    size_t size; /* size of the head's module in bytes */
    /* Registers parameters and states. `self` and `spec` must outlive the registry and must not move. */
    void (*init)(void *self, Registry *, const void *spec);
    /* h [s, b, h] is the output of the head's stack. If the feed has labels, out[i] is the head's loss i in nats.
     * dloss[i] is the gradient with respect to that loss, or NULL if unknown. The head's counts, if computed, follow
     * the losses in `out`. Without labels, out[0] is the logits [s, b, HeadSpec.width]. If tensor-parallel ranks split
     * the last dimension, the logits have type V (tensor/spmd.h) on that axis. */
    void (*forward)(Tape *, const void *self, const Feed *, Tensor *h_sbh, Tensor *const *dloss,
                    Tensor **out);
    /* Returns the number of positions in a chunk of logits for b samples of s positions. If the result is 0 or the
     * function is NULL, all logits are in one chunk. */
    int64_t (*chunk)(const void *spec, const Layout *, int64_t s, int64_t b, DType storage);
    double (*flops)(const void *spec, double s); /* as in BranchOps.flops */
} HeadOps;

enum { HEAD_LOSSES = 2 };

typedef struct HeadSpec {
    const HeadOps *ops;
    const void *spec;
    int stack; /* the stack whose output the head reads */
    /* [n_fields]: the fields that the head reads; if n_fields is 0, the head reads all fields under their own
     * names */
    const FeedField *fields;
    int n_fields;
    int64_t outputs, width; /* number of logits per row, without and with padding */
    /* The losses, followed by the counts, such as the number of correct answers. Counts use the first loss's weights.
     * Training computes auxiliary counts, and evaluations compute the other counts. */
    LossSpec loss[HEAD_LOSSES];
    int n_losses, n_counts;
} HeadSpec;
