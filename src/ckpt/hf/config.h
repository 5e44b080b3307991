/* Converts the config.json of a Hugging Face model to and from Isotron's options, for the model types in
 * type.h. The import interprets every key that transformers reads for the model's type. If the import cannot
 * interpret a key, it rejects the file. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "ckpt/hf/tensors.h"
#include "config/config.h"

/* Appends the model's options as `name = value` lines. If a feature is not supported, returns an error that names the
 * key. A model with a vision tower is an error unless `wanted` is the type of its language model, whose options are then
 * appended. HF_TYPES: only the whole model is wanted. */
Err hf_config_import(const char *path, HfModelType wanted, Str *conf);
/* Sets the options that hf_config_import has read from `path`. If the options are invalid for any model, the error
 * names the file. */
Err hf_config_parse(const char *path, const Str *conf, Arena *, Config *);
/* Sets options that config.json alone does not determine:
 * - whether the output layer of a T5 with unscaled logits is tied to the embedding: it is tied unless the weights
 *   contain an output layer that is not a copy of the embedding;
 * - whether the model has layers that predict additional tokens (MTP): transformers never writes their weights. */
void hf_config_fit(Config *, const Safetensors *weights);
/* Sets whether a pretrained BERT has the sentence-pair head. A BERT has this head if its type does, and if the weights
 * contain it or init_missing is set. Other models' options are unchanged. */
void hf_config_fit_heads(Config *, const Safetensors *weights, bool init_missing);
/* Writes the text of config.json, and sets the family for the tensors' names. The type is hf_model_type if given, and
 * otherwise the first type that fits. Returns an error if hf_model_type cannot express the options or, without
 * hf_model_type, if no type can. `tokens` contains the ids that tokens.h describes; if `tokens` is NULL, all ids are
 * null in the file. */
Err hf_config_export(const Config *, DType dtype, const json_t *tokens, Str *json, HfFamily *family);
/* Returns the name of the type that an export writes, or NULL if no type fits. */
const char *hf_config_type(const Config *);
/* Returns an error if hf_model_type is given and cannot describe the model. */
Err hf_config_check_type(const Config *);
/* Compares model a's options with those of model b, which were read from a config.json. Compares only options that
 * affect the model's output. The error names the first option that differs, and both values. Sets *differences to the
 * number of differing options. A different dropout causes only a note, because some model types have no key for
 * dropout. */
Err hf_config_compare(const Config *a, const Config *b, Str *notes, int *differences);
/* Imports the config.json at `path`, and calls hf_config_compare with the result. */
Err hf_config_read_back(const char *path, const Config *, Str *notes);

/* Returns a copy of the configuration. In the copy, unset options have their values from Derived. */
Config hf_config_filled(const Config *);
