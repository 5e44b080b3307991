/* A model as a folder that transformers reads. */
#ifndef ISOTRON_CKPT_HF_FOLDER_H
#define ISOTRON_CKPT_HF_FOLDER_H

#include "base/err.h"
#include "base/str.h"
#include "models/model.h"

/* Writes config.json and model.safetensors, weights as `dtype`. Both are written to a folder inside `dir`,
 * read back and compared with the model (hf_config_read_back), and moved to their places if nothing differs.
 * After an error `dir` is as it was. */
Err hf_folder_write(const char *dir, const Model *, DType dtype, Str *notes);

#endif
