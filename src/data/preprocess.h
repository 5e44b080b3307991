/* Text to tokens: JSON Lines or plain text, also compressed (data/input.h), into <prefix>_<key>_document.bin and
 * .idx (Megatron-LM tools/preprocess_data.py).
 *
 *   JSON Lines       one object per line, one document per key: a string, or a list of strings (sentences),
 *                    each a sequence. The line is read as by Python's json (data/json_line.h). Blank
 *                    lines are passed over; any other bad line stops the run with its number.
 *   text files       one document per file, all of its text; the key is "text"
 *   text paragraphs  one document per run of lines that are not blank, without the newline at its end; the
 *                    key is "text"
 *
 * With split_sentences each sentence of a string is a sequence (data/sentences.h), and the names end with
 * _sentence; a list of strings is split already.
 *
 * Sequences without tokens are dropped; with append_eod the end-of-document token joins the last sequence. A
 * document without tokens has an entry in the document index and no sequence. Ids are written as u16 below a
 * vocabulary of 65500, else as i32. Documents keep the order of the input regardless of the number of
 * workers, and the files appear under their final names only when all of them are complete. An input without
 * any text is a user error. After an error or a signal that ends the process no unfinished file is left. */
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

/* The tokenizer: returns the tokens of `n` bytes of text in malloc'ed memory that the caller frees. Several
 * threads call it at the same time. The text is valid UTF-8; from JSON it may contain NULs. */
typedef Err PreprocessEncode(void *ctx, const char *text, size_t n, int32_t **tokens, size_t *count);

typedef struct PreprocessStats {
    int64_t documents;         /* of each key */
    int64_t sequences, tokens; /* all keys together */
    int64_t bytes;             /* of the input, read so far */
    int64_t total_bytes;       /* of the input files; a pipe counts as 0 */
} PreprocessStats;

typedef struct PreprocessConfig {
    PreprocessInput kind;
    const char *const *inputs; /* files, in this order; "-" is standard input */
    int num_inputs;
    const char *encoding;    /* of the inputs, data/input.h; NULL: UTF-8 */
    const char *const *keys; /* JSON Lines only; NULL: "text" */
    int num_keys;
    const char *output_prefix;
    bool overwrite;     /* datasets that exist; else they are a user error */
    int64_t vocab_size; /* <= 0: unknown */
    bool append_eod;
    bool split_sentences, keep_newlines;
    const char *lang; /* with split_sentences */
    int32_t eod;
    int workers;
    /* Document i goes to partition i modulo this number, and the dataset is the partitions one after the other, as
     * Megatron-LM's --partitions. 0 means 1. */
    int partitions;
    int64_t most_documents; /* > 0: only as many, to measure: no dataset is written or replaced */
    PreprocessEncode *encode;
    void *encode_ctx;
    /* Called every few MiB from the calling thread; NULL: never. */
    void (*progress)(void *ctx, const PreprocessStats *);
    void *progress_ctx;
} PreprocessConfig;

Err preprocess_run(const PreprocessConfig *, PreprocessStats *stats);
