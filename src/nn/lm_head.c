#include "nn/lm_head.h"

#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/residual.h"
#include "ops/scale.h"
#include "ops/softcap.h"
#include "ops/take_row.h"
#include "tape/tape_ops.h"

static void lm_head_init(void *self, Registry *r, const void *spec) {
    LmHead *m = self;
    const LmHeadSpec *s = spec;
    ParamSpec output = {.name = "output_layer.weight",
                        .ndim = 2,
                        .dim = {s->vocab, s->hidden},
                        .padded = s->padded_vocab,
                        .tp_split = 0,
                        .init = {INIT_NORMAL, s->init_std},
                        .flags = PARAM_EMBEDDING};
    *m = (LmHead){.spec = s, .output = s->words ? embedding_words(r, s->words) : param_share(r, output)};
    m->quantiser = quantize_new(r, "output_layer", m->output, s->quant);
    if (!s->bias) return;
    output.name = "output_layer.bias";
    output.ndim = 1;
    output.init = (Init){INIT_CONSTANT, 0};
    output.flags = PARAM_NO_DECAY;
    m->bias = param_share(r, output);
}

static int64_t lm_head_chunk(const void *spec, const Layout *l, int64_t s, int64_t b, DType storage) {
    const LmHeadSpec *h = spec;
    if (!h->chunked) return 0;
    const int64_t columns = h->padded_vocab / (l ? l->mesh.size[AXIS_TP] : 1);
    /* the softcap's backward pass also needs the logits before the softcap */
    const size_t copies = h->softcap ? 2 : 1;
    return linear_loss_positions(s, b, h->chunk, copies * (size_t)columns * dtype_size(storage));
}

static void lm_head_forward(Tape *t, const void *self, const Feed *feed, Tensor *h_sbh, Tensor *const *dloss,
                            Tensor **out) {
    const LmHead *m = self;
    const RunContext *run = tape_context(t);
    const bool sequence = layout_is_sequence_parallel(run->layout);
    Tensor *w = &m->output->value, *bias = m->bias ? &m->bias->value : NULL, *labels = feed->labels;
    if (m->spec->detached) w = tape_detach(t, w), bias = bias ? tape_detach(t, bias) : NULL;
    if (feed->chosen) h_sbh = op_take_rows(t, h_sbh, feed->chosen);
    /* Scaling h is faster than scaling the logits, which are much wider. */
    h_sbh = op_scale(t, h_sbh, 1 / m->spec->scaling);
    const bool counts = m->spec->counts && labels && tape_is_recording(t);
    const int64_t positions =
        labels ? lm_head_chunk(m->spec, run->layout, labels->dim[1], labels->dim[0], run->dtype) : 0;
    /* While the tape records, the forward pass needs the losses' gradient to compute logits in chunks. */
    if (positions && (*dloss || !tape_is_recording(t))) {
        const LinearLoss loss = {.vocab = m->spec->vocab,
                                 .positions = positions,
                                 .softcap = m->spec->softcap,
                                 .sequence = sequence,
                                 .dloss = *dloss,
                                 .quantiser = m->quantiser,
                                 .correct = counts ? &out[1] : NULL};
        if (m->spec->shared) h_sbh = op_contiguous(t, h_sbh);
        *out = op_linear_cross_entropy(t, h_sbh, w, labels, loss);
        return;
    }
    Tensor *logits = op_linear(t, h_sbh,
                               &(LinearLayer){.w_oi = w,
                                              .bias_o = bias,
                                              .flags = LINEAR_GATHER_IN | (sequence ? LINEAR_SEQUENCE : 0),
                                              .quantiser = m->quantiser});
    logits = op_softcap(t, logits, m->spec->softcap);
    if (counts) out[1] = op_correct(t, logits, labels, m->spec->vocab);
    *out = labels ? op_cross_entropy_of(t, logits, labels, m->spec->vocab, *dloss) : logits;
}

static double lm_head_flops(const void *spec, double s) {
    const LmHeadSpec *h = spec;
    return 6 * s * (double)h->hidden * (double)h->padded_vocab;
}

const HeadOps lm_head = {sizeof(LmHead), lm_head_init, lm_head_forward, lm_head_chunk, lm_head_flops};
