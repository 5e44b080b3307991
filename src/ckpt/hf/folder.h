/* A model as a folder that transformers reads. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "models/model.h"

/* A file of the tokenizer, to be copied, or with the given content. */
typedef struct HfFile {
    char *from;       /* NULL: `content` is the content */
    const char *name; /* in the folder */
    char *content;
} HfFile;

enum { HF_MOST_FILES = 8 };

/* The content of the folder in addition to the model. */
typedef struct HfExtras {
    const json_t *tokens; /* tokens.h; NULL: unknown */
    HfFile files[HF_MOST_FILES];
    int num_files;
    bool overwrite; /* what the folder holds */
} HfExtras;

/* The model to write. */
typedef struct HfModel {
    const Config *config;
    const Registry *registry;
} HfModel;

/* Writes config.json, generation_config.json, model.safetensors (weights as `dtype`) and the tokenizer's
 * files. All are first written to a folder inside `dir`, then the model is read back and compared
 * (hf_config_read_back). If there is no difference the files are moved to `dir`. A folder that is not empty is
 * an error unless `overwrite` is set. Then other weights in it are removed, and a file of another tokenizer that
 * would remain is an error. After an error before the files are moved, `dir` is unchanged. */
Err hf_folder_write(const char *dir, const HfModel *, DType dtype, const HfExtras *, Str *notes);
