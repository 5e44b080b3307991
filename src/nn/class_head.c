#include "nn/class_head.h"

#include "base/hash.h"
#include "kernels/ops.h"
#include "nn/pooler.h"
#include "ops/choices.h"
#include "ops/dropout.h"
#include "ops/loss.h"
#include "tape/tape_ops.h"

static bool is_of_choices(const ClassHeadSpec *s) { return s->choices > 1; }
static int64_t outputs(const ClassHeadSpec *s) { return is_of_choices(s) ? 1 : s->classes; }

/* Registers the parameters. A bias shared by all choices for a question does not change their probabilities.
 * The gradient of such a bias would consist of rounding noise, which Adam would amplify, so the bias is not
 * trained. */
static void class_head_init(void *self, Registry *r, const void *spec) {
    ClassHead *m = self;
    const ClassHeadSpec *s = spec;
    *m = (ClassHead){.spec = s, .dropout_site = hash_name(s->name)};
    m->pooler = pooler_new(r, s->hidden, s->init_std);
    m->output = linear_new(r, (LinearSpec){.name = s->name,
                                           .in = s->hidden,
                                           .out = outputs(s),
                                           .bias = true,
                                           .fixed_bias = is_of_choices(s),
                                           .tp_split = SPLIT_NONE,
                                           .invariant = true,
                                           .init_std = s->init_std});
}

static double class_head_flops(const void *spec, double s) {
    (void)s;
    const ClassHeadSpec *h = spec;
    const double width = (double)h->hidden;
    return 6 * width * (width + (double)outputs(h));
}

/* Returns the labels [b / choices, 1]. */
static Tensor *labels_of(Tape *t, const ClassHeadSpec *s, const Tensor *samples) {
    const int64_t dim[] = {samples->dim[0] / s->choices, 1};
    Tensor *labels = tape_alloc(t, sizeof *labels), all = tensor_make(samples->data, I64, 2, dim);
    all.spmd = samples->spmd;
    *labels = all;
    if (s->choices == 1) return labels;
    all.stride[0] = s->choices;
    labels = tape_tensor(t, I64, 2, dim);
    labels->spmd = samples->spmd;
    tape_call(t, &OPS[OP_copy], (Call){.in = {&all}, .out = {labels}});
    return labels;
}

static void class_head_forward(Tape *t, const void *self, const Feed *feed, Tensor *x, Tensor *const *dloss,
                               Tensor **out) {
    const ClassHead *m = self;
    const ClassHeadSpec *s = m->spec;
    x = pooler_forward(t, &m->pooler, x);
    x = op_dropout_samples(t, x, s->dropout, m->dropout_site);
    Tensor *logits = linear_forward(t, &m->output, x); /* [1, b, classes] or [1, b, 1], I */
    if (is_of_choices(s)) logits = op_choices(t, logits, s->choices);
    *out = logits;
    if (!feed->sentence_labels) return;
    Tensor *labels = labels_of(t, s, feed->sentence_labels);
    if (s->counts && !tape_is_recording(t)) out[1] = op_correct(t, logits, labels, logits->dim[2]);
    *out = op_cross_entropy_of(t, logits, labels, logits->dim[2], *dloss);
}

const HeadOps class_head = {.size = sizeof(ClassHead),
                            .init = class_head_init,
                            .forward = class_head_forward,
                            .flops = class_head_flops};
