/* The "model" of a tokenizer.json: what turns a pre-token into ids. BPE, WordPiece, WordLevel and Unigram. */
#ifndef ISOTRON_TOKENIZER_MODEL_H
#define ISOTRON_TOKENIZER_MODEL_H

#include <jansson.h>

#include "tokenizer/bpe.h"
#include "tokenizer/unigram.h"
#include "tokenizer/wordpiece.h"

/* One of them is there. */
typedef struct Model {
    Bpe *bpe;
    WordPiece *words;
    Unigram *unigram;
} Model;

/* Fills `out`, which must be zero. A model without a type is BPE. Errors: another type, and those of each. */
Err model_load(const json_t *, Model *out);
void token_model_free(Model *);
const Vocab *model_vocab(const Model *);

typedef struct ModelWork { /* one per thread, initially zero */
    BpeWork bpe;
    UnigramWork unigram;
} ModelWork;
void model_work_free(ModelWork *);

/* Appends the ids of the pre-token (valid UTF-8, below 2^31 bytes) to `out`. */
void model_encode(const Model *, ModelWork *, const char *piece, size_t n, Ids *out);

#endif
