#include "nn/bert_head.h"

#include "nn/pooler.h"
#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/loss.h"

enum { CLASSES = 2 };

const char *const BERT_HEADS[] = {
    "lm_head.", "output_layer.", "pooler.", "binary_head.", "classification_head.", "multichoice_head.",
    NULL};

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
    m->dense =
        whole_layer(r, "lm_head.dense", s->hidden, s->hidden, s->init_std, !r->layout.sequence_parallel);
    m->norm = norm_new(r, "lm_head.layer_norm", s->hidden, s->norm);
    if (!words) m->output = param_add(r, output);
    output.name = "output_layer.bias";
    output.ndim = 1;
    output.init = (Init){INIT_CONSTANT, 0};
    output.flags = PARAM_NO_DECAY;
    m->output_bias = param_add(r, output);
    if (!s->sentences) return;
    m->pooler = pooler_new(r, s->hidden, s->init_std);
    m->classes = whole_layer(r, "binary_head", s->hidden, CLASSES, s->init_std, true);
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
    const bool sequence = layout_is_sequence_parallel(run->layout);
    x = op_activation(t, linear_forward(t, &m->dense, x), m->spec->activation); /* [s, b, h]   V or I */
    x = norm_forward(t, &m->norm, x);                                           /* [s, b, h]   V or I */
    const LinearLayer output = {.w_oi = &m->output->value,
                                .bias_o = &m->output_bias->value,
                                .flags = LINEAR_GATHER_IN | (sequence ? LINEAR_SEQUENCE : 0)};
    Tensor *logits = op_linear(t, x, &output); /* V along the vocabulary */
    if (!feed->labels) return logits;
    return op_cross_entropy_of(t, logits, feed->labels, m->spec->vocab, feed->dloss[0]); /* I */
}

Tensor *bert_sentence_loss(Tape *t, const BertHead *m, const Feed *feed, Tensor *x) {
    const int64_t b = x->dim[1];
    Tensor *logits = linear_forward(t, &m->classes, pooler_forward(t, &m->pooler, x)); /* [1, b, 2]   I */
    Tensor *labels = tape_alloc(t, sizeof *labels);
    *labels = tensor_make(feed->sentence_labels->data, I64, 2, (int64_t[]){b, 1});
    labels->spmd = feed->sentence_labels->spmd;
    return op_cross_entropy_of(t, logits, labels, CLASSES, feed->dloss[1]);
}
