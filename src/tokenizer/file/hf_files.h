/* Reads vocabularies from files other than tokenizer.json. The result has the form of a tokenizer.json, as
 * hf_class_build requires: {"model": {"vocab": ..., "merges": ...}}. Error messages name the file. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "tokenizer/file/hf_class.h"

/* Reads GPT-2's vocab.json and merges.txt. */
Err hf_files_bpe(const char *vocab, const char *merges, json_t **root);
/* Reads BERT's vocab.txt. */
Err hf_files_words(const char *vocab, json_t **root);
/* Reads a SentencePiece .model. Without a class, the result is a complete tokenizer, which encodes texts as
 * SentencePiece does. The control pieces and, with a class, the user-defined pieces become the additional tokens of the
 * settings. */
Err hf_files_sentencepiece(const char *path, const HfClass *, HfConfig *, json_t **root);
