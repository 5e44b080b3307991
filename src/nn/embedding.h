/* Token embeddings, with or without learned positions and token types. Megatron-LM
 * core/models/common/embeddings/language_model_embedding.py. */
#pragma once

#include "nn/input.h"
#include "nn/norm.h"

typedef struct EmbeddingSpec {
    int64_t vocab, padded_vocab, hidden;
    int64_t positions; /* number of learned positions, or 0 if there is none */
    int64_t types;     /* number of token types, or 0 if there is none */
    bool normed;       /* the sum is normalized, as in the original BERT and in Bloom */
    NormAttr norm;
    double init_std, dropout;
    double multiplier; /* multiplies the token embeddings */
    const char *dropout_site;
    bool rounded;  /* the multiplier is rounded to the type of activations */
    bool detached; /* the tables get no gradient */
} EmbeddingSpec;

typedef struct Embedding {
    const EmbeddingSpec *spec;
    Param *words, *positions, *types; /* NULL: none */
    Norm norm;
} Embedding;

/* Returns the word embeddings, and registers them on the first call. A tied output layer uses the same parameter, or a
 * copy of it on another pipeline stage. */
Param *embedding_words(Registry *, const EmbeddingSpec *);
/* The functions of words_input. */
void embedding_init(void *self, Registry *, const void *spec);
Tensor *embedding_forward(Tape *, const void *self, const Feed *);
/* The module is an Embedding, and the spec is an EmbeddingSpec. It reads the fields tokens, position_ids (if
 * positions are learned) and token_types (if there are types). */
extern const InputOps words_input;
