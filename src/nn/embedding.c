#include "nn/embedding.h"

#include "base/hash.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/redistribute.h"
#include "ops/residual.h"
#include "ops/scale.h"
#include "tape/tape_ops.h"

Param *embedding_words(Registry *r, const EmbeddingSpec *s) {
    return param_share(r, (ParamSpec){.name = "embedding.word_embeddings.weight",
                                      .ndim = 2,
                                      .dim = {s->vocab, s->hidden},
                                      .padded = s->padded_vocab,
                                      .tp_split = 0,
                                      .init = {INIT_NORMAL, s->init_std},
                                      .flags = PARAM_EMBEDDING});
}

/* Registers a table that is replicated on all tensor-parallel ranks. As in Megatron-LM, --decoupled-lr does
 * not apply to the table. */
static Param *table(Registry *r, const EmbeddingSpec *s, const char *name, int64_t rows) {
    return param_share(r, (ParamSpec){.name = name,
                                      .ndim = 2,
                                      .dim = {rows, s->hidden},
                                      .tp_split = SPLIT_NONE,
                                      .invariant = true,
                                      .init = {INIT_NORMAL, s->init_std}});
}

void embedding_init(void *self, Registry *r, const void *spec) {
    Embedding *e = self;
    const EmbeddingSpec *s = spec;
    *e = (Embedding){.spec = s, .words = embedding_words(r, s)};
    if (s->positions) e->positions = table(r, s, "embedding.position_embeddings.weight", s->positions);
    if (s->types) e->types = table(r, s, "embedding.tokentype_embeddings.weight", s->types);
    if (s->normed) e->norm = norm_new(r, "embedding.layernorm", s->hidden, s->norm);
}

static double multiplier(const EmbeddingSpec *s, DType dtype) {
    double x = s->multiplier, stored = 0;
    if (!s->rounded) return x;
    dtype_convert(&stored, dtype, &x, F64, 1);
    dtype_convert(&x, F64, &stored, dtype, 1);
    return x;
}

static Tensor *rows_of(Tape *t, const Embedding *e, Tensor *ids, Param *table) {
    return op_embedding(t, ids, e->spec->detached ? tape_detach(t, &table->value) : &table->value);
}

static Tensor *add_rows(Tape *t, const Embedding *e, Tensor *x, Tensor *ids, Param *table, Spmd stream) {
    Tensor *rows = rows_of(t, e, ids, table); /* I */
    return op_add(t, x, stream == SPMD_V ? op_redistribute(t, rows, AXIS_TP, SPMD_V, 0) : rows);
}

Tensor *embedding_forward(Tape *t, const void *self, const Feed *feed) {
    const Embedding *e = self;
    const RunContext *run = tape_context(t);
    const Spmd stream = layout_is_sequence_parallel(run->layout) ? SPMD_V : SPMD_I;
    Tensor *x = rows_of(t, e, feed->tokens, e->words); /* P: each rank has part of the table */
    x = op_redistribute(t, x, AXIS_TP, stream, 0);     /* V or I */
    x = op_scale(t, x, multiplier(e->spec, (DType)x->dtype));
    if (e->positions) x = add_rows(t, e, x, feed->position_ids, e->positions, stream);
    if (e->types) x = add_rows(t, e, x, feed->token_types, e->types, stream);
    x = op_scale(t, x, e->spec->scale);
    if (e->spec->normed) x = norm_forward(t, &e->norm, x);
    return op_dropout(t, x, e->spec->dropout, hash_name(e->spec->dropout_site));
}

const InputOps words_input = {
    .size = sizeof(Embedding), .init = embedding_init, .forward = embedding_forward};
