#include "nn/bert_head.h"

#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/redistribute.h"
#include "ops/take_row.h"

enum { CLASSES = 2 };

/* A layer that every tensor-parallel rank has. invariant: all of them see the same input. */
static Linear whole_layer(Registry *r, const BertHeadSpec *s, const char *name, int64_t out, bool invariant) {
    return linear_new(r, (LinearSpec){.name = name,
                                      .in = s->hidden,
                                      .out = out,
                                      .bias = true,
                                      .tp_split = SPLIT_NONE,
                                      .invariant = invariant,
                                      .init_std = s->init_std});
}

static void bert_head_init(void *self, Registry *r, const void *spec, Param *words) {
    BertHead *m = self;
    const BertHeadSpec *s = spec;
    ParamSpec output = {.name = "output_layer.weight",
                        .ndim = 2,
                        .dim = {s->vocab, s->hidden},
                        .padded = s->padded_vocab,
                        .tp_split = 0,
                        .init = {INIT_NORMAL, s->init_std},
                        .flags = PARAM_EMBEDDING};
    *m = (BertHead){.spec = s, .output = words};
    m->dense = whole_layer(r, s, "lm_head.dense", s->hidden, !r->layout.sequence_parallel);
    m->norm = norm_new(r, "lm_head.layer_norm", s->hidden, s->norm);
    if (!words) m->output = param_add(r, output);
    output.name = "output_layer.bias";
    output.ndim = 1;
    output.init = (Init){INIT_CONSTANT, 0};
    output.flags = PARAM_NO_DECAY;
    m->output_bias = param_add(r, output);
    if (!s->sentences) return;
    m->pooler = whole_layer(r, s, "pooler.dense", s->hidden, true);
    m->classes = whole_layer(r, s, "binary_head", CLASSES, true);
}

/* Chunks of logits have no bias. */
static int64_t bert_head_chunk(const void *spec, const Layout *l, int64_t s, int64_t b, DType storage) {
    (void)spec, (void)l, (void)s, (void)b, (void)storage;
    return 0;
}

static double bert_head_flops(const void *spec, double s) {
    const BertHeadSpec *h = spec;
    const double width = (double)h->hidden;
    return 6 * s * width * (width + (double)h->padded_vocab) +
           (h->sentences ? 6 * width * (width + CLASSES) : 0);
}

const HeadOps bert_head = {sizeof(BertHead), bert_head_init, bert_head_chunk, bert_head_flops};

/* Types over tp: x is V along the sequence with sequence parallelism, else I. */
Tensor *bert_token_loss(Tape *t, const BertHead *m, const Feed *feed, Tensor *x) {
    const RunContext *run = tape_context(t);
    const bool sequence = run->layout && run->layout->sequence_parallel;
    x = op_activation(t, linear_forward(t, &m->dense, x), m->spec->activation); /* [s, b, h]   V or I */
    x = norm_forward(t, &m->norm, x);                                           /* [s, b, h]   V or I */
    const LinearLayer output = {.w_oi = &m->output->value,
                                .bias_o = &m->output_bias->value,
                                .flags = LINEAR_GATHER_IN | (sequence ? LINEAR_SEQUENCE : 0)};
    Tensor *logits = op_linear(t, x, &output); /* V along the vocabulary */
    if (!feed->labels) return logits;
    return op_cross_entropy_of(t, logits, feed->labels, m->spec->vocab, feed->dloss[0]); /* I */
}

/* The first position of the sequence of the tensor-parallel ranks, [1, b, h], I. */
static Tensor *first_position(Tape *t, Tensor *x) {
    Tensor *first = op_take_row(t, x, 0);
    if (spmd_on(x->spmd, AXIS_TP) != SPMD_V) return first;
    return op_take_row(t, op_redistribute(t, first, AXIS_TP, SPMD_I, 0), 0);
}

Tensor *bert_sentence_loss(Tape *t, const BertHead *m, const Feed *feed, Tensor *x) {
    const int64_t b = x->dim[1];
    x = op_activation(t, linear_forward(t, &m->pooler, first_position(t, x)), ACT_TANH);
    Tensor *logits = linear_forward(t, &m->classes, x); /* [1, b, 2]   I */
    Tensor *labels = tape_alloc(t, sizeof *labels);
    *labels = tensor_make(feed->sentence_labels->data, I64, 2, (int64_t[]){b, 1});
    labels->spmd = feed->sentence_labels->spmd;
    return op_cross_entropy_of(t, logits, labels, CLASSES, feed->dloss[1]);
}
