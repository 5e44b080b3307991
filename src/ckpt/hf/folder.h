/* Writes a model as a folder that transformers can read. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "models/model.h"

/* A tokenizer file, either copied from `from` or with the given content. */
typedef struct HfFile {
    char *from;       /* path of the file to copy, or NULL to write `content` */
    const char *name; /* name of the file in the folder */
    char *content;
} HfFile;

enum { HF_MOST_FILES = 8 };

/* Additional content for the folder. */
typedef struct HfExtras {
    const json_t *tokens; /* see tokens.h; NULL if unknown */
    HfFile files[HF_MOST_FILES];
    int num_files;
    bool overwrite; /* whether to replace a model in the folder */
} HfExtras;

/* The model to write. */
typedef struct HfModel {
    const Config *config;
    const Registry *registry;
} HfModel;

/* Writes config.json, generation_config.json, model.safetensors (weights as `dtype`) and the tokenizer's files. First
 * writes the files to a folder inside `dir`, reads the model back and compares it (hf_config_read_back). If nothing
 * differs, moves the files to `dir`. Returns an error if the folder is not empty, unless `overwrite` is set. With
 * `overwrite`, removes other weights in the folder, and returns an error if an old tokenizer file would remain. If an
 * error occurs before the move, `dir` is unchanged. */
Err hf_folder_write(const char *dir, const HfModel *, DType dtype, const HfExtras *, Str *notes);
