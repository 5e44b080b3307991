/* Tokenizes JSON Lines or plain text, which may be compressed (data/input.h), and writes
 * <prefix>_<key>_document.bin and .idx (Megatron-LM tools/preprocess_data.py).
 *
 *   JSON Lines       one object per line, and one document per key. The value is a string, or a list of
 *                    strings (sentences), each of which becomes a sequence. Lines are parsed as Python's json
 *                    module parses them (data/json_line.h). Blank lines are skipped. An invalid line is a
 *                    user error that names the line.
 *   text files       one document per file; the key is "text"
 *   text paragraphs  one document per run of non-blank lines, without the final newline; the key is "text"
 *
 * With split_sentences, each sentence of a string is a sequence (data/sentences.h), and the file names end with
 * _sentence. Strings in a list are not split.
 *
 * Sequences without tokens are dropped. With append_eod, the end-of-document token is appended to the last
 * sequence. A document without tokens has an entry in the document index but no sequence. Ids are written as
 * u16 if the vocabulary has fewer than 65500 tokens, and as i32 otherwise. Within a partition, documents keep
 * the input's order for any number of workers. The files get their final names only after the whole input has
 * been encoded. An input without any text is a user error. After an error, SIGINT, SIGTERM or SIGHUP, no
 * unfinished file remains. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef enum PreprocessInput {
    PREPROCESS_JSONL,
    PREPROCESS_TEXT_FILES,
    PREPROCESS_TEXT_PARAGRAPHS
} PreprocessInput;

/* Tokenizes `n` bytes of text. The caller must free the returned tokens. Several threads call this function
 * concurrently. The text is valid UTF-8. Text from JSON may contain NULs. */
typedef Err PreprocessEncode(void *ctx, const char *text, size_t n, int32_t **tokens, size_t *count);

typedef struct PreprocessStats {
    int64_t documents;         /* number of documents per key */
    int64_t sequences, tokens; /* totals over all keys */
    int64_t bytes;             /* how many bytes of the input have been read */
    int64_t total_bytes;       /* size of the input files; a pipe counts as 0 */
} PreprocessStats;

typedef struct PreprocessConfig {
    PreprocessInput kind;
    const char *const *inputs; /* the files to read, in order; "-" is standard input */
    int num_inputs;
    const char *encoding;    /* encoding of the inputs (data/input.h); NULL means UTF-8 */
    const char *const *keys; /* JSON Lines only; NULL means "text" */
    int num_keys;
    const char *output_prefix;
    /* whether to replace existing datasets; if false, an existing dataset is a user error */
    bool overwrite;
    int64_t vocab_size; /* a value <= 0 means that the size is unknown */
    bool append_eod;
    bool split_sentences, keep_newlines;
    const char *lang; /* the language for split_sentences */
    int32_t eod;
    int workers;
    /* Document i goes to partition i modulo this number. As with Megatron-LM's --partitions, the dataset is
     * the concatenation of the partitions. A value of 0 means 1. */
    int partitions;
    /* for benchmarks: if > 0, at most this many documents are read, and no dataset is written */
    int64_t most_documents;
    PreprocessEncode *encode;
    void *encode_ctx;
    /* NULL, or a function that preprocess_run calls on the caller's thread after every few MiB of input. */
    void (*progress)(void *ctx, const PreprocessStats *);
    void *progress_ctx;
} PreprocessConfig;

Err preprocess_run(const PreprocessConfig *, PreprocessStats *stats);
