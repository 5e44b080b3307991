/* config.json of a Hugging Face model in terms of our options, for the model types gpt2, llama, mistral,
 * qwen2, qwen3, stablelm, nemotron, mixtral, qwen2_moe, qwen3_moe and glm4_moe. Source: transformers
 * models/<type>/configuration_<type>.py (keys and their defaults). */
#ifndef ISOTRON_CKPT_HF_CONFIG_H
#define ISOTRON_CKPT_HF_CONFIG_H

#include "base/err.h"
#include "base/str.h"
#include "ckpt/hf.h"
#include "config/config.h"

/* Appends the model's options as `name = value` lines. What our model cannot do is an error that names the
 * key. */
Err hf_config_import(const char *path, Str *conf);
/* Appends the text of config.json, and says which family the names of the tensors follow. An error if none of
 * the model types has this combination of options. Token ids are null: the tokenizer's files have them. */
Err hf_config_export(const Config *, const Derived *, DType dtype, Str *json, HfFamily *family);

#endif
