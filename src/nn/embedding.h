/* Token embeddings, with or without learned positions and token types. Megatron-LM
 * core/models/common/embeddings/language_model_embedding.py. */
#pragma once

#include "nn/input.h"
#include "nn/norm.h"

typedef struct EmbeddingSpec {
    int64_t vocab, padded_vocab, hidden;
    int64_t positions; /* number of learned positions; 0: none */
    int64_t types;     /* number of token types; 0: none */
    bool normed;       /* the sum is normed: the original BERT */
    NormAttr norm;
    double init_std, dropout;
    double multiplier; /* scales the embeddings of tokens */
    const char *dropout_site;
    bool rounded; /* the multiplier is rounded to the type of activations */
} EmbeddingSpec;

typedef struct Embedding {
    const EmbeddingSpec *spec;
    Param *words, *positions, *types; /* NULL: none */
    Norm norm;
} Embedding;

/* The word table, which is registered once. A tied head uses the table or a copy of it. */
Param *embedding_words(Registry *, const EmbeddingSpec *);
/* The module is an Embedding, the spec an EmbeddingSpec. Reads tokens, position_ids if there are learned positions, and
 * token_types if there are types. */
extern const InputOps words_input;
