/* A model as a folder that transformers reads. */
#ifndef ISOTRON_CKPT_HF_FOLDER_H
#define ISOTRON_CKPT_HF_FOLDER_H

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "models/model.h"

/* A file of the tokenizer, which is copied. */
typedef struct HfFile {
    char *from;
    const char *name; /* in the folder */
} HfFile;

enum { HF_MOST_FILES = 8 };

/* What the folder has besides the model. */
typedef struct HfExtras {
    const json_t *tokens; /* hf_tokens.h; NULL: none is known */
    HfFile files[HF_MOST_FILES];
    int num_files;
} HfExtras;

/* Writes config.json, generation_config.json, model.safetensors (weights as `dtype`) and the tokenizer's
 * files. All are written to a folder inside `dir`, the model is read back and compared (hf_config_read_back),
 * and they are moved to their places if nothing differs. A file of another model's weights or tokenizer that would
 * stay in `dir` is an error. After an error before the files are moved `dir` is as it was. */
Err hf_folder_write(const char *dir, const Model *, DType dtype, const HfExtras *, Str *notes);

#endif
