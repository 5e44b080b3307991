/* Token embeddings, with or without learned positions and token types, like Megatron-LM
 * core/models/common/embeddings/language_model_embedding.py. */
#pragma once

#include "nn/input.h"
#include "nn/norm.h"

typedef struct EmbeddingSpec {
    int64_t vocab, padded_vocab, hidden;
    int64_t positions; /* number of learned positions; 0 if positions are not learned */
    int64_t types;     /* number of token types; 0 if there are no types */
    bool normed;       /* whether the sum is normalized, as in the original BERT and in Bloom */
    NormAttr norm;
    double init_std, dropout;
    double multiplier; /* factor by which token embeddings are scaled */
    double scale;      /* factor by which the sum of the embeddings is scaled */
    const char *dropout_site;
    bool rounded;  /* whether the multiplier is rounded to the activations' type */
    bool detached; /* true if the tables get no gradient */
} EmbeddingSpec;

typedef struct Embedding {
    const EmbeddingSpec *spec;
    Param *words, *positions, *types; /* NULL if not used */
    Norm norm;
} Embedding;

/* Returns the word embeddings, and registers them on the first call. A tied output layer uses the same parameter, or a
 * copy of it on another pipeline stage. */
Param *embedding_words(Registry *, const EmbeddingSpec *);
/* words_input uses these functions as well. */
void embedding_init(void *self, Registry *, const void *spec);
Tensor *embedding_forward(Tape *, const void *self, const Feed *);
/* The module is an Embedding, and the spec is an EmbeddingSpec. The input reads the fields tokens, position_ids (if
 * positions are learned) and token_types (if there are types). */
extern const InputOps words_input;
