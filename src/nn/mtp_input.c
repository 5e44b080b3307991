#include "nn/mtp_input.h"

#include "ops/join_heads.h"
#include "ops/redistribute.h"

static void mtp_input_init(void *self, Registry *r, const void *spec) {
    MtpInput *m = self;
    const MtpInputSpec *s = spec;
    const int64_t h = s->words->hidden;
    registry_begin_unit(r);
    embedding_init(&m->words, r, s->words);
    m->token_norm = norm_new(r, arena_printf(r->arena, "%s.enorm", s->name), h, s->norm);
    m->state_norm = norm_new(r, arena_printf(r->arena, "%s.hnorm", s->name), h, s->norm);
    m->proj = linear_new(r, (LinearSpec){.name = arena_printf(r->arena, "%s.eh_proj", s->name),
                                         .in = 2 * h,
                                         .out = h,
                                         .tp_split = 0,
                                         .init_std = s->init_std,
                                         .quant = s->quant});
}

static Tensor *as_head(Tape *t, Tensor *x) {
    return tape_view(t, x, 0, 5, (int64_t[]){x->dim[0], x->dim[1], 1, 1, x->dim[2]},
                     (int64_t[]){x->stride[0], x->stride[1], x->dim[2], x->dim[2], 1});
}

static Tensor *joined(Tape *t, Tensor *a, Tensor *b) {
    Tensor *x = op_join_heads(t, as_head(t, a), as_head(t, b));
    return tape_view(t, x, 0, 3, (int64_t[]){x->dim[0], x->dim[1], x->dim[4]}, x->stride);
}

static Tensor *mtp_input_forward(Tape *t, const void *self, const Feed *feed) {
    const MtpInput *m = self;
    Tensor *token = norm_forward(t, &m->token_norm, embedding_forward(t, &m->words, feed)), /* V or I */
        *state = norm_forward(t, &m->state_norm, feed->encoded);
    /* SPMD type V along the hidden dimension */
    Tensor *x = linear_forward(t, &m->proj, joined(t, token, state));
    x = op_redistribute(t, x, AXIS_TP, SPMD_I, 2);
    return layout_is_sequence_parallel(tape_context(t)->layout) ? op_redistribute(t, x, AXIS_TP, SPMD_V, 0)
                                                                : x;
}

/* As in Megatron-LM, each of the three norms (two here, and the output norm) counts as one column of the
 * projection. */
static double mtp_input_flops(const void *spec, double s) {
    const double h = (double)((const MtpInputSpec *)spec)->words->hidden;
    return 6 * s * (2 * h * h + 3 * h);
}

const InputOps mtp_input = {
    .size = sizeof(MtpInput), .init = mtp_input_init, .forward = mtp_input_forward, .flops = mtp_input_flops};
