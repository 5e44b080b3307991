/* The vocabularies of files other than tokenizer.json, as a tokenizer.json: {"model": {"vocab": ..., "merges": ...}},
 * for hf_class_build. Errors name the file. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "tokenizer/file/hf_class.h"

/* GPT-2's vocab.json and merges.txt. */
Err hf_files_bpe(const char *vocab, const char *merges, json_t **root);
/* BERT's vocab.txt. */
Err hf_files_words(const char *vocab, json_t **root);
/* A SentencePiece .model. Without a class it is a whole tokenizer, which encodes as the model does. Adds the pieces
 * that are not ordinary ones to the additional tokens of the settings. */
Err hf_files_sentencepiece(const char *path, const HfClass *, HfConfig *, json_t **root);
