/* Text to token ids and back. Ids are equal to those of the library that each type comes from:
 *
 *   NullTokenizer           decimal ids separated by spaces (Megatron-LM null_tokenizer.py)
 *   ByteLevelTokenizer      one id per byte (Megatron-LM bytelevel_tokenizer.py); no text is ever lost
 *   GPT2BPETokenizer        vocab.json + merges.txt, byte-level BPE; "<|endoftext|>" is its end of document
 *   BertWordPieceLowerCase  vocab.txt, WordPiece; lower case without accents; "[SEP]" is the end of document
 *   BertWordPieceCase       the same with case and accents
 *   HuggingFaceTokenizer    a tokenizer.json, or a folder with the tokenizer of a model, read as AutoTokenizer does
 *                           (docs/reference/formats.md). Model, normalizer, pre-tokenizer, added tokens,
 *                           post-processor and decoder work as in version 0.23 of the `tokenizers` library.
 *                           Unsupported parts are refused by name. "truncation" and "padding" are not applied,
 *                           because Megatron-LM encodes whole documents.
 *   SentencePieceTokenizer  a SentencePiece .model, unigram or BPE; GPTSentencePieceTokenizer and Llama2Tokenizer
 *                           are other names of it. Control pieces in a text are ordinary text.
 *   TikTokenizer            Megatron-LM's *.vocab.json, whose ids begin after the special tokens, or a .tiktoken
 *                           file, whose ids are its ranks; special tokens follow them
 *
 * Text is bytes and may contain NULs. The BPE types decode it like Python's bytes.decode("utf-8",
 * errors="replace"): each maximal invalid subpart becomes one U+FFFD. A Tokenizer never changes after
 * tokenizer_open: any number of threads may use one at the same time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Tokenizer Tokenizer;

typedef struct TokenizerConfig {
    const char *type;       /* one of the names above */
    const char *model;      /* the file, or the folder that holds it (--tokenizer-model) */
    const char *vocab_file; /* GPT2BPETokenizer: vocab.json; BertWordPiece: vocab.txt (--vocab-file) */
    const char *merge_file; /* GPT2BPETokenizer: merges.txt (--merge-file) */
    /* NullTokenizer: required; ByteLevelTokenizer: 0 means 512; TikTokenizer: 0 means at most 2^17 */
    int64_t vocab_size;
    /* Special tokens that are appended if the vocabulary lacks them. TikTokenizer: its first special tokens;
     * none: the usual ones. */
    const char *const *extra_tokens;
    size_t num_extra_tokens;
    const char *tiktoken_pattern; /* v1, v2, cl100k or o200k; NULL: v2 */
    int64_t tiktoken_num_special; /* -1: 1000 */
    /* -1: the tokenizer's own (Null: vocab_size - 1 and none; ByteLevel: 0 and 1; HuggingFace: eos_token and
     * pad_token of the tokenizer_config.json in the same folder; without that file, special tokens with the
     * usual names: </s>, <|endoftext|>, <s>, <pad>, [PAD] and similar ones). */
    int64_t eod_id, pad_id;
    bool include_special; /* tokenizers of Hugging Face encode every text with TOKENIZER_ADD_SPECIAL */
    /* NULL, or for a type of Hugging Face set to a tokenizer.json, which the caller frees. NULL remains if
     * the tokenizer's files can be copied: transformers reads them with the same class next to a model of
     * type `export_type` (NULL: any). */
    char **export_json;
    const char *export_type;
} TokenizerConfig;

#define TOKENIZER_CONFIG_DEFAULT ((TokenizerConfig){.eod_id = -1, .pad_id = -1, .tiktoken_num_special = -1})

/* Errors: an unknown type, a missing or malformed file, unsupported content. */
Err tokenizer_open(const TokenizerConfig *, Tokenizer **out);
void tokenizer_free(Tokenizer *); /* NULL is fine */
/* The path of the vocabulary that HuggingFaceTokenizer reads in a folder, which the caller frees;
 * NULL: there is none. */
char *tokenizer_find_vocabulary(const char *dir);

typedef enum TokenizerFlags {
    TOKENIZER_ADD_SPECIAL =
        /* encode: add the ids of the post-processor, such as BOS (add_special_tokens) */
    1,
    TOKENIZER_SPECIAL_AS_TEXT = 2, /* encode: special tokens in the text are ordinary text */
    TOKENIZER_SKIP_SPECIAL = 4     /* decode: omit special tokens (skip_special_tokens) */
} TokenizerFlags;

/* `n` bytes of text to `*count` ids; the caller frees `*ids` (never NULL on success). At most 1 GiB of text.
 * Errors: a text that NullTokenizer cannot read, a regex of tokenizer.json that exceeds its limits on this
 * text. */
Err tokenizer_encode(const Tokenizer *, const char *text, size_t n, int32_t **ids, size_t *count);
Err tokenizer_encode_with(const Tokenizer *, unsigned flags, const char *text, size_t n, int32_t **ids,
                          size_t *count);

/* The same, and the characters of the text, [begin, end), that each token stands for; the caller frees `*spans` too
 * (never NULL on success). They are those of the original: Encoding.offsets of the `tokenizers` library, and begin and
 * end of SentencePiece's immutable_proto. (0, 0) for the ids of the post-processor. If the text is not valid UTF-8,
 * characters are those of the decoded text. */
typedef struct TokenSpan {
    size_t begin, end;
} TokenSpan;
Err tokenizer_encode_spans(const Tokenizer *, unsigned flags, const char *text, size_t n, int32_t **ids,
                           TokenSpan **spans, size_t *count);

/* Ids to `*bytes` bytes of text and a NUL; the caller frees `*text` (never NULL on success). Byte-level
 * tokens return their bytes unchanged, so a character that is split over two calls survives. Errors: an id
 * outside [0, vocab_size). An id in a gap of the vocabulary has no text, as in the original. */
Err tokenizer_decode(const Tokenizer *, const int32_t *ids, size_t n, char **text, size_t *bytes);
Err tokenizer_decode_with(const Tokenizer *, unsigned flags, const int32_t *ids, size_t n, char **text,
                          size_t *bytes);

/* Sets offsets[n]: the character of the decoded text in which each token begins, as offsets() of Megatron-LM's
 * tokenizers and, if the text decodes to itself, the beginnings in Encoding.offsets of the `tokenizers` library.
 * Errors: a tokenizer.json whose decoder is not ByteLevel, an id outside [0, vocab_size). */
Err tokenizer_offsets(const Tokenizer *, const int32_t *ids, size_t n, size_t *offsets);

/* The largest id, including added tokens, plus one: the rows of an embedding before padding. */
int32_t tokenizer_vocab_size(const Tokenizer *);
/* Ids of the end of document, padding and beginning-of-sequence token; -1 if the tokenizer has none. */
int32_t tokenizer_eod(const Tokenizer *);
int32_t tokenizer_pad(const Tokenizer *);
int32_t tokenizer_bos(const Tokenizer *);
/* The tokens that BERT puts at the beginning, after each text and in place of masked tokens; -1: none. */
int32_t tokenizer_cls(const Tokenizer *);
int32_t tokenizer_sep(const Tokenizer *);
int32_t tokenizer_mask(const Tokenizer *);
/* Id of the token spelled `token` ("<|im_start|>"), -1 if there is none. */
int32_t tokenizer_token_id(const Tokenizer *, const char *token);
/* The spelling of a token in the vocabulary ("##ing"), borrowed and without a NUL at its end; NULL if it has none. */
const char *tokenizer_token_text(const Tokenizer *, int32_t id, size_t *n);
/* True for special added tokens and the end-of-document and padding ids. */
bool tokenizer_is_special(const Tokenizer *, int32_t id);
