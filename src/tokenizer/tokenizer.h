/* Text to token ids and back, id for id equal to the library each type comes from:
 *   NullTokenizer         decimal ids separated by spaces (Megatron-LM null_tokenizer.py)
 *   ByteLevelTokenizer    one id per byte (Megatron-LM bytelevel_tokenizer.py); no text is ever lost
 *   GPT2BPETokenizer      vocab.json + merges.txt, byte-level BPE; "<|endoftext|>" is its end of document
 *   HuggingFaceTokenizer  a tokenizer.json (or a folder that holds one) whose model is BPE: normalizer,
 * pre-tokenizer, added tokens, post-processor and decoder as the `tokenizers` library 0.23 runs them What a
 * tokenizer.json asks for and this code does not do is refused by name. Its "truncation" and "padding" are
 * not applied: Megatron-LM encodes whole documents.
 *
 * Text is bytes and may hold NULs. The BPE types see it as Python's bytes.decode("utf-8", errors="replace")
 * would: each maximal invalid subpart becomes one U+FFFD. A Tokenizer never changes after tokenizer_open: any
 * number of threads may use one at once. */
#ifndef ISOTRON_TOKENIZER_TOKENIZER_H
#define ISOTRON_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Tokenizer Tokenizer;

typedef struct TokenizerConfig {
    const char *type;       /* one of the names above */
    const char *model;      /* HuggingFaceTokenizer: tokenizer.json or its folder (--tokenizer-model) */
    const char *vocab_file; /* GPT2BPETokenizer: vocab.json (--vocab-file) */
    const char *merge_file; /* GPT2BPETokenizer: merges.txt (--merge-file) */
    int64_t vocab_size;     /* NullTokenizer: required; ByteLevelTokenizer: 0 means 512 */
    int64_t eod_id, pad_id; /* -1: the tokenizer's own (Null: vocab_size - 1 and none; ByteLevel: 0 and 1;
                               HuggingFace: eos_token and pad_token of the tokenizer_config.json beside it) */
} TokenizerConfig;

#define TOKENIZER_CONFIG_DEFAULT ((TokenizerConfig){.eod_id = -1, .pad_id = -1})

/* Errors: an unknown type, a missing or malformed file, something in it that is not supported. */
Err tokenizer_open(const TokenizerConfig *, Tokenizer **out);
void tokenizer_free(Tokenizer *); /* NULL is fine */

typedef enum TokenizerFlags {
    TOKENIZER_ADD_SPECIAL =
        1, /* encode: what the post-processor puts around a text, such as BOS (add_special_tokens) */
    TOKENIZER_SPECIAL_AS_TEXT = 2, /* encode: a special token spelled out in the text is ordinary text */
    TOKENIZER_SKIP_SPECIAL = 4     /* decode: leave special tokens out (skip_special_tokens) */
} TokenizerFlags;

/* `n` bytes of text to `*count` ids; the caller frees `*ids` (never NULL on success). At most 1 GiB of text.
 * Errors: a text that NullTokenizer cannot read, a regex of tokenizer.json that gives up on this text. */
Err tokenizer_encode(const Tokenizer *, const char *text, size_t n, int32_t **ids, size_t *count);
Err tokenizer_encode_with(const Tokenizer *, unsigned flags, const char *text, size_t n, int32_t **ids,
                          size_t *count);

/* Ids to `*bytes` bytes of text, with a NUL behind them; the caller frees `*text` (never NULL on success).
 * Byte-level tokens give their bytes unchanged, so a character that is split over two calls survives. Errors:
 * an id outside [0, vocab_size). An id in a gap of the vocabulary gives no text, as in the original. */
Err tokenizer_decode(const Tokenizer *, const int32_t *ids, size_t n, char **text, size_t *bytes);
Err tokenizer_decode_with(const Tokenizer *, unsigned flags, const int32_t *ids, size_t n, char **text,
                          size_t *bytes);

/* One more than the largest id, added tokens included: the rows of an embedding before padding. */
int32_t tokenizer_vocab_size(const Tokenizer *);
/* Ids of the end of document, padding and beginning-of-sequence token; -1 if the tokenizer has none. */
int32_t tokenizer_eod(const Tokenizer *);
int32_t tokenizer_pad(const Tokenizer *);
int32_t tokenizer_bos(const Tokenizer *);
/* Id of the token spelled `token` ("<|im_start|>"), -1 if there is none. */
int32_t tokenizer_token_id(const Tokenizer *, const char *token);
/* True for special added tokens and the end-of-document and padding ids. */
bool tokenizer_is_special(const Tokenizer *, int32_t id);

#endif
