/* Writes a model as a folder that transformers can read. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "models/model.h"

/* A file of the tokenizer, which is a copy of `from` or has the given content. */
typedef struct HfFile {
    char *from;       /* path of the file to copy, or NULL to write `content` */
    const char *name; /* name of the file in the folder */
    char *content;
} HfFile;

enum { HF_MOST_FILES = 8 };

/* The additional content of the folder. */
typedef struct HfExtras {
    const json_t *tokens; /* see tokens.h; NULL if unknown */
    HfFile files[HF_MOST_FILES];
    int num_files;
    bool overwrite; /* whether a model in the folder is replaced */
} HfExtras;

/* The model to write. */
typedef struct HfModel {
    const Config *config;
    const Registry *registry;
} HfModel;

/* Writes config.json, generation_config.json, model.safetensors (weights as `dtype`) and the tokenizer's files. The
 * files are first written to a folder inside `dir`. The model is read back and compared (hf_config_read_back), and if
 * there is no difference, the files are moved to `dir`. Returns an error if the folder is not empty, unless
 * `overwrite` is set. With `overwrite`, other weights in the folder are removed, and an old tokenizer file that would
 * remain is an error. If an error occurs before the files are moved, `dir` is left unchanged. */
Err hf_folder_write(const char *dir, const HfModel *, DType dtype, const HfExtras *, Str *notes);
