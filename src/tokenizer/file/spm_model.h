/* Reads a SentencePiece .model file (a Protocol Buffers message of type ModelProto) without the SentencePiece
 * library. Source: sentencepiece/src/sentencepiece_model.proto, model_interface.cc. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "tokenizer/model/vocab.h"
#include "tokenizer/text/charsmap.h"

typedef enum PieceType {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE
} PieceType;

typedef struct Piece {
    PieceType type;
    float score;
} Piece;

typedef struct SpmNormalizer {
    Charsmap *charsmap; /* NULL if characters are not changed */
    Str bytes;          /* the charsmap as stored in the file */
    bool dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
} SpmNormalizer;

typedef enum SpmKind { SPM_UNIGRAM = 1, SPM_BPE } SpmKind;

typedef struct SpmModel {
    Vocab *vocab;
    Piece *pieces; /* [vocab_limit(vocab)], by id */
    size_t cap;
    SpmKind kind;
    bool byte_fallback, whitespace_as_suffix;
    int32_t unk;
    Str bos_piece, eos_piece, pad_piece, unk_surface;
    SpmNormalizer normalizer, denormalizer;
} SpmModel;

/* Fills `out`, which must be zero-initialized. The caller must call spm_model_free even after an error.
 * Returns an error if the message is damaged, or if a piece or the model type is invalid or not supported. */
Err spm_model_read(const char *bytes, size_t n, SpmModel *out);
void spm_model_free(SpmModel *);
