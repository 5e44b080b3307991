/* config.json of a Hugging Face model in terms of our options, for the model types of hf_type.h. The import
 * takes from a file what transformers takes from it for that type of model, or refuses it. */
#ifndef ISOTRON_CKPT_HF_CONFIG_H
#define ISOTRON_CKPT_HF_CONFIG_H

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "ckpt/hf.h"
#include "config/config.h"

/* Appends the model's options as `name = value` lines. What our model cannot do is an error that names the
 * key. */
Err hf_config_import(const char *path, Str *conf);
/* Sets the options that hf_config_import has read from `path`. An error names the file: there is no model with
 * these options. */
Err hf_config_parse(const char *path, const Str *conf, Arena *, Config *);
/* Sets the text of config.json, and says which family the names of the tensors follow. The
 * type is hf_model_type, else the first one that fits. An error if it, or none, has this combination of
 * options. `tokens` are ids of hf_tokens.h; NULL: all are null in the file. */
Err hf_config_export(const Config *, const Derived *, DType dtype, const json_t *tokens, Str *json,
                     HfFamily *family);
/* An error if the model has a type (hf_model_type) and that cannot describe it. */
Err hf_config_check_type(const Config *, const Derived *);
/* Compares, option by option, the function that model a computes with that of b, which was read from a
 * config.json; an error names the first option that differs and both values, *differences is how many do. Dropout, which a type of model
 * may lack, is only noted. */
Err hf_config_compare(const Config *a, const Derived *, const Config *b, const Derived *, Str *notes,
                      int *differences);
/* The same with b read from config.json by hf_config_import. */
Err hf_config_read_back(const char *path, const Config *, const Derived *, Str *notes);

/* The configuration with values of Derived in the place of options that are not given. */
Config hf_config_filled(const Config *, const Derived *);

#endif
