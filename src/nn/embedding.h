/* Token embeddings, with learned positions or without. Megatron-LM core/models/common/embeddings/
 * language_model_embedding.py. */
#ifndef ISOTRON_NN_EMBEDDING_H
#define ISOTRON_NN_EMBEDDING_H

#include "nn/feed.h"
#include "param/param.h"
#include "tape/tape.h"

typedef struct EmbeddingSpec {
    int64_t vocab, padded_vocab, hidden;
    int64_t positions; /* learned ones; 0: none */
    double init_std, dropout;
    double multiplier; /* of the tokens' embeddings */
    bool rounded;      /* the multiplier, to the type of activations */
} EmbeddingSpec;

typedef struct Embedding {
    const EmbeddingSpec *spec;
    Param *words, *positions; /* positions NULL: none */
} Embedding;

/* The word table, or a copy of it that another pipeline stage ties to it (flags). */
Param *embedding_words(Registry *, const EmbeddingSpec *, unsigned flags);
/* The spec must outlive the registry. */
void embedding_init(Embedding *, Registry *, const EmbeddingSpec *);
/* tokens, and position_ids if positions are learned -> [s, b, h]; over tensor-parallel ranks V along the
 * sequence with sequence parallelism, else I. */
Tensor *embedding_forward(Tape *, const Embedding *, const Feed *);

#endif
