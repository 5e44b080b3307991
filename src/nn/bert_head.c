#include "nn/bert_head.h"

#include "nn/pooler.h"
#include "ops/activation.h"

const char *const BERT_HEADS[] = {
    "lm_head.", "output_layer.", "pooler.", "binary_head.", "classification_head.", "multichoice_head.",
    NULL};

/* Registers the head's parameters. If the output layer is tied, registers the word table before the other
 * parameters; on the last pipeline stage, the table is a copy. */
static void bert_head_init(void *self, Registry *r, const void *spec) {
    BertHead *m = self;
    const BertHeadSpec *s = spec;
    const LmHeadSpec *output = &s->output;
    const int64_t h = output->hidden;
    *m = (BertHead){.spec = s};
    if (output->words) embedding_words(r, output->words);
    m->dense = whole_layer(r, "lm_head.dense", h, h, output->init_std, !r->layout.sequence_parallel);
    m->norm = norm_new(r, "lm_head.layer_norm", h, s->norm);
    lm_head.init(&m->output, r, output);
}

/* With sequence parallelism, x is V along the sequence over TP; otherwise, it is I. */
static void bert_head_forward(Tape *t, const void *self, const Feed *feed, Tensor *x, Tensor *const *dloss,
                              Tensor **out) {
    const BertHead *m = self;
    x = op_activation(t, linear_forward(t, &m->dense, x),
                      (ActivationAttr){.kind = m->spec->activation}); /* [s, b, h], V or I */
    x = norm_forward(t, &m->norm, x);                                 /* [s, b, h], V or I */
    lm_head.forward(t, &m->output, feed, x, dloss, out);
}

static double bert_head_flops(const void *spec, double s) {
    const LmHeadSpec *output = &((const BertHeadSpec *)spec)->output;
    const double width = (double)output->hidden;
    return 6 * s * width * width + lm_head.flops(output, s);
}

const HeadOps bert_head = {
    .size = sizeof(BertHead), .init = bert_head_init, .forward = bert_head_forward, .flops = bert_head_flops};
