/* Converts text to token ids and back. Each type produces the same ids as the library in parentheses:
 *
 *   NullTokenizer           encodes decimal ids separated by spaces (Megatron-LM null_tokenizer.py).
 *   ByteLevelTokenizer      has one id per byte, so decoding is lossless (Megatron-LM bytelevel_tokenizer.py).
 *   GPT2BPETokenizer        reads vocab.json and merges.txt for byte-level BPE; "<|endoftext|>" ends a document.
 *   BertWordPieceLowerCase  reads vocab.txt for WordPiece in lower case without accents; "[SEP]" ends a document.
 *   BertWordPieceCase       is like BertWordPieceLowerCase, but preserves case and accents.
 *   HuggingFaceTokenizer    reads a tokenizer.json, or the folder of a model's tokenizer, as AutoTokenizer does
 *                           (docs/reference/formats.md). Model, normalizer, pre-tokenizer, added tokens,
 *                           post-processor and decoder work as in version 0.23 of the `tokenizers` library.
 *                           Unsupported parts cause an error that names the parts. "truncation" and "padding"
 *                           are ignored, because Megatron-LM encodes whole documents.
 *   SentencePieceTokenizer  reads a SentencePiece .model, unigram or BPE. GPTSentencePieceTokenizer and
 *                           Llama2Tokenizer are synonyms. Control pieces in a text are treated as ordinary text.
 * TikTokenizer reads Megatron-LM's *.vocab.json, in which special tokens have the first ids, or a .tiktoken file, in
 which the ranks are the ids and special tokens follow.
 *
 * A text consists of bytes and may contain NULs. The BPE types decode a text as Python's bytes.decode("utf-8",
 * errors="replace") does: each maximal invalid subpart becomes one U+FFFD. A Tokenizer never changes after
 * tokenizer_open, so any number of threads may use it concurrently. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Tokenizer Tokenizer;

typedef struct TokenizerConfig {
    const char *type;       /* one of the names in the list above */
    const char *model;      /* the file, or the folder that contains it (--tokenizer-model) */
    const char *vocab_file; /* GPT2BPETokenizer: vocab.json; BertWordPiece: vocab.txt (--vocab-file) */
    const char *merge_file; /* GPT2BPETokenizer: merges.txt (--merge-file) */
    /* NullTokenizer: required; ByteLevelTokenizer: 0 means 512; TikTokenizer: 0 means at most 2^17 */
    int64_t vocab_size;
    /* The special tokens that are appended if the vocabulary lacks them. For TikTokenizer, these tokens
     * become the first special tokens, and default to Megatron-LM's special tokens. */
    const char *const *extra_tokens;
    size_t num_extra_tokens;
    const char *tiktoken_pattern; /* v1, v2, cl100k or o200k; NULL means v2 */
    int64_t tiktoken_num_special; /* number of special tokens; -1 means 1000 */
    /* -1 means the type's default. For NullTokenizer, eod_id is vocab_size - 1 by default, and there is no
     * padding. For ByteLevelTokenizer, eod_id is 0 and pad_id is 1 by default. For HuggingFaceTokenizer, the
     * defaults are eos_token and pad_token of the tokenizer_config.json in the same folder. Without that
     * file, the defaults are special tokens with common names such as </s>, <|endoftext|>, <pad> and
     * [PAD]. */
    int64_t eod_id, pad_id;
    bool include_special; /* whether Hugging Face tokenizers encode every text with TOKENIZER_ADD_SPECIAL */
    /* If export_json is not NULL, Hugging Face tokenizers set *export_json to the text of a tokenizer.json, which the
     * caller frees. *export_json is unchanged if the tokenizer's files can be copied instead. The files can be copied
     * if transformers chooses the same class for them next to a model of type `export_type`, or next to any model if
     * `export_type` is NULL. */
    char **export_json;
    const char *export_type;
} TokenizerConfig;

#define TOKENIZER_CONFIG_DEFAULT ((TokenizerConfig){.eod_id = -1, .pad_id = -1, .tiktoken_num_special = -1})

/* Opens a tokenizer. Returns an error if the type is unknown, or if a file is missing, malformed or not
 * supported. */
Err tokenizer_open(const TokenizerConfig *, Tokenizer **out);
void tokenizer_free(Tokenizer *); /* NULL is fine */
/* Returns the path of the vocabulary that HuggingFaceTokenizer reads in a folder, or NULL if the folder
 * contains no vocabulary. The caller frees the path. */
char *tokenizer_find_vocabulary(const char *dir);

typedef enum TokenizerFlags {
    TOKENIZER_ADD_SPECIAL =
        /* encoding adds the post-processor's ids, such as BOS */
    1,
    TOKENIZER_SPECIAL_AS_TEXT = 2, /* encoding treats special tokens in the text as ordinary text */
    TOKENIZER_SKIP_SPECIAL = 4,    /* decoding omits special tokens (skip_special_tokens) */
    TOKENIZER_NO_SPECIAL = 8       /* overrides TOKENIZER_ADD_SPECIAL and include_special */
} TokenizerFlags;

/* Encodes `n` bytes of text (at most 1 GiB) as `*count` ids. The caller frees `*ids`, which is never NULL on success.
 * Returns an error if NullTokenizer finds text that is not an id, or if a regex of tokenizer.json exceeds its
 * backtracking limit on this text. */
Err tokenizer_encode(const Tokenizer *, const char *text, size_t n, int32_t **ids, size_t *count);
Err tokenizer_encode_with(const Tokenizer *, unsigned flags, const char *text, size_t n, int32_t **ids,
                          size_t *count);

/* Like tokenizer_encode_with, but also sets `*spans` to the range of characters [begin, end) of the text that each
 * token represents. The caller frees `*spans`, which is never NULL on success. The spans equal Encoding.offsets of the
 * `tokenizers` library, or begin and end of SentencePiece's immutable_proto. The post-processor's ids have the span (0,
 * 0). If the text is not valid UTF-8, spans count the characters of the repaired text. */
typedef struct TokenSpan {
    size_t begin, end;
} TokenSpan;
Err tokenizer_encode_spans(const Tokenizer *, unsigned flags, const char *text, size_t n, int32_t **ids,
                           TokenSpan **spans, size_t *count);

/* Decodes ids as `*bytes` bytes of text and a NUL. The caller frees `*text`, which is never NULL on success.
 * The bytes of byte-level tokens are returned unchanged, so a character may be split over two calls. An
 * unused id below vocab_size decodes to an empty text. An id outside [0, vocab_size) is an error. */
Err tokenizer_decode(const Tokenizer *, const int32_t *ids, size_t n, char **text, size_t *bytes);
Err tokenizer_decode_with(const Tokenizer *, unsigned flags, const int32_t *ids, size_t n, char **text,
                          size_t *bytes);

/* Sets offsets[i] to the index, in the decoded text, of the character in which token i begins. The offsets
 * equal offsets() of Megatron-LM's tokenizers. If decoding reproduces the original text, they also equal the start
 * positions in Encoding.offsets of the `tokenizers` library. Returns an error if the tokenizer.json's decoder
 * is not ByteLevel, or if an id is outside [0, vocab_size). */
Err tokenizer_offsets(const Tokenizer *, const int32_t *ids, size_t n, size_t *offsets);

/* Returns the largest id, including added tokens, plus one. The result is the number of rows in an embedding
 * without padding. */
int32_t tokenizer_vocab_size(const Tokenizer *);
/* tokenizer_eod, tokenizer_pad and tokenizer_bos return the id of the end-of-document, padding or
 * beginning-of-sequence token, or -1 if there is no such token. */
int32_t tokenizer_eod(const Tokenizer *);
int32_t tokenizer_pad(const Tokenizer *);
int32_t tokenizer_bos(const Tokenizer *);
/* tokenizer_cls, tokenizer_sep and tokenizer_mask return the id of the token that BERT puts at the start of a
 * sequence, after each text, or instead of a masked token. The result is -1 if there is no such token. */
int32_t tokenizer_cls(const Tokenizer *);
int32_t tokenizer_sep(const Tokenizer *);
int32_t tokenizer_mask(const Tokenizer *);
/* Returns the id of the token with the spelling `token`, such as "<|im_start|>", or -1 if there is no such
 * token. */
int32_t tokenizer_token_id(const Tokenizer *, const char *token);
/* Returns the spelling of a token in the vocabulary, such as "##ing" (borrowed, not NUL-terminated), or NULL
 * if no token has the id. */
const char *tokenizer_token_text(const Tokenizer *, int32_t id, size_t *n);
/* Returns the texts of the special tokens that the files of a Hugging Face tokenizer name: {"bos_token": "<s>", ...}.
 * Returns NULL for other types. */
const json_t *tokenizer_named(const Tokenizer *);
/* Returns whether the id is a special added token, or the end-of-document or padding token. */
bool tokenizer_is_special(const Tokenizer *, int32_t id);
