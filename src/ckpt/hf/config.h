/* Converts config.json of a Hugging Face model from and to our options, for the model types of type.h. The
 * import takes from a file what transformers takes for that type of model, or refuses it. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "ckpt/hf/tensors.h"
#include "config/config.h"

/* Appends the model's options as `name = value` lines. An unsupported feature is an error that names the
 * key. */
Err hf_config_import(const char *path, Str *conf);
/* Sets the options that hf_config_import has read from `path`. If no model has these options, the error names
 * the file. */
Err hf_config_parse(const char *path, const Str *conf, Arena *, Config *);
/* Whether the output layer of a T5 without scaled logits is tied to the embedding: it is unless the weights have an
 * output layer that is not a copy. transformers 5 ties it in this way, but its config.json says only that the logits
 * are not scaled. Other models keep their options. */
void hf_config_fit(Config *, const Safetensors *weights);
/* Whether a pretrained BERT has the head for sentences: if the weights have it or, with init_missing, if its type has
 * one. Other models keep their options. */
void hf_config_fit_heads(Config *, const Safetensors *weights, bool init_missing);
/* Writes the text of config.json, and sets the family of the tensors' names. The type is hf_model_type, else
 * the first type that fits. An error if the type, or every type, lacks this combination of options. `tokens`
 * are the ids of tokens.h; NULL: all are null in the file. */
Err hf_config_export(const Config *, DType dtype, const json_t *tokens, Str *json, HfFamily *family);
/* The name of the type that an export writes; NULL: no type fits. */
const char *hf_config_type(const Config *);
/* An error if hf_model_type is given and cannot describe the model. */
Err hf_config_check_type(const Config *);
/* Compares, option by option, the function that model a computes with that of b, which was read from a
 * config.json. An error names the first option that differs, and both values; *differences is the number of
 * differing options. A different dropout, which a type of model may lack, is only a note. */
Err hf_config_compare(const Config *a, const Config *b, Str *notes, int *differences);
/* hf_config_compare with b read from config.json by hf_config_import. */
Err hf_config_read_back(const char *path, const Config *, Str *notes);

/* The configuration with values of Derived for options that are not given. */
Config hf_config_filled(const Config *);
