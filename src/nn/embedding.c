#include "nn/embedding.h"

#include "base/hash.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/redistribute.h"
#include "ops/residual.h"
#include "ops/scale.h"

Param *embedding_words(Registry *r, const EmbeddingSpec *s) {
    return param_add(r, (ParamSpec){.name = "embedding.word_embeddings.weight",
                                    .ndim = 2,
                                    .dim = {s->vocab, s->hidden},
                                    .padded = s->padded_vocab,
                                    .tp_split = 0,
                                    .init = {INIT_NORMAL, s->init_std},
                                    .flags = PARAM_EMBEDDING});
}

void embedding_init(Embedding *e, Registry *r, const EmbeddingSpec *s) {
    *e = (Embedding){.spec = s, .words = embedding_words(r, s)};
    if (!s->positions) return;
    e->positions = param_add(r, (ParamSpec){.name = "embedding.position_embeddings.weight",
                                            .ndim = 2,
                                            .dim = {s->positions, s->hidden},
                                            .tp_split = SPLIT_NONE,
                                            .invariant = true,
                                            /* --decoupled-lr does not apply to it, as in Megatron-LM. */
                                            .init = {INIT_NORMAL, s->init_std}});
}

static double multiplier(const EmbeddingSpec *s, DType dtype) {
    double x = s->multiplier, stored = 0;
    if (!s->rounded) return x;
    dtype_convert(&stored, dtype, &x, F64, 1);
    dtype_convert(&x, F64, &stored, dtype, 1);
    return x;
}

Tensor *embedding_forward(Tape *t, const Embedding *e, const Feed *feed) {
    const RunContext *run = tape_context(t);
    const Spmd stream = run->layout && run->layout->sequence_parallel ? SPMD_V : SPMD_I;
    Tensor *x = op_embedding(t, feed->tokens, &e->words->value); /* P: each rank has some rows of the table */
    x = op_redistribute(t, x, AXIS_TP, stream, 0);               /* V or I */
    x = op_scale(t, x, multiplier(e->spec, (DType)x->dtype));
    if (e->positions) {
        Tensor *p = op_embedding(t, feed->position_ids, &e->positions->value); /* I */
        x = op_add(t, x, stream == SPMD_V ? op_redistribute(t, p, AXIS_TP, SPMD_V, 0) : p);
    }
    return op_dropout(t, x, e->spec->dropout, hash_name("embedding.dropout"));
}
