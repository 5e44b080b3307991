/* Token embeddings, with or without learned positions and token types. Megatron-LM
 * core/models/common/embeddings/language_model_embedding.py. */
#ifndef ISOTRON_NN_EMBEDDING_H
#define ISOTRON_NN_EMBEDDING_H

#include "nn/feed.h"
#include "nn/norm.h"
#include "param/param.h"
#include "tape/tape.h"

typedef struct EmbeddingSpec {
    int64_t vocab, padded_vocab, hidden;
    int64_t positions; /* number of learned positions; 0: none */
    int64_t types;     /* number of token types; 0: none */
    bool normed;       /* the sum is normed: the original BERT */
    NormAttr norm;
    double init_std, dropout;
    double multiplier; /* scales the embeddings of tokens */
    bool rounded;      /* the multiplier is rounded to the type of activations */
} EmbeddingSpec;

typedef struct Embedding {
    const EmbeddingSpec *spec;
    Param *words, *positions, *types; /* NULL: none */
    Norm norm;
} Embedding;

/* Registers the word table only, for a tied head. */
Param *embedding_words(Registry *, const EmbeddingSpec *);
/* The spec must outlive the registry. */
void embedding_init(Embedding *, Registry *, const EmbeddingSpec *);
/* tokens and, with learned positions, position_ids and, with types, token_types -> [s, b, h]. Over tensor-parallel ranks V along the
 * sequence with sequence parallelism, else I. */
Tensor *embedding_forward(Tape *, const Embedding *, const Feed *);

#endif
